// The form of one column: which model, which text or image, and buttons to run it.

import { make } from "../drawing/elements.js";
import { withoutControls } from "../drawing/labels.js";

const DEFAULT_TOKENS = 24; // to generate, unless said otherwise

/**
 * Builds the form. `catalogue` is {models, limits, traces}; `actions` has look, image, generate, translate, open, cancel and edited.
 * `suffix` is put behind every test id.
 */
export function createLiveForm(catalogue, suffix, actions) {
  return new LiveForm(catalogue, suffix, actions);
}

class LiveForm {
  constructor(catalogue, suffix, actions) {
    this.catalogue = catalogue;
    this.actions = actions;
    this.suffix = suffix;
    this.isTyped = false; // the text, by the user
    const { limits } = catalogue;
    this.select = make("select", { ...this.attributes("model"), class: "live-select", onchange: () => this.choose() }, ...this.groups());
    this.text = make("textarea", { ...this.attributes("text"), class: "live-text", rows: 2, spellcheck: "false", placeholder: "Type a text", onkeydown: (event) => this.pressKey(event), oninput: () => this.edit() });
    this.file = make("input", { ...this.attributes("image"), class: "live-file", type: "file", accept: "image/png,image/jpeg", onchange: () => this.actions.edited() });
    this.tokens = make("input", { ...this.attributes("tokens"), class: "live-number", type: "number", min: 1, max: limits.new_tokens, value: Math.min(DEFAULT_TOKENS, limits.new_tokens) });
    this.runButton = make("button", { class: "live-button live-main", type: "submit", "data-testid": `live-run${suffix}` }, "Look");
    this.generateButton = make("button", { class: "live-button", type: "button", "data-testid": `live-generate${suffix}`, onclick: () => this.generate() }, "Generate");
    this.cancelButton = make("button", { class: "live-button", type: "button", hidden: true, "data-testid": `live-cancel${suffix}`, onclick: () => this.actions.cancel() }, "Cancel");
    this.progress = make("p", { class: "live-progress", role: "status", "data-testid": `live-progress${suffix}` });
    this.error = make("p", { class: "live-error", role: "alert", hidden: true, "data-testid": `live-error${suffix}` });
    this.build();
  }

  attributes(name) {
    const id = `live-${name}${this.suffix}`;
    return { id, "data-testid": id };
  }

  build() {
    const field = (name, label, input) => make("div", { class: `live-field live-field-${name}` }, make("label", { for: input.id, class: "live-label" }, label), input);
    this.fields = {
      text: field("text", "Text", this.text),
      image: field("image", "Image", this.file),
      tokens: field("tokens", "New tokens", this.tokens),
    };
    this.buttons = make("div", { class: "live-buttons" }, this.runButton, this.fields.tokens, this.generateButton, this.cancelButton);
    const row = make("div", { class: "live-row" }, field("model", this.menuName(), this.select), this.fields.text, this.fields.image, this.buttons);
    const submit = (event) => {
      event.preventDefault();
      this.run();
    };
    this.element = make("form", { class: "live-form", "aria-label": this.suffix ? "Second input" : "Input", onsubmit: submit }, row, this.progress, this.error);
  }

  menuName() {
    const { models, traces } = this.catalogue;
    if (!models.length) return "Trace";
    return traces.length ? "Model or trace" : "Model";
  }

  groups() {
    const { models, traces } = this.catalogue;
    const option = (value, text) => make("option", { value }, text);
    const groups = [];
    if (models.length) groups.push(make("optgroup", { label: "Models" }, ...models.map((model, i) => option(`model ${i}`, model.title))));
    if (traces.length) groups.push(make("optgroup", { label: "Saved traces" }, ...traces.map((trace, i) => option(`trace ${i}`, trace.title))));
    return groups;
  }

  /** The model that is chosen, or null where it is a saved trace. */
  model() {
    const [kind, number] = this.select.value.split(" ");
    return kind === "model" ? this.catalogue.models[Number(number)] : null;
  }

  /** What the form has now, as an input. */
  current() {
    const [model, trace] = [this.model(), this.trace()];
    if (trace) return { trace: trace.title };
    return model?.kind === "image" ? { model: model.name, file: this.file.files[0] } : { model: model?.name, text: this.text.value };
  }

  /** Fills in what a link asks for and runs it. */
  runInput({ model, trace, text, tokens }) {
    const { models, traces } = this.catalogue;
    const number = trace === undefined ? models.findIndex((offer) => offer.name === model) : traces.findIndex((offer) => offer.title === trace);
    if (number < 0) return this.showError(`The link is to ${trace ?? model}, which is not here.`);
    this.select.value = `${trace === undefined ? "model" : "trace"} ${number}`;
    const opened = this.choose();
    if (trace !== undefined || this.model().kind === "image") return opened;
    if (text !== undefined) this.text.value = text;
    if (tokens === undefined || !this.model().generates) return this.run();
    this.tokens.value = tokens;
    return this.generate();
  }

  trace() {
    const [kind, number] = this.select.value.split(" ");
    return kind === "trace" ? this.catalogue.traces[Number(number)] : null;
  }

  /** Shows the fields of what is chosen; a saved trace opens at once. */
  choose() {
    const model = this.model();
    this.fields.text.hidden = model?.kind !== "text";
    this.fields.image.hidden = model?.kind !== "image";
    this.fields.tokens.hidden = !model?.generates;
    this.generateButton.hidden = !model?.generates;
    this.runButton.hidden = model === null;
    this.runButton.textContent = model?.translates ? "Translate" : "Look";
    if (model?.kind === "text") this.putExample(model.example);
    this.showError("");
    this.actions.edited();
    const trace = this.trace();
    return trace ? this.actions.open(trace) : null;
  }

  /** The example of a model, even an empty one, takes the place of another's; what was typed stays. */
  putExample(example) {
    const isExample = !this.isTyped && this.catalogue.models.some((model) => model.example === this.text.value);
    if (this.text.value !== "" && !isExample) return;
    this.text.value = example;
    this.isTyped = false;
  }

  edit() {
    this.isTyped = true;
    this.actions.edited();
  }

  pressKey(event) {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    this.run();
  }

  run() {
    const model = this.model();
    if (!model) return null;
    if (model.kind === "image") {
      const file = this.file.files[0];
      return file ? this.actions.image(model, file) : this.showError("Choose a PNG or JPEG file first.");
    }
    if (this.text.value.trim() === "") return this.showError("Type a text first.");
    return model.translates ? this.actions.translate(model, this.text.value) : this.actions.look(model, this.text.value);
  }

  generate() {
    const model = this.model();
    const count = Number(this.tokens.value);
    const limit = this.catalogue.limits.new_tokens;
    if (this.text.value.trim() === "") return this.showError("Type a text to go on from.");
    if (!Number.isInteger(count) || count < 1 || count > limit) return this.showError(`New tokens: a number from 1 to ${limit}.`);
    return this.actions.generate(model, this.text.value, count);
  }

  setBusy(text) {
    const isBusy = text !== null;
    this.element.toggleAttribute("data-busy", isBusy);
    this.cancelButton.hidden = !isBusy;
    this.progress.textContent = text ?? "";
    if (isBusy) this.showError("");
  }

  showProgress(text) {
    this.progress.textContent = withoutControls(text);
  }

  showError(text) {
    this.error.textContent = withoutControls(text);
    this.error.hidden = text === "";
  }
}
