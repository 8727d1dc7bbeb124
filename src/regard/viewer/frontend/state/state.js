// What is shown, as one plain object per pane.

export const VIEWS = ["map", "matrix", "lines", "text", "image"];
export const MODES = ["head", "mean", "max", "rollout", "relevance"];

/** How many heads can be drawn beside the one that is chosen. */
export const MOST_HEADS = 4;

/** Fields of a closed set of values. */
export const CHOICES = {
  view: VIEWS,
  mode: MODES,
  unit: ["pieces", "words"],
  special: ["shown", "folded", "hidden"],
  colour: ["linear", "log"],
  theme: ["auto", "light", "dark"],
  direction: ["from", "to"],
  measure: ["weights", "norms"],
  sort: ["layer", "type", "entropy", "distance", "pair"],
};

/** Fields that two panes side by side share. */
export const SHARED_KEYS = ["view", "part", "layer", "mode", "head", "unit", "special", "colour", "theme", "direction", "limit", "sort", "type", "pair", "heads", "measure"];

/** The state a page starts with. */
export function initialState() {
  return {
    view: "map", part: 0, layer: 0, mode: "head", head: 0,
    unit: "pieces", special: "shown", colour: "linear", theme: "auto",
    selected: [], pinned: false, hidden: [], direction: "from",
    limit: { kind: "top", value: 5 }, step: null, zoom: null,
    sort: "layer", type: "", pair: [], heads: [], measure: "weights",
  };
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
  next.heads = settledHeads(scene, part, next.heads);
  next.pair = settledPair(scene, site, next.pair);
  if (next.sort === "pair" && next.pair.length === 0) next.sort = "layer";
  if (!scene.steps) next.step = null;
  else if (next.step !== null) next.step = Math.max(next.step, leastStep(scene));
  return next;
}

/** The heads that are drawn beside the one that is chosen, as "layer.head"; those that a part has. */
function settledHeads(scene, part, heads) {
  const has = ([layer, head]) => layer < part.sites.length && head < scene.sites[part.sites[layer]].heads;
  return heads.filter((place) => has(headPlace(place)));
}

/** Layer and head of a text such as "3.1". */
export function headPlace(text) {
  return text.split(".").map(Number);
}

/** Positions of a query and a key, or of a query alone; none where a text does not reach so far. */
function settledPair(scene, site, pair) {
  const sequences = [site?.query_sequence, site?.key_sequence];
  const fits = (position, index) => position < (scene.sequences[sequences[index]]?.tokens.length ?? 0);
  return pair.length <= 2 && pair.every(fits) ? pair : [];
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
