// One column or two, side by side: two models on a text, or two texts.

import { make } from "../drawing/elements.js";
import { SHARED_KEYS } from "../state/state.js";
import { linkStores } from "../state/store.js";

/** Puts a first column into an element, with a switch that opens a second; `build(suffix, peers)` makes one. Buttons for files stand in `actionHost`. */
export function createComparison(root, actionHost, build) {
  return new Comparison(root, actionHost, build);
}

class Comparison {
  constructor(root, actionHost, build) {
    this.root = root;
    this.actionHost = actionHost;
    this.controlHost = make("section", { class: "control-host", "aria-label": "Controls" });
    root.before(this.controlHost);
    this.build = build;
    this.second = null;
    this.unlinkStores = null;
    this.tabs = root.parentElement?.querySelector(".top-tabs") ?? null;
    this.button = make("button", { type: "button", class: "live-button live-compare", "aria-pressed": "false", "data-testid": "live-compare", title: "Show a second input beside this one", onclick: () => this.toggle() }, "Compare");
    this.first = build("", this.peers());
    this.first.form.buttons.append(this.button);
    root.append(this.first.element);
  }

  /** The columns that are open. */
  all() {
    return this.second ? [this.first, this.second] : [this.first];
  }

  /** What a column needs of the other. */
  peers() {
    return {
      options: (column) => this.options(column),
      opened: () => this.link(),
      closing: () => this.unlink(),
    };
  }

  /** The first pane has the controls; a second has some only where there is no first. */
  options(column) {
    if (column === this.second) return { isSecond: Boolean(this.first.pane), isTitled: true };
    return { tabs: this.tabs, actionHost: this.actionHost, controls: this.second ? this.controlHost : null, isTitled: true };
  }

  /** Controls stand above both columns, or in the one that there is. */
  placeControls() {
    const pane = this.first.pane;
    if (!pane) return;
    const { element } = pane.controls();
    if (this.second) this.controlHost.append(element);
    else pane.element.querySelector(".pane-body").before(element);
  }

  toggle() {
    if (this.second) this.closeSecond();
    else this.openSecond();
    this.placeControls();
    this.button.setAttribute("aria-pressed", String(this.second !== null));
    this.root.toggleAttribute("data-pair", this.second !== null);
  }

  openSecond() {
    this.second = this.build("-2", this.peers());
    this.root.append(this.second.element);
    const { form } = this.second;
    form.select.value = this.otherChoice();
    form.text.value = this.first.form.text.value;
    form.choose();
    form.select.focus();
  }

  /** Another model where there is one: the text is then the same; else the same model. */
  otherChoice() {
    const { select } = this.first.form;
    const model = this.first.form.model();
    const otherOption = [...select.options].find((option) => {
      const number = Number(option.value.split(" ")[1]);
      const other = option.value.startsWith("model") ? this.first.catalogue.models[number] : null;
      return option.value !== select.value && (model === null ? other === null : other?.kind === model.kind);
    });
    return otherOption?.value ?? select.value;
  }

  closeSecond() {
    this.second.destroy();
    this.second = null;
    this.button.focus();
  }

  /** Two panes are shown alike: what is chosen in one is chosen in the other. */
  link() {
    this.unlink();
    const [first, second] = [this.first?.pane, this.second?.pane];
    if (!first || !second) return;
    const state = first.store.get();
    second.store.set(Object.fromEntries(SHARED_KEYS.map((key) => [key, state[key]])));
    this.unlinkStores = linkStores(first.store, second.store, SHARED_KEYS);
  }

  unlink() {
    this.unlinkStores?.();
    this.unlinkStores = null;
  }
}
