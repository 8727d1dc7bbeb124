// The elements that the lines view is made of.

import { make } from "../../drawing/elements.js";
import { visibleLabel } from "../../drawing/labels.js";

export function buildLines() {
  const pin = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-pin", "aria-pressed": "false", title: "Keep the selected lines while the pointer moves (Enter)" }, "Pin");
  const clear = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-clear", title: "Select nothing (Escape)" }, "Clear");
  const hint = make("p", { class: "lines-hint" });
  const hiddenList = make("span", { class: "lines-chips" });
  const showAll = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-show-all" }, "Show all");
  const hidden = make("div", { class: "lines-hidden", "data-testid": "lines-hidden", hidden: true }, make("span", {}, "Hidden"), hiddenList, showAll);
  const captions = { left: make("span", { class: "lines-caption" }), right: make("span", { class: "lines-caption" }) };
  const roles = { left: make("span", { class: "lines-role" }), right: make("span", { class: "lines-role" }) };
  const heads = make("div", { class: "lines-heads" });
  const canvas = make("canvas", { class: "lines-canvas", "aria-hidden": "true" });
  const beyond = { above: beyondButton("above"), below: beyondButton("below") };
  const stage = make("div", { class: "lines-stage" }, beyond.above, beyond.below);
  const space = make("div", { class: "lines-space" }, stage);
  const scroller = make("div", { class: "lines-scroller" }, space);
  const compare = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-compare", title: "Keep the lines of this head while another one is chosen" }, "Keep head");
  const headList = make("div", { class: "lines-heads-list", "data-testid": "lines-heads", role: "group", "aria-label": "Heads in colours", hidden: true });
  const bar = make("div", { class: "lines-bar" }, hint, compare, pin, clear);
  const root = make("div", { class: "lines-view", role: "group", "data-testid": "lines-view" }, bar, headList, hidden, heads, scroller);
  return { root, hint, compare, headList, pin, clear, hidden, hiddenList, showAll, captions, roles, heads, canvas, stage, beyond, space, scroller };
}

export function columnHead(role, caption) {
  return make("div", { class: "lines-head" }, role, caption);
}

function beyondButton(way) {
  return make("button", { type: "button", class: `lines-beyond lines-beyond-${way}`, "data-testid": `lines-${way}`, title: "Go to the strongest link out of sight", hidden: true });
}

/** A head in its colour; one that is kept can be taken away. */
export function headChip(place, name, colour) {
  const mark = make("span", { class: "lines-head-mark", "aria-hidden": "true" });
  mark.style.background = colour;
  if (place === null) return make("span", { class: "lines-head-chip" }, mark, name);
  const cross = make("span", { "aria-hidden": "true" }, "×");
  return make("button", { type: "button", class: "lines-head-chip", "data-drops": place, "aria-label": `Take away ${name}` }, mark, name, cross);
}

export function hiddenChip({ number, label }) {
  const name = make("bdi", {}, visibleLabel(label));
  const cross = make("span", { "aria-hidden": "true" }, "×");
  return make("button", { type: "button", class: "lines-chip", "data-shows": number, "aria-label": `Show ${visibleLabel(label)} again` }, name, cross);
}
