// What a model could have written instead: the most probable tokens of each step of a generation.

import { make } from "../drawing/elements.js";
import { visibleLabel } from "../drawing/labels.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

/** The panel: `show(steps)` has {token, likely: [[token, probability]]} of each step so far, none hides it. */
export function createLikely(suffix) {
  return new Likely(suffix);
}

class Likely {
  constructor(suffix) {
    this.suffix = suffix;
    this.steps = [];
    this.chosen = null; // the last one, until another is chosen
    this.written = make("div", { class: "likely-written", role: "group", "aria-label": "Written tokens", "data-scrolls": true });
    this.bars = make("ol", { class: "likely-bars", "data-testid": `live-likely-bars${suffix}` });
    const title = make("span", { class: "live-label" }, "Next token");
    this.element = make("section", { class: "live-likely", hidden: true, "aria-label": "Probabilities of the next token", "data-testid": `live-likely${suffix}` }, title, this.written, this.bars);
    this.written.addEventListener("click", (event) => this.press(event.target.closest("button")));
    this.written.addEventListener("keydown", (event) => this.move(event));
  }

  show(steps) {
    if (steps.length < this.steps.length || steps.length === 0) {
      this.written.replaceChildren();
      this.chosen = null;
    }
    this.steps = [...steps];
    for (let index = this.written.childElementCount; index < steps.length; index += 1) this.written.append(this.button(index));
    this.element.hidden = !steps.some(({ likely }) => likely?.length);
    this.mark();
  }

  button(index) {
    return make("button", { type: "button", class: "likely-token", "data-index": index, "data-testid": `live-likely${this.suffix}-${index}` }, make("bdi", {}, visibleLabel(this.steps[index].token)));
  }

  mark() {
    const index = this.chosen ?? this.steps.length - 1;
    [...this.written.children].forEach((button, place) => {
      button.setAttribute("aria-pressed", String(place === index));
      /** @type {HTMLElement} */ (button).tabIndex = place === index ? 0 : -1;
    });
    const step = this.steps[index];
    this.bars.replaceChildren(...(step?.likely ?? []).map(([token, probability]) => barOf(token, probability, token === step.token)));
  }

  press(button) {
    if (!button) return;
    this.chosen = Number(button.dataset.index);
    this.mark();
  }

  move(event) {
    const step = STEPS[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    const index = Math.max(0, Math.min(this.steps.length - 1, Number(event.target.dataset.index) + step));
    event.preventDefault();
    this.chosen = index;
    this.mark();
    /** @type {HTMLElement} */ (this.written.children[index]).focus();
  }
}

function barOf(token, probability, isWritten) {
  const bar = make("span", { class: "likely-bar", "aria-hidden": "true" });
  bar.style.width = `${Math.round(100 * probability)}%`;
  const share = 100 * probability;
  const name = make("bdi", { class: "likely-name" }, visibleLabel(token));
  return make("li", { class: isWritten ? "is-written" : null }, bar, name, make("span", { class: "likely-share" }, `${share < 0.1 ? "<0.1" : share.toFixed(1)} %`));
}
