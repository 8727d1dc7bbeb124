// Heads from the largest number to the smallest one, or the other way, as a table.

import { make } from "../drawing/elements.js";
import { capitalised } from "../drawing/labels.js";
import { DIFFERENCE } from "./collection.js";
import { withError } from "./numbers.js";
import { isWanted } from "./state.js";

const MORE = 100; // heads that are shown at a time

/** The table; `update(state, scale)` ranks the heads again. */
export function createRanking(host, numbers, store) {
  const body = make("tbody", {});
  const caption = make("caption", { class: "unseen" });
  const title = make("th", { scope: "col", class: "number" });
  const heading = make("tr", {}, make("th", { scope: "col" }, "Head"), title, make("th", { scope: "col", class: "ranking-bars" }, make("span", { class: "unseen" }, "Bar")), make("th", { scope: "col" }, "Type"));
  const table = make("table", { class: "ranking", "data-testid": "ranking" }, caption, make("thead", {}, heading), body);
  const more = make("button", { type: "button", class: "text-button", "data-testid": "ranking-more", onclick: () => show(body.children.length + MORE) });
  const element = make("div", { class: "ranking-scroller", hidden: true, tabindex: "0", role: "region", "aria-label": "Heads in order" }, table, more);
  host.append(element);
  let ranked = [];
  let current = null;

  const rowFor = ({ head, estimate }) => {
    const { layer, head: own, place } = numbers.heads[head];
    const choose = make("button", { type: "button", class: "head-link", "data-testid": `rank-${place}-${own}`, onclick: () => store.set({ at: head }) }, `layer ${layer}, head ${own}`);
    const bar = make("span", { class: "ranking-bar" });
    bar.style.width = current.scale ? `${(100 * Math.abs(estimate.mean)) / current.scale.peak}%` : "0";
    bar.toggleAttribute("data-negative", estimate.mean < 0);
    const isDifference = current.state.run === DIFFERENCE;
    const isClear = current.scale && isDifference && numbers.isClear(current.scale.quantity, head);
    const row = make("tr", { "data-head": head, "data-clear": Boolean(isClear) }, make("th", { scope: "row" }, choose),
      make("td", { class: "number" }, current.scale ? withError(estimate, isDifference) : ""), make("td", { class: "ranking-bars" }, bar), make("td", {}, typesOf(numbers, current.state, head)));
    row.toggleAttribute("data-chosen", head === store.get().at);
    return row;
  };

  const show = (count) => {
    const from = body.children.length;
    body.append(...ranked.slice(from, count).map(rowFor));
    more.hidden = count >= ranked.length;
    more.textContent = `Show ${Math.min(MORE, ranked.length - count)} more of ${ranked.length}`;
  };

  return {
    element,
    update(state, scale) {
      current = { state, scale };
      ranked = rankedHeads(numbers, state, scale);
      title.textContent = scale ? capitalised(numbers.quantities[scale.quantity].label) : "";
      caption.textContent = `Heads in order of ${title.textContent || "their type"}`;
      body.replaceChildren();
      show(MORE);
    },
    choose(at) {
      for (const row of body.children) row.toggleAttribute("data-chosen", Number(row.dataset.head) === at);
    },
  };
}

function typesOf(numbers, { run }, head) {
  if (run !== DIFFERENCE) return numbers.typeLabel(head, run) ?? "";
  const [before, now] = [0, 1].map((each) => numbers.typeLabel(head, each) ?? "");
  return before === now ? now : `${before} → ${now}`;
}

/** Wanted heads in the order asked for: by size, those of a type together where there are no numbers. */
function rankedHeads(numbers, state, scale) {
  const direction = state.order === "smallest" ? 1 : -1;
  const sizeOf = ({ head, estimate }) => {
    if (!scale) return -direction * numbers.typeNames.indexOf(numbers.type(head, state.run === DIFFERENCE ? 1 : state.run));
    return state.run === DIFFERENCE ? Math.abs(estimate.mean) : estimate.mean;
  };
  return numbers.heads.map((_, head) => ({ head, estimate: scale ? numbers.estimate(scale.quantity, head, state.run) : { mean: 0, error: NaN } }))
    .filter(({ head, estimate }) => Number.isFinite(estimate.mean) && isWanted(numbers, state, head))
    .sort((one, other) => direction * (sizeOf(one) - sizeOf(other)) || one.head - other.head);
}

