// The control bar of a pane: which map, how it is coloured and grouped, what leaves the page.

import { headType } from "../data/head_types.js";
import { hasNorms, isNormed, normsProblem } from "../data/norms.js";
import { layerName, layersName } from "../data/scene.js";
import { icon, make } from "../drawing/elements.js";
import { capitalised } from "../drawing/labels.js";
import { hasAddress } from "../state/fragment.js";
import { CHOICES, MODES, hasOneMap, hasSpecial, hasWords, modeProblem, unitName } from "../state/state.js";
import { createIconButton, createSelect, createToggle } from "./fields.js";

const SORT_NAMES = { layer: "By layer", type: "By type", entropy: "By entropy", distance: "By distance", pair: "By chosen words" };
const SPECIAL_NAMES = { shown: "Special shown", folded: "Special folded", hidden: "Special hidden" };
const MODE_NAMES = { head: "Single head", mean: "Mean of heads", max: "Largest of heads", rollout: "Rollout", relevance: "Relevance" };

const NARROW_PAGE = "(max-width: 820px)";

/** The control bar; `actions` = {save, copyLink}, whose buttons stand in `actionHost` if there is room. */
export function createControlBar(host, context, actions, actionHost = null) {
  const bar = new ControlBar(context, actions, actionHost);
  host.append(bar.element);
  return bar;
}

class ControlBar {
  constructor(context, actions, actionHost) {
    this.context = context;
    this.buildSelects();
    this.buildToggles();
    this.buildLimit();
    this.steps = make("div", { class: "step-host" });
    const [chosen, drawer] = [this.group("chosen"), this.group("drawer")];
    this.more = createIconButton("controls-more", "more", "More controls", () => this.toggleDrawer());
    this.more.classList.add("more-button");
    this.more.setAttribute("aria-expanded", "false");
    chosen.append(this.part.element, this.layer.element, this.mode.element, this.head.element, this.sort.element, this.type.element, this.more);
    drawer.append(this.measure.element, this.unit.element, this.special.element, this.colour.element, this.direction.element, this.limit);
    this.drawer = drawer;
    this.placeExports(this.exportGroup(actions), actionHost);
    this.element = make("div", { class: "controls", role: "toolbar", "aria-label": "What is shown" }, chosen, drawer, this.steps);
  }

  group(name) {
    return make("div", { class: `controls-${name}` });
  }

  toggleDrawer() {
    const isOpen = this.drawer.toggleAttribute("data-open");
    this.more.setAttribute("aria-expanded", String(isOpen));
  }

  set(patch) {
    this.context.store.set(patch);
  }

  buildSelects() {
    this.part = createSelect("part-select", "Part of the model", (value) => this.set({ part: Number(value) }));
    this.layer = createSelect("layer-select", "Layer", (value) => this.set({ layer: value === "all" ? "all" : Number(value) }));
    this.mode = createSelect("mode-select", "One head, or several together", (value) => this.chooseMode(value));
    this.head = createSelect("head-select", "Head", (value) => this.set({ head: Number(value) }));
    this.sort = createSelect("sort-select", "Order of the heads", (value) => this.set({ sort: value }));
    this.type = createSelect("type-select", "Heads of one type", (value) => this.set({ type: value }));
    this.special = createSelect("special-select", "Special tokens such as [CLS]: shown, folded into one, or hidden and each row divided by what is left of it", (value) => this.context.setAll({ special: value }));
    this.lastLayer = 0;
  }

  /** A single head needs a layer: the one last looked at. */
  chooseMode(mode) {
    const { layer } = this.context.store.get();
    const maps = this.context.scene.parts[this.context.store.get().part].maps ?? {};
    this.set(layer === "all" && !maps[mode] ? { mode, layer: this.lastLayer } : { mode });
  }

