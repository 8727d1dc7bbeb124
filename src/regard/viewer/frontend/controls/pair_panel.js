// The score of a pair: which features of query and key make it, largest first.

import { pairFeatures } from "../data/features.js";
import { readableWeight } from "../data/numbers.js";
import { make } from "../drawing/elements.js";
import { visibleLabel } from "../drawing/labels.js";

const MOST_BARS = 16;

/** The panel: `show(frame, state, row, column)` tells a pair, `hide()` none. */
export function createPairPanel(host, context) {
  const panel = new PairPanel(context);
  host.append(panel.element);
  return panel;
}

class PairPanel {
  constructor(context) {
    this.context = context;
    this.title = make("p", { class: "pair-title", "data-testid": "pair-title" });
    this.bars = make("ol", { class: "pair-bars", "data-testid": "pair-bars", tabindex: "0", "aria-label": "Features of query and key, the largest first", "data-scrolls": true });
    this.element = make("section", { class: "pair-panel", hidden: true, "aria-label": "Query · key of the chosen pair", "data-testid": "pair-panel" }, this.title, this.bars);
    this.shown = null;
  }

  hide() {
    this.shown = null;
    this.element.hidden = true;
  }

  async show(frame, state, row, column) {
    const [queries, keys] = [frame.rows.members[row], frame.columns.members[column]];
    const isPair = state.mode === "head" && state.layer !== "all" && queries.length === 1 && keys.length === 1;
    if (!isPair) return this.hide();
    const shown = (this.shown = {});
    let [features, weight] = [null, null];
    try {
      weight = await frame.value(row, column);
      features = await pairFeatures(this.context.scene, state, queries[0], keys[0]);
    } catch {
      features = null; // the server says that scores are made in another way
    }
    if (shown !== this.shown) return undefined;
    if (!features) return this.hide();
    this.fill(features, frame.rows.labels[row], frame.columns.labels[column], weight.value === 0);
    return undefined;
  }

  fill(features, query, key, isNothing) {
    const score = features.reduce((total, product) => total + product, 0);
    const order = [...features.keys()].sort((a, b) => Math.abs(features[b]) - Math.abs(features[a]));
    const largest = Math.abs(features[order[0]]) || 1;
    const shown = order.slice(0, MOST_BARS);
    const rest = order.slice(MOST_BARS).reduce((total, feature) => total + features[feature], 0);
    const left = order.length > shown.length ? `, the other ${order.length - shown.length} together ${signed(rest)}` : "";
    const name = isNothing ? ", which is masked or far below others, would be" : ":";
    this.title.replaceChildren("Score of ", make("bdi", {}, visibleLabel(query)), " → ", make("bdi", {}, visibleLabel(key)), `${name} ${signed(score)}, the sum of query × key over ${features.length} features${left}`);
    this.bars.replaceChildren(...shown.map((feature) => barOf(feature, features[feature], largest)));
    this.element.hidden = false;
  }
}

function barOf(feature, product, largest) {
  const bar = make("span", { class: `pair-bar${product < 0 ? " is-negative" : ""}`, "aria-hidden": "true" });
  bar.style.height = `${Math.max(2, Math.round((34 * Math.abs(product)) / largest))}px`;
  return make("li", {}, make("span", { class: "pair-room", "aria-hidden": "true" }, bar), make("span", { class: "pair-product" }, signed(product)), make("span", { class: "pair-feature" }, `f${feature}`));
}

function signed(value) {
  return `${value < 0 ? "−" : "+"}${readableWeight(Math.abs(Number(value.toPrecision(2))))}`;
}
