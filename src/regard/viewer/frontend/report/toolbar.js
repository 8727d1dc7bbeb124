// What the grid is coloured by, which run, in which order, and the types of heads that are shown.

import { typeTitle } from "../data/head_types.js";
import { make } from "../drawing/elements.js";
import { capitalised } from "../drawing/labels.js";
import { DIFFERENCE } from "./collection.js";
import { ONLY, ORDERS, TYPE } from "./state.js";

/** The toolbar; `update(state)` shows a state, `legend` is where the colour scale stands. */
export function createToolbar(host, numbers, store) {
  const set = (patch) => store.set(patch);
  const by = groupedSelect("report-by", "Colour the heads by", quantityGroups(numbers), (value) => set({ by: value }));
  const runs = numbers.isPair ? [[String(DIFFERENCE), "Difference"], ...numbers.runs.map((run) => [String(run.place), run.name])] : [];
  const run = plainSelect("report-run", "Run", runs, (value) => set({ run: value === DIFFERENCE ? value : Number(value) }));
  const order = plainSelect("report-order", "Order", Object.entries(ORDERS), (value) => set({ order: value }));
  const only = plainSelect("report-only", "Which heads", Object.entries(ONLY), (value) => set({ only: value }));
  run.element.hidden = !numbers.isPair;
  only.element.hidden = !numbers.isPair;
  const legend = make("div", { class: "report-legend" });
  const meaning = make("p", { class: "report-meaning", "data-testid": "report-meaning" });
  const chips = numbers.hasTypes ? createChips(numbers, store) : null;
  host.append(make("div", { class: "report-bar", role: "toolbar", "aria-label": "What is shown" }, by.element, run.element, order.element, only.element, legend));
  host.append(meaning);
  if (chips) host.append(chips.element);
  return {
    legend,
    meaning: (text) => { meaning.textContent = text; },
    update(state) {
      by.select.value = state.by;
      run.select.value = String(state.run);
      order.select.value = state.order;
      only.select.value = state.only;
      chips?.update(state);
    },
  };
}

/** Options of the numbers by the statistic they are from. */
function quantityGroups(numbers) {
  const groups = new Map();
  if (numbers.hasTypes) groups.set("", [[TYPE, "Type of head"]]);
  for (const { key, group, label } of numbers.quantities) {
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group).push([key, label === group ? capitalised(label) : label]);
  }
  return groups;
}

function groupedSelect(testId, label, groups, onChange) {
  const options = [...groups].flatMap(([group, entries]) => (group ? [make("optgroup", { label: capitalised(group) }, ...entries.map(optionOf))] : entries.map(optionOf)));
  return selectOf(testId, label, options, onChange);
}

function plainSelect(testId, label, entries, onChange) {
  return selectOf(testId, label, entries.map(optionOf), onChange);
}

function optionOf([value, text]) {
  return make("option", { value }, text);
}

function selectOf(testId, label, options, onChange) {
  const select = make("select", { "data-testid": testId, "aria-label": label, title: label, onchange: () => onChange(select.value) }, ...options);
  return { select, element: make("div", { class: "field" }, select) };
}

/** A button for each type with the number of its heads; several may be on. */
function createChips(numbers, store) {
  const buttons = numbers.typeNames.map((type) => {
    const count = make("span", { class: "chip-count" });
    const sign = make("span", { class: "type-sign", "data-type": type, "aria-hidden": "true" }, numbers.manifest.types[type]);
    const flip = () => {
      const { types } = store.get();
      store.set({ types: types.includes(type) ? types.filter((other) => other !== type) : [...types, type] });
    };
    return { type, count, button: make("button", { type: "button", class: "type-chip", "data-testid": `type-${type}`, title: typeTitle(type), onclick: flip }, sign, type, count) };
  });
  const element = make("div", { class: "type-chips", role: "group", "aria-label": "Types of heads" }, ...buttons.map(({ button }) => button));
  return {
    element,
    update({ types, run }) {
      const shown = run === DIFFERENCE ? 1 : run;
      for (const { type, count, button } of buttons) {
        const total = numbers.heads.reduce((sum, _, head) => sum + (numbers.type(head, shown) === type ? 1 : 0), 0);
        const before = run === DIFFERENCE ? numbers.heads.reduce((sum, _, head) => sum + (numbers.type(head, 0) === type ? 1 : 0), 0) : total;
        count.textContent = before === total ? String(total) : `${before} → ${total}`;
        button.hidden = total === 0 && before === 0;
        button.setAttribute("aria-pressed", String(types.includes(type)));
      }
    },
  };
}