  buildToggles() {
    const flip = (key, values) => () => this.context.flip(key, values);
    this.unit = createToggle("unit-toggle", "Pieces or words", ["Pieces", "Words"], flip("unit", ["pieces", "words"]));
    this.colour = createToggle("colour-toggle", "Linear or logarithmic colours", ["Linear", "Log"], flip("colour", ["linear", "log"]), "Colour");
    const meaning = "What a word attends to, or what attends to it";
    this.measure = createToggle("measure-toggle", "Weights, or weights times the length of the value that each key adds", ["Weights", "× value"], flip("measure", ["weights", "norms"]));
    this.direction = createToggle("direction-toggle", meaning, ["Attends to", "Attended by"], flip("direction", ["from", "to"]));
  }

  buildLimit() {
    const kind = make("select", { "data-testid": "limit-kind", "aria-label": "Which lines are drawn", onchange: () => this.changeLimitKind(kind.value) },
      make("option", { value: "top" }, "Strongest"), make("option", { value: "threshold" }, "At least"));
    const value = make("input", {
      type: "number", "data-testid": "limit-value",
      onchange: () => this.changeLimitValue(value),
    });
    this.limitKind = kind;
    this.limitValue = value;
    this.limit = make("div", { class: "limit" }, kind, value);
  }

  changeLimitKind(kind) {
    this.set({ limit: kind === "top" ? { kind, value: 5 } : { kind, value: 0.05 } });
  }

  changeLimitValue(input) {
    const { kind } = this.context.store.get().limit;
    const number = Number(input.value);
    const isValid = input.value !== "" && Number.isFinite(number) && number >= 0;
    const value = kind === "top" ? Math.max(1, Math.round(number)) : number;
    if (isValid) this.set({ limit: { kind, value } });
    this.showLimit(this.context.store.get());
  }

  exportGroup(actions) {
    const button = (name, label, action) => make("button", {
      type: "button", class: "segment-button", "data-testid": `export-${name}`, title: label, "aria-label": label, onclick: action,
    }, name.toUpperCase());
    const labels = { png: "Export the view as PNG", svg: "Export the view as SVG", csv: "Export the weights as CSV" };
    this.exportButtons = Object.entries(labels).map(([name, label]) => ({ label, element: button(name, label, () => actions.save(name)) }));
    const exports = make("div", { class: "export-group", role: "group", "aria-label": "Export" }, icon("download"), ...this.exportButtons.map(({ element }) => element));
    const link = hasAddress() ? [createIconButton("copy-link", "link", "Copy a link to this view", actions.copyLink)] : [];
    return make("div", { class: "controls-end" }, exports, ...link);
  }

  placeExports(exports, actionHost) {
    this.exports = exports;
    const narrow = globalThis.matchMedia?.(NARROW_PAGE);
    const place = () => (actionHost && !narrow?.matches ? actionHost.prepend(exports) : this.drawer.append(exports));
    narrow?.addEventListener("change", place);
    this.stopPlacing = () => narrow?.removeEventListener("change", place);
    place();
  }

  /** Moves the keyboard to the export buttons. */
  focusExport() {
    const [{ element }] = this.exportButtons;
    if (!element.offsetParent) this.toggleDrawer();
    element.focus();
  }

  /** Of two columns, which one is exported. */
  nameExports() {
    const column = this.context.exported();
    for (const { label, element } of this.exportButtons) {
      element.title = column ? `${label}, of the ${column} column` : label;
      element.setAttribute("aria-label", element.title);
    }
  }

