// The help dialog: keys, and how exact the numbers are.

import { HEAD_TYPES } from "../data/head_types.js";
import { make } from "../drawing/elements.js";
import { KEY_TABLE } from "./keyboard.js";

/** The dialog; `open(scenes)` shows it with how the weights of each scene are stored, and what applies to them. */
export function createHelp(host) {
  const notes = make("div", { class: "help-notes" });
  const body = make("tbody", {});
  const table = make("table", { class: "help-keys" }, body);
  const types = make("dl", { class: "help-types", "data-testid": "help-types" },
    ...Object.entries(HEAD_TYPES).flatMap(([type, meaning]) => [make("dt", {}, type), make("dd", {}, meaning)]));
  const close = make("button", { type: "button", class: "text-button", "data-testid": "help-close", onclick: () => dialog.close() }, "Close");
  const dialog = make("dialog", { class: "help", "aria-labelledby": "help-title", "data-testid": "help-dialog" },
    make("div", { class: "help-head" }, make("h2", { id: "help-title" }, "How to read this page"), close),
    make("p", {}, "Each row of a map is a query: its weights say which keys it attends to. Darker on light ground, or brighter on dark, is more."),
    make("h3", {}, "Numbers"), notes, make("h3", {}, "Keys"), table,
    make("h3", {}, "Types of heads"), types);
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  host.append(dialog);
  return {
    open(scenes) {
      notes.replaceChildren(...scenes.map((scene) => make("p", {}, scene.note)));
      const rows = KEY_TABLE.filter(([, , applies]) => !applies || scenes.some(applies));
      body.replaceChildren(...rows.map(([keys, meaning]) => make("tr", {}, make("th", { scope: "row" }, ...keyCaps(keys)), make("td", {}, meaning))));
      if (!dialog.open) dialog.showModal();
    },
  };
}

function keyCaps(keys) {
  return keys.split(" ").map((key) => (key === "–" ? make("span", {}, "–") : make("kbd", {}, key)));
}
