// The steps of a generation as a slider: how the attention grew token by token.

import { stepCount } from "../data/frame.js";
import { icon, make } from "../drawing/elements.js";
import { visibleLabel } from "../drawing/labels.js";
import { leastStep } from "../state/state.js";

const STEP_PAUSE = 650;

/** The slider: `update(frame, state)` shows a state, `destroy()` takes it away. */
export function createStepSlider(host, context) {
  const slider = new StepSlider(host, context);
  return { update: (_frame, state) => slider.update(state), destroy: () => slider.destroy() };
}

class StepSlider {
  constructor(host, context) {
    this.context = context;
    this.timer = null;
    this.reducedMotion = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)");
    this.play = make("button", { type: "button", class: "slider-play", "data-testid": "step-play", onclick: () => this.press() });
    this.range = make("input", { type: "range", min: 0, step: 1, class: "slider-range", "aria-label": "Step of the generation", "data-testid": "step-slider" });
    this.range.addEventListener("input", () => this.choose(Number(this.range.value)));
    this.range.addEventListener("keydown", (event) => event.key.startsWith("Arrow") && this.stop());
    this.count = make("span", { class: "slider-count" });
    this.token = make("bdi", { class: "slider-token" });
    this.legend = make("span", { class: "slider-legend" }, "written by the model");
    this.element = make("div", { class: "slider", role: "group", "aria-label": "Generation" }, this.play, this.range, this.count, this.token, this.legend);
    host.append(this.element);
    this.update(context.store.get());
  }

  destroy() {
    this.stop();
    this.element.remove();
  }

  update(state) {
    const count = stepCount(this.context.scene, state.part);
    this.element.hidden = count === 0 || state.view === "map"; // the map has all steps
    if (count === 0) return this.stop();
    const step = Math.min(state.step ?? count, count);
    this.range.min = leastStep(this.context.scene);
    this.range.max = count;
    this.legend.hidden = this.context.scene.steps.prompt === 0; // where all is written, nothing is marked
    this.range.value = step;
    const token = this.tokenOf(state, step);
    this.count.textContent = step === 0 ? "the prompt" : `step ${step} of ${count}`;
    this.token.textContent = token ?? "";
    this.range.setAttribute("aria-valuetext", token === null ? "the prompt" : `step ${step} of ${count}, ${token}`);
    if (this.timer && step === count) this.stop();
    this.showButton();
  }

  // Each step adds one token; the last one in sight is the newest.
  tokenOf(state, step) {
    const { scene } = this.context;
    if (step === 0) return null;
    const site = scene.sites[scene.parts[state.part].sites[0]];
    const token = scene.sequences[site.query_sequence].tokens[scene.steps.prompt + step - 1];
    return token === undefined ? null : visibleLabel(token);
  }

  choose(step) {
    const count = Number(this.range.max);
    this.context.store.set({ step: step >= count ? null : Math.max(Number(this.range.min), step) });
  }

  // With reduced motion asked for, nothing runs by itself: each press makes one step.
  press() {
    const isAtEnd = Number(this.range.value) >= Number(this.range.max);
    if (this.timer) return this.stop();
    if (this.reducedMotion?.matches) return this.choose(isAtEnd ? 0 : Number(this.range.value) + 1);
    if (isAtEnd) this.choose(0);
    this.timer = setInterval(() => this.choose(Number(this.range.value) + 1), STEP_PAUSE);
    return this.showButton();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.showButton();
  }

  showButton() {
    const isStill = this.reducedMotion?.matches;
    const label = this.timer ? "Pause" : isStill ? "Next step" : "Play the generation";
    if (this.play.getAttribute("aria-label") === label) return;
    this.play.setAttribute("aria-label", label);
    this.play.title = `${label} (g one step on, G one back)`;
    this.play.replaceChildren(icon(this.timer ? "pause" : isStill ? "next" : "play"));
  }
}