  update(state) {
    const { scene } = this.context;
    const part = scene.parts[state.part];
    const isWhole = state.layer === "all";
    if (!isWhole) this.lastLayer = state.layer;
    this.part.fill(scene.parts.map(({ label }, index) => ({ value: index, text: capitalised(label) })), state.part);
    this.part.show(scene.parts.length > 1);
    this.layer.fill(layerOptions(scene, state), state.layer);
    this.mode.fill(MODES.map((mode) => ({ value: mode, text: MODE_NAMES[mode], problem: modeProblem(scene, state, mode) })), state.mode);
    const site = scene.sites[part.sites[isWhole ? 0 : state.layer]];
    this.head.fill(headOptions(site), state.head);
    const isMapView = state.view === "map";
    const isSingleHead = state.mode === "head" && !isWhole;
    this.head.select.disabled = !isSingleHead;
    this.head.select.title = isSingleHead ? "Head" : "Several heads are shown together; choose “Single head” to pick one";
    const hasChoice = [scene, ...this.context.scenes()].some((other) => !hasOneMap(other));
    for (const field of [this.layer, this.mode, this.head]) field.show(hasChoice && !isMapView);
    for (const field of [this.sort, this.type]) field.show(hasChoice && isMapView);
    this.sort.fill(sortOptions(scene, state), state.sort);
    this.type.fill(typeOptions(scene, part), state.type);
    this.showToggles(state);
    this.measure.set(isNormed(scene, state), normsProblem(scene, state));
    this.measure.element.hidden = !hasNorms(scene, state);
    this.direction.set(state.direction === "to");
    this.direction.element.hidden = state.view !== "text";
    this.limit.hidden = state.view !== "lines";
    this.showLimit(state);
  }

  /** What one of two panes can do is offered for both. */
  showToggles(state) {
    const scenes = [this.context.scene, ...this.context.scenes()];
    const states = [state, ...this.context.states()];
    const problem = (applies, text) => (scenes.some(applies) ? null : text);
    this.unit.set(states.some((other) => other.unit === "words"), problem(hasWords, "It is not known which pieces make a word"));
    this.special.fill(CHOICES.special.map((value) => ({ value, text: SPECIAL_NAMES[value] })), state.special);
    this.special.setProblem(problem(hasSpecial, "There are no special tokens"));
    this.colour.set(state.colour === "log");
    this.nameExports();
  }

  showLimit(state) {
    const { kind, value } = state.limit;
    this.limitKind.value = kind;
    const bounds = kind === "top" ? { min: "1", step: "1" } : { min: "0", step: "0.01" };
    for (const [name, bound] of Object.entries(bounds)) this.limitValue.setAttribute(name, bound);
    this.limitValue.value = String(value);
    this.limitValue.setAttribute("aria-label", kind === "top" ? `How many lines a ${unitName(state)}` : "The smallest weight");
  }

  destroy() {
    this.stopPlacing();
    this.exports.remove();
    this.element.remove();
  }
}

function layerOptions(scene, state) {
  const part = scene.parts[state.part];
  const isStored = Object.keys(part.maps ?? {}).length > 0;
  const all = `all ${layersName(scene, part)}s`;
  const whole = { value: "all", text: capitalised(all), problem: isStored ? null : `no map over ${all} was stored` };
  return [whole, ...part.sites.map((_, index) => ({ value: index, text: layerName(scene, state.part, index), problem: null }))];
}

function headOptions(site) {
  return Array.from({ length: site?.heads ?? 0 }, (_, head) => {
    const type = site.types?.[head];
    return { value: head, text: type ? `Head ${head} · ${type}` : `Head ${head}`, problem: null };
  });
}

function sortOptions(scene, state) {
  const sites = scene.parts[state.part].sites.map((number) => scene.sites[number]);
  const problems = {
    type: sites.some((site) => site.types) ? null : "types are not known",
    entropy: sites.some((site) => site.entropy) ? null : "not known here",
    distance: sites.some((site) => site.distance) ? null : "queries and keys are different texts",
    pair: state.pair.length ? null : "choose words in the text",
  };
  return CHOICES.sort.map((value) => ({ value, text: SORT_NAMES[value], problem: problems[value] ?? null }));
}

function typeOptions(scene, part) {
  const counts = new Map();
  for (const number of part.sites) for (const label of scene.sites[number].types ?? []) counts.set(headType(label), (counts.get(headType(label)) ?? 0) + 1);
  const types = [...counts].sort(([, a], [, b]) => b - a).map(([value, count]) => ({ value, text: `${capitalised(value)} (${count})` }));
  return [{ value: "", text: "All types" }, ...types];
}
