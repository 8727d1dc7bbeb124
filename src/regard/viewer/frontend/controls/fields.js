// The small parts that the control bar is made of.

import { icon, make } from "../drawing/elements.js";

/** A labelled select; `fill(options, value)` sets [{value, text, problem}]. */
export function createSelect(testId, label, onChange) {
  const select = make("select", { "data-testid": testId, "aria-label": label, title: label, onchange: () => onChange(select.value) });
  let filledKey = "";
  return {
    element: make("div", { class: "field" }, select),
    select,
    fill(options, value) {
      const key = JSON.stringify(options);
      if (key !== filledKey) select.replaceChildren(...options.map(optionOf));
      filledKey = key;
      select.value = String(value);
    },
    show(isShown) {
      this.element.hidden = !isShown;
    },
    setProblem(problem) {
      select.disabled = problem !== null;
      select.title = problem ?? label;
    },
  };
}

function optionOf({ value, text, problem }) {
  return make("option", { value, disabled: Boolean(problem), title: problem }, problem ? `${text} (${problem})` : text);
}

/** A switch between two named states, both of which can be read; one click flips it. */
export function createToggle(testId, label, [first, second], onFlip, prefix = "") {
  const parts = [first, second].map((text) => make("span", { class: "segment" }, text));
  const prefixes = prefix ? [make("span", { class: "toggle-prefix" }, prefix)] : [];
  const button = make("button", {
    type: "button", class: "toggle", role: "switch", "aria-label": label, "data-testid": testId, onclick: onFlip,
  }, ...prefixes, make("span", { class: "segments" }, ...parts));
  return {
    element: button,
    set(isSecond, problem = null) {
      button.setAttribute("aria-checked", String(isSecond));
      parts[0].toggleAttribute("data-on", !isSecond);
      parts[1].toggleAttribute("data-on", isSecond);
      button.toggleAttribute("disabled", problem !== null);
      button.title = problem ?? label;
    },
  };
}

/** A button with an icon. */
export function createIconButton(testId, name, label, onPress) {
  return make("button", {
    type: "button", class: "icon-button", "data-testid": testId, "aria-label": label, title: label, onclick: onPress,
  }, icon(name));
}
