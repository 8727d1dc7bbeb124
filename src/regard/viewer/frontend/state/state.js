// What is shown, as one plain object per pane, and how it travels in the fragment of the address.

export const VIEWS = ["map", "matrix", "lines", "text", "image"];
export const MODES = ["head", "mean", "max", "rollout", "relevance"];

const CHOICES = {
  view: VIEWS,
  mode: MODES,
  unit: ["pieces", "words"],
  special: ["shown", "folded"],
  colour: ["linear", "log"],
  theme: ["auto", "light", "dark"],
  direction: ["from", "to"],
};

/** The state a page starts with. */
export function initialState() {
  return {
    view: "map", part: 0, layer: 0, mode: "head", head: 0,
    unit: "pieces", special: "shown", colour: "linear", theme: "auto",
    selected: [], pinned: false, hidden: [], direction: "from",
    limit: { kind: "top", value: 5 }, step: null, zoom: null,
  };
}

/** A store of one state: `set` merges a patch, settles it and tells subscribers which keys changed. */
export function createStore(initial, settled) {
  let state = settled({ ...initial }, {});
  const listeners = new Set();
  return {
    get: () => state,
    set(patch) {
      const next = settled({ ...state, ...patch }, patch);
      const changed = Object.keys(next).filter((key) => !sameValue(next[key], state[key]));
      if (changed.length === 0) return;
      state = next;
      for (const listener of [...listeners]) listener(state, changed);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** What is chosen in one of two stores, the other takes as far as it has it; returns a function that parts them. */
export function linkStores(first, second, keys) {
  let isFollowing = false; // what the other one made of it does not come back
  const follow = (target) => (state, changed) => {
    const shared = changed.filter((key) => keys.includes(key));
    if (isFollowing || shared.length === 0) return;
    isFollowing = true;
    try {
      target.set(Object.fromEntries(shared.map((key) => [key, state[key]])));
    } finally {
      isFollowing = false;
    }
  };
  const stops = [first.subscribe(follow(second)), second.subscribe(follow(first))];
  return () => stops.forEach((stop) => stop());
}

function sameValue(left, right) {
  if (left === right) return true;
  return typeof left === "object" && typeof right === "object" && JSON.stringify(left) === JSON.stringify(right);
}

/** Whether a scene has tokens that are special. */
export function hasSpecial(scene) {
  return scene.sequences.some((sequence) => sequence.special.some(Boolean));
}

/** Whether the sequences of a scene know which pieces make a word. */
export function hasWords(scene) {
  return scene.sequences.some((sequence) => sequence.words !== null && sequence.words !== undefined);
}

/** What a row or a column of a map is called. */
export function unitName(state) {
  return state.unit === "words" ? "word" : "token";
}

/** Whether a scene has one head and nothing else to choose from: mean and largest are the same then. */
export function hasOneMap(scene) {
  const isThrough = scene.parts.some(({ maps }) => maps?.rollout || maps?.relevance);
  return scene.sites.length === 1 && scene.sites[0].heads === 1 && !isThrough;
}

/** Why a mode cannot be chosen, or null. */
export function modeProblem(scene, state, mode) {
  const maps = scene.parts[state.part].maps ?? {};
  if (mode === "rollout" || mode === "relevance") return maps[mode] ? null : `no ${mode} map was stored for this part`;
  return null;
}

/** The nearest state that a scene can show; `patch` says what was asked for last. */
export function settleState(scene, state, patch) {
  const next = { ...state };
  next.part = boundedInteger(next.part, scene.parts.length);
  const part = scene.parts[next.part];
  const maps = part.maps ?? {};
  settleMode(next, patch, maps);
  if (next.layer !== "all") next.layer = boundedInteger(next.layer, part.sites.length);
  const site = scene.sites[part.sites[next.layer === "all" ? 0 : next.layer]];
  next.head = boundedInteger(next.head, site ? site.heads : 1);
  if (next.unit === "words" && !hasWords(scene)) next.unit = "pieces";
  if (next.view === "image" && !scene.image) next.view = "matrix";
  if (!scene.steps) next.step = null;
  else if (next.step !== null) next.step = Math.max(next.step, leastStep(scene));
  return next;
}

/** The first step that has something to show: there is always a prompt, unless all was written. */
export function leastStep(scene) {
  return scene.steps.prompt > 0 ? 0 : 1;
}

function settleMode(next, patch, maps) {
  if (next.mode === "rollout" || next.mode === "relevance") {
    const asksLayer = patch.layer !== undefined && patch.layer !== "all" && patch.mode === undefined;
    if (maps[next.mode] && !asksLayer) next.layer = "all";
    else next.mode = "head";
  }
  if (next.layer !== "all" || maps[next.mode]) return;
  const stored = MODES.slice(1).find((mode) => maps[mode]);
  if (patch.mode !== undefined || stored === undefined) next.layer = 0;
  else next.mode = stored;
}

function boundedInteger(value, count) {
  const number = Number.isInteger(value) ? value : 0;
  return Math.max(0, Math.min(count - 1, number));
}

/**
 * The fragment of one or two states, leaving out what any page starts with; `inputs` are those of a live page.
 * `starts` are what their scenes start with instead: what differs from that cannot be left out.
 */
export function fragmentOf(states, inputs = [], starts = []) {
  const fields = new URLSearchParams();
  inputs.forEach((input, index) => {
    for (const key of INPUT_KEYS) if (fitsLink(input?.[key])) fields.set(index === 0 ? key : `${key}.${index}`, String(input[key]));
  });
  states.forEach((state, index) => {
    const base = index === 0 ? initialState() : { ...initialState(), ...sharedPartOf(states[0]) };
    for (const [key, value] of Object.entries(state)) {
      const start = starts[index]?.[key] ?? value;
      if (!sameValue(value, base[key]) || !sameValue(value, start)) fields.set(index === 0 ? key : `${key}.${index}`, fieldText(key, value));
    }
  });
  return fields.toString().replace(/%2C/g, ",").replace(/%3A/g, ":");
}

export const SHARED_KEYS = ["view", "part", "layer", "mode", "head", "unit", "special", "colour", "theme", "direction", "limit"];

const INPUT_KEYS = ["model", "text", "tokens", "trace"];
const LONGEST_IN_LINK = 1000; // characters of a text

function fitsLink(value) {
  return value !== undefined && value !== null && String(value).length <= LONGEST_IN_LINK;
}

/** Whether all of an input can be in a link. */
export function isWholeInLink(input) {
  return input === null || (!input.file && INPUT_KEYS.every((key) => input[key] === undefined || fitsLink(input[key])));
}

/** The input that a fragment asks of column `index` of a live page, as texts, or null. */
export function inputOfFragment(fragment, index = 0) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const named = INPUT_KEYS.map((key) => [key, fields.get(index === 0 ? key : `${key}.${index}`)]);
  const input = Object.fromEntries(named.filter(([, value]) => value !== null));
  return input.model !== undefined || input.trace !== undefined ? input : null;
}

function sharedPartOf(state) {
  return Object.fromEntries(SHARED_KEYS.map((key) => [key, state[key]]));
}

function fieldText(key, value) {
  if (key === "limit") return `${value.kind}:${value.value}`;
  if (key === "zoom") return value === null ? "" : value.map((edge) => Number(edge.toFixed(3))).join(",");
  if (Array.isArray(value)) return value.join(",");
  return value === null ? "" : String(value);
}

/** The patch that a fragment asks for, of pane `index`; what it cannot read it leaves out. */
export function patchOfFragment(fragment, index = 0) {
  const patch = {};
  const shared = new Set(SHARED_KEYS);
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    const [key, owner] = name.split(".");
    const own = Number(owner ?? 0) === index;
    if (!own && !(owner === undefined && shared.has(key))) continue;
    const value = fieldValue(key, text);
    if (value !== undefined) patch[key] = value;
  }
  return patch;
}

function fieldValue(key, text) {
  if (CHOICES[key]) return CHOICES[key].includes(text) ? text : undefined;
  if (key === "layer" && text === "all") return "all";
  if (key === "step" && text === "") return null;
  if (["part", "layer", "head", "step"].includes(key)) return /^\d{1,9}$/.test(text) ? Number(text) : undefined;
  if (key === "selected" || key === "hidden") return text === "" ? [] : numbersOf(text, Number.isInteger);
  if (key === "pinned") return text === "true";
  if (key === "zoom") return zoomValue(text);
  if (key === "limit") return limitValue(text);
  return undefined;
}

function numbersOf(text, accepted) {
  const numbers = text.split(",").map(Number);
  return numbers.every((number) => accepted(number) && number >= 0) ? numbers : undefined;
}

function zoomValue(text) {
  if (text === "") return null;
  const edges = text.split(",").map(Number);
  const valid = edges.length === 4 && edges.every(Number.isFinite) && edges[2] > edges[0] && edges[3] > edges[1];
  return valid ? edges : undefined;
}

function limitValue(text) {
  const [kind, amount] = text.split(":");
  const value = Number(amount);
  const valid = (kind === "top" || kind === "threshold") && Number.isFinite(value) && value >= 0;
  return valid ? { kind, value } : undefined;
}

/** The fragment of the page's address; empty where the frame may not read it. */
export function readFragment() {
  try {
    return globalThis.location.hash.slice(1);
  } catch {
    return "";
  }
}

let fragmentTimer = 0;

/** Puts the fragment that a function gives into the address after a pause, without a new history entry; one that was changed meanwhile is read, not overwritten. */
export function writeFragment(fragment, pause = 200) {
  clearTimeout(fragmentTimer);
  const before = readFragment();
  fragmentTimer = setTimeout(() => {
    if (readFragment() !== before) return;
    try {
      globalThis.history.replaceState(null, "", `#${fragment()}`);
    } catch {
      // A frame without an address of its own (about:srcdoc, sandbox) still works, it only has no link.
    }
  }, pause);
}

/** The address of the page with a fragment. */
export function linkTo(fragment) {
  return `${pageAddress()}#${fragment}`;
}

/** Whether a link to the page leads anywhere: a frame of a notebook has no address of its own. */
export function hasAddress() {
  return !/^(about:|$)/.test(pageAddress());
}

function pageAddress() {
  try {
    return globalThis.location.href.split("#")[0];
  } catch {
    return ""; // a frame that may not read it
  }
}
