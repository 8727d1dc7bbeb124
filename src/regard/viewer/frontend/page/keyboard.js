// Keys for everything, and the table of them that the help dialog shows.

import { stepCount } from "../data/frame.js";
import { CHOICES, MODES, VIEWS, modeProblem } from "../state/state.js";

/** Keys, what they do, and where only some scenes have a use for them, which. */
export const KEY_TABLE = [
  ["1 – 4", "map, matrix, lines, text"],
  ["5", "image", (scene) => Boolean(scene.image)],
  ["[ ]", "layer before, layer after"],
  [", .", "head before, head after"],
  ["m", "single head, mean, largest, rollout, relevance"],
  ["← ↑ → ↓", "move in the view (with Shift: ten cells of the matrix)"],
  ["+ − 0", "zoom in, zoom out, see everything"],
  ["Enter", "open a head, pin, choose a word"],
  ["Space", "add to what is chosen, or take away"],
  ["Escape", "unpin, clear, go back to the map"],
  ["h", "hide a word or token of the lines"],
  ["w", "words or pieces"],
  ["s", "special tokens shown, folded into one, hidden"],
  ["l", "linear or logarithmic colours"],
  ["d", "attends to, or attended by (lines, text, image)"],
  ["t", "light, dark, as the system"],
  ["g G", "one step of a generation on, back", (scene) => Boolean(scene.steps)],
  ["e", "to the export buttons"],
  ["?", "this help"],
];

/** Listens to the keys of the page; `panes()` gives the open panes, the first leading. */
export function listenToKeys(panes, page) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    const pane = activePane(panes());
    if (!pane) return;
    const handled = viewKey(pane, event) || pageKey(pane, event, page);
    if (handled) event.preventDefault();
  });
}

function isTyping(target) {
  return target.closest?.("input, textarea, select, [contenteditable]") !== null && target.closest !== undefined;
}

function activePane(panes) {
  return panes.find((pane) => pane.element.contains(document.activeElement)) ?? panes[0];
}

/** Keys of the open view, unless the keyboard is on a control outside it. */
function viewKey(pane, event) {
  const view = pane.view();
  const action = view?.keys?.[event.key];
  if (!action) return false;
  const target = document.activeElement;
  const host = pane.element.querySelector(".view-host");
  const isFree = target === document.body || target === null || host.contains(target);
  const isPlain = !["Enter", " "].includes(event.key) && !event.key.startsWith("Arrow");
  if (!isFree && !isPlain) return false;
  if (["Enter", " "].includes(event.key) && target?.matches?.("button, [role=switch]")) return false;
  return action(event) !== false;
}

function pageKey(pane, event, page) {
  const action = PAGE_KEYS[event.key];
  if (!action) return false;
  return action(pane, pane.store.get(), page) !== false;
}

function flipSetting(key, ...values) {
  return (_pane, _state, page) => page.flip(key, values);
}

function flipDirection(pane, state) {
  if (!["lines", "text", "image"].includes(state.view)) return false;
  pane.store.set({ direction: state.direction === "from" ? "to" : "from" });
  return true;
}

function moveLayer(change) {
  return (pane, state) => {
    const from = state.layer === "all" ? (change > 0 ? -1 : 0) : state.layer;
    pane.store.set({ layer: Math.max(0, from + change) });
  };
}

function moveHead(change) {
  return (pane, state) => {
    const layer = state.layer === "all" ? lastLayer(pane) : state.layer;
    pane.store.set({ head: Math.max(0, state.head + change), mode: "head", layer });
  };
}

/** The layer looked at before all of them were. */
function lastLayer(pane) {
  return pane.controls()?.lastLayer ?? 0;
}

function nextMode(pane, state) {
  if (state.view === "map") return false;
  const scene = pane.scene();
  const modes = MODES.filter((mode) => modeProblem(scene, state, mode) === null);
  const mode = modes[(modes.indexOf(state.mode) + 1) % modes.length];
  const maps = scene.parts[state.part].maps ?? {};
  pane.store.set(state.layer === "all" && !maps[mode] ? { mode, layer: lastLayer(pane) } : { mode });
  return true;
}

function nextTheme(_pane, _state, page) {
  page.nextTheme();
}

function moveStep(change) {
  return (pane, state) => {
    const count = stepCount(pane.scene(), state.part);
    if (!count || state.view === "map") return false;
    const step = Math.max(0, Math.min(count, (state.step ?? count) + change));
    pane.store.set({ step: step === count ? null : step });
    return true;
  };
}

function openView(index) {
  return (pane) => {
    if (VIEWS[index] === "image" && !pane.scene().image) return false;
    pane.store.set({ view: VIEWS[index] });
    return true;
  };
}

const PAGE_KEYS = {
  1: openView(0), 2: openView(1), 3: openView(2), 4: openView(3), 5: openView(4),
  "[": moveLayer(-1), "]": moveLayer(1), ",": moveHead(-1), ".": moveHead(1),
  m: nextMode, t: nextTheme,
  w: flipSetting("unit", "pieces", "words"),
  s: flipSetting("special", ...CHOICES.special),
  l: flipSetting("colour", "linear", "log"),
  d: flipDirection,
  g: moveStep(1), G: moveStep(-1),
  e: (pane) => pane.controls()?.focusExport(),
  "?": (_pane, _state, page) => page.openHelp(),
  Escape: (pane) => pane.store.set({ view: "map" }),
};
