// Everything that is known of one head.

import { typeTitle } from "../data/head_types.js";
import { inkOnWeight, weightColour } from "../drawing/colour.js";
import { make } from "../drawing/elements.js";
import { capitalised } from "../drawing/labels.js";
import { distanceProfile, histogram, typeShares } from "./charts.js";
import { DIFFERENCE, rowOf } from "./collection.js";
import { exampleList } from "./examples.js";
import { briefNumber, counted, withError, withoutError } from "./numbers.js";

/** The panel; `update(state, colours)` shows the chosen head. */
export function createHeadPanel(host, numbers, actions) {
  const content = make("div", { class: "panel-content", "data-testid": "head-panel" });
  host.append(content);
  let round = 0;
  return {
    element: host,
    async update(state, colours) {
      round += 1;
      const mine = round;
      const shown = state.run === DIFFERENCE ? [0, 1] : [state.run];
      const details = await Promise.all(shown.map((run) => numbers.detail(state.at, run)));
      const lists = await Promise.all(shown.map((run, index) => examplesOf(numbers, state, run, details[index], actions)));
      if (mine !== round) return; // another head was chosen meanwhile
      content.replaceChildren(...sections(numbers, state, colours, shown, details, lists));
      content.dataset.head = String(state.at);
    },
  };
}

function examplesOf(numbers, state, run, detail, actions) {
  return Promise.all(detail.strongest.map(async ({ label, heads }) => ({ label, list: await exampleList(numbers, state.at, run, capitalised(label), heads, detail.own, actions) })));
}

function sections(numbers, state, colours, shown, details, lists) {
  const nameOf = (run) => (shown.length > 1 ? numbers.runs[run].name : "");
  const own = details[0].own;
  return [
    heading(numbers, state, shown),
    make("div", { class: "panel-sections" },
      make("div", { class: "panel-column" },
        ...profileSection(shown, details, nameOf),
        ...typeSection(numbers, shown, details, nameOf),
        ...binSections(shown, details, nameOf),
        ...lists.flatMap((each, index) => each.map(({ label, list }) => section(`${capitalised(label)}${shown.length > 1 ? `, ${nameOf(shown[index])}` : ""}`, list))),
        ...noteSection(numbers, shown, lists)),
      make("div", { class: "panel-column" },
        numberTable(numbers, state, shown),
        ...betweenSections(details, own, colours, state))),
  ];
}

function section(words, ...children) {
  return make("section", { class: "panel-section" }, make("h3", { class: "panel-title" }, words), ...children);
}

function heading(numbers, { at }, shown) {
  const { layer, head, site } = numbers.heads[at];
  const labels = shown.map((run) => numbers.typeLabel(at, run)).filter(Boolean);
  const chips = [...new Set(labels)].map((label) => make("span", { class: "type-label", title: typeTitle(label), "data-type": label.split(",")[0] }, label));
  const arrows = chips.length > 1 ? [chips[0], make("span", { "aria-label": "becomes" }, "→"), chips[1]] : chips;
  const meaning = labels.length ? [make("p", { class: "quiet" }, `${capitalised(typeTitle(labels.at(-1)))}.`)] : [];
  return make("header", { class: "panel-head" }, make("h2", { class: "panel-name", "data-testid": "head-name" }, `Layer ${layer}, head ${head}`), make("p", { class: "panel-types", "data-testid": "head-types" }, ...arrows), make("p", { class: "panel-site" }, site), ...meaning);
}

/** Every number of the head; of two runs both, and their difference. */
function numberTable(numbers, state, shown) {
  const isDifference = state.run === DIFFERENCE;
  const columns = isDifference ? [...shown.map((each) => numbers.runs[each].name), "difference"] : ["mean ± error", "rows in texts"];
  const groups = new Map();
  numbers.quantities.forEach((quantity, place) => {
    const row = numberRow(numbers, state, shown, quantity, place);
    if (row) groups.set(quantity.group, [...(groups.get(quantity.group) ?? []), row]);
  });
  const bodies = [...groups].map(([group, rows]) => make("tbody", {}, make("tr", { class: "numbers-group" }, make("th", { scope: "rowgroup", colspan: columns.length + 1 }, capitalised(group))), ...rows));
  const head = make("tr", {}, make("td", {}), ...columns.map((name) => make("th", { scope: "col", class: "number" }, name)));
  const table = make("table", { class: "numbers", "data-testid": "numbers" }, make("caption", { class: "unseen" }, "Numbers of the head with their standard errors"), make("thead", {}, head), ...bodies);
  return section("Numbers", make("div", { class: "number-scroller", tabindex: "0", role: "region", "aria-label": "Numbers of the head" }, table));
}

function numberRow(numbers, { at, run }, shown, { key, label, meaning }, quantity) {
  const estimates = shown.map((each) => numbers.estimate(quantity, at, each));
  if (estimates.every(({ mean }) => !Number.isFinite(mean))) return null;
  const cells = estimates.map((estimate) => make("td", { class: "number", title: run === DIFFERENCE ? withError(estimate) : null }, run === DIFFERENCE ? withoutError(estimate) : withError(estimate)));
  const last = run === DIFFERENCE ? differenceCell(numbers, quantity, at) : make("td", { class: "quiet number" }, overText(estimates[0]));
  return make("tr", { title: meaning, "data-quantity": key }, make("th", { scope: "row" }, label), ...cells, last);
}

