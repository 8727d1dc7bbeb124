// How to read the report.

import { HEAD_TYPES } from "../data/head_types.js";
import { make } from "../drawing/elements.js";

const KEYS = [
  ["← ↑ → ↓", "another head, in the grid"],
  ["Home End", "first and last head of a layer"],
  ["t", "light, dark, as the system"],
  ["?", "this help"],
];

/** The dialog; `open()` shows it. */
export function createReportHelp(host, numbers) {
  const close = make("button", { type: "button", class: "text-button", "data-testid": "help-close", onclick: () => dialog.close() }, "Close");
  const keys = KEYS.map(([key, meaning]) => make("tr", {}, make("th", { scope: "row" }, ...key.split(" ").map((cap) => make("kbd", {}, cap))), make("td", {}, meaning)));
  const quantities = numbers.quantities.flatMap(({ label, group, meaning }) => [make("dt", {}, label), make("dd", {}, `${meaning} (${group})`)]);
  const types = Object.entries(HEAD_TYPES).flatMap(([type, meaning]) => [make("dt", {}, type), make("dd", {}, meaning)]);
  const pair = numbers.isPair ? [make("h3", {}, "Two runs"), make("p", {}, `A difference is that of the second run less the first. It is called clear (●) where it is more than ${numbers.manifest.clear.toFixed(2)} of its standard errors: in ${numbers.heads.length} heads that do not differ, chance brings even one such difference in 5 % of all cases. The error takes the texts of both runs as drawn apart; of the same texts it is smaller.`)] : [];
  const dialog = make("dialog", { class: "help", "aria-labelledby": "report-help-title", "data-testid": "help-dialog" },
    make("div", { class: "help-head" }, make("h2", { id: "report-help-title" }, "How to read this page"), close),
    make("p", {}, "Each cell of the grid is a head. Choose one to see its numbers, where it looks, and the texts in which it is strongest."),
    make("h3", {}, "Errors"), make("p", {}, "± is the standard error of a mean. It comes from how much texts differ, not from the number of tokens: the rows of one text are alike."),
    ...pair, make("h3", {}, "Keys"), make("table", { class: "help-keys" }, make("tbody", {}, ...keys)),
    make("h3", {}, "Numbers"), make("dl", { class: "help-types" }, ...quantities), make("h3", {}, "Types of heads"), make("dl", { class: "help-types" }, ...types));
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  host.append(dialog);
  return { open: () => dialog.open || dialog.showModal() };
}
