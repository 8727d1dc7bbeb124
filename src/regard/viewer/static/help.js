// The help dialog: keys, and how exact the numbers are.

import {make} from "./dom.js";
import {KEY_TABLE} from "./keyboard.js";

/** The dialog; `open(notes)` shows it with a sentence about how the weights of each scene are stored. */
export function createHelp(host) {
  const stored = make("div", { class: "help-notes" });
  const rows = KEY_TABLE.map(([keys, meaning]) => make("tr", {}, make("th", { scope: "row" }, ...keyCaps(keys)), make("td", {}, meaning)));
  const table = make("table", { class: "help-keys" }, make("tbody", {}, ...rows));
  const close = make("button", { type: "button", class: "text-button", "data-testid": "help-close", onclick: () => dialog.close() }, "Close");
  const dialog = make("dialog", { class: "help", "aria-labelledby": "help-title", "data-testid": "help-dialog" },
    make("div", { class: "help-head" }, make("h2", { id: "help-title" }, "How to read this page"), close),
    make("p", {}, "Each row of a map is a query: its weights say which keys it attends to. Darker on light ground, or brighter on dark, is more."),
    make("h3", {}, "Numbers"), stored, make("h3", {}, "Keys"), table);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  host.append(dialog);
  return {
    open(notes) {
      stored.replaceChildren(...notes.map((note) => make("p", {}, note)));
      if (!dialog.open) dialog.showModal();
    },
  };
}

function keyCaps(keys) {
  return keys.split(" ").map((key) => (key === "–" ? make("span", {}, "–") : make("kbd", {}, key)));
}