function differenceCell(numbers, quantity, at) {
  const isClear = numbers.isClear(quantity, at);
  const hint = isClear ? "more than chance gives in any of the heads" : isClear === null ? "no error is known" : "may be chance";
  return make("td", { class: "number", "data-clear": Boolean(isClear), title: hint }, withError(numbers.estimate(quantity, at, DIFFERENCE), true), ...(isClear ? [make("span", { class: "clear-mark", role: "img", "aria-label": "clear" }, " ●")] : []));
}

function overText({ number, examples }) {
  if (!Number.isFinite(number)) return "";
  return number === examples ? counted(examples, "text") : `${Math.round(number).toLocaleString("en-GB")} in ${examples.toLocaleString("en-GB")}`;
}

function typeSection(numbers, shown, details, nameOf) {
  if (!details.every(({ types }) => types)) return [];
  const series = shown.map((run, index) => ({ name: nameOf(run), shares: [...rowOf(details[index].types, details[index].own)] }));
  return [section("Type in single texts", typeShares(numbers.typeNames, numbers.manifest.types, series))];
}

function binSections(shown, details, nameOf) {
  return details[0].bins.flatMap((bins, place) => {
    const others = details.map((detail) => detail.bins[place]);
    const isAlike = others.every((other) => other && other.width === bins.width && other.low === bins.low);
    const drawn = isAlike ? others : [bins];
    const series = drawn.map(({ shares, quantiles }, index) => ({ name: nameOf(shown[index]), shares: rowOf(shares, details[index].own), quantiles: [...rowOf(quantiles, details[index].own)] }));
    if (!series.every(({ quantiles }) => quantiles.every(Number.isFinite))) return [];
    return [section(bins.label === "entropy" ? "Entropy of rows" : capitalised(bins.label), histogram(bins.label, bins, series, bins.label === "entropy" ? " nats" : ""))];
  });
}

function profileSection(shown, details, nameOf) {
  if (!details.every(({ profile }) => profile)) return [];
  const series = details.map(({ profile, own }, index) => ({ name: nameOf(shown[index]), offset: profile.offset, width: profile.width, share: rowOf(profile.share, own), even: rowOf(profile.even, own) }));
  return [section("Where it looks, by distance", distanceProfile(series))];
}

/** Weight between categories of tokens, or what changed of it. */
function betweenSections(details, own, colours, { run }) {
  return details[0].between.map((between, place) => {
    const { categories } = between;
    const size = categories.length;
    const rows = details.map((detail) => detail.between[place]).map(({ mean, error, number }) => ({ mean: rowOf(mean, own), error: rowOf(error, own), number: rowOf(number, own) }));
    const isDifference = run === DIFFERENCE;
    const valueAt = (at) => (isDifference ? { mean: rows[1].mean[at] - rows[0].mean[at], error: Math.hypot(rows[0].error[at], rows[1].error[at]) } : { mean: rows[0].mean[at], error: rows[0].error[at] });
    const values = Array.from({ length: size * size }, (_, at) => valueAt(at));
    const peak = isDifference ? Math.max(...values.map(({ mean }) => Math.abs(mean) || 0), 1e-9) : 1;
    const body = categories.map((from, row) => make("tr", {}, make("th", { scope: "row", title: `over ${Math.round(rows[0].number[row]).toLocaleString("en-GB")} tokens` }, from),
      ...categories.map((to, column) => betweenCell(values[row * size + column], `${from} → ${to}`, peak, isDifference, colours))));
    const head = make("tr", {}, make("th", { scope: "col" }, "from"), ...categories.map((name) => make("th", { scope: "col" }, name)));
    const table = make("table", { class: "between", "data-testid": "between" }, make("caption", { class: "unseen" }, "Mean weight from each category of tokens to each"), make("thead", {}, head), make("tbody", {}, ...body));
    return section(isDifference ? "Between categories, difference" : "Between categories", make("div", { class: "number-scroller", tabindex: "0", role: "region", "aria-label": "Between categories" }, table));
  });
}

function betweenCell(value, name, peak, signed, colours) {
  if (!Number.isFinite(value.mean)) return make("td", { class: "number", title: `${name}: none` }, "–");
  const cell = make("td", { class: "number", title: `${name}: ${withError(value, signed)}` }, briefNumber(value.mean, peak));
  cell.style.background = weightColour(colours, value.mean, peak, "linear", signed);
  cell.style.color = inkOnWeight(colours, value.mean, peak, "linear", signed);
  return cell;
}

function noteSection(numbers, shown, lists) {
  if (lists.every((each) => each.length === 0)) return [];
  const notes = shown.map((run) => numbers.runs[run]).filter(({ scenes, note }) => note || Object.keys(scenes).length === 0)
    .map(({ note }) => note || "The attention of these texts is not in this page: regard report FOLDER --model MODEL puts it there.");
  return [...new Set(notes)].map((note) => make("p", { class: "quiet" }, note));
}

