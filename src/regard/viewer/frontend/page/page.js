// The page around its panes: theme, address, keys, and what the panes share.

import { createIconButton } from "../controls/fields.js";
import { resolveTheme } from "../drawing/colour.js";
import { icon, make } from "../drawing/elements.js";
import { fragmentOf, isWholeInLink, linkTo, patchOfFragment, readFragment, writeFragment } from "../state/fragment.js";
import { SHARED_KEYS, hasWords, initialState } from "../state/state.js";
import { linkStores } from "../state/store.js";
import { createHelp } from "./help.js";
import { listenToKeys } from "./keyboard.js";
import { createPane } from "./pane.js";
import { createTooltip } from "./tooltip.js";

const THEMES = ["auto", "light", "dark"];
const THEME_NAMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };

export class ViewerPage {
  constructor(root, manifest) {
    this.manifest = manifest;
    this.panes = [];
    this.recent = null; // the pane last used
    this.inputs = () => []; // what a live page was given, for each column
    this.restore = (_fragment) => {};
    this.prefix = () => ""; // what the address says besides the panes
    this.themed = () => {};
    this.theme = "auto";
    this.tooltip = createTooltip(root);
    this.announcer = make("div", { class: "unseen", "aria-live": "polite", "data-testid": "announcer" });
    this.toast = make("div", { class: "toast", hidden: true, "aria-hidden": "true" });
    this.help = createHelp(root);
    this.build(root);
    this.services = {
      tooltip: this.tooltip,
      announce: (text) => this.announce(text),
      changed: () => this.changed(),
      drawn: () => this.drawn(),
      copyLink: () => this.copyLink(),
      openHelp: () => this.openHelp(),
      nextTheme: () => this.nextTheme(),
      scenes: () => this.panes.map((pane) => pane.scene()),
      states: () => this.states(),
      flip: (key, values) => this.flip(key, values),
      setAll: (patch) => this.panes.forEach((pane) => pane.store.set(patch)),
      active: () => this.activePane(),
      columnOf: (store) => this.columnOf(store),
    };
    listenToKeys(() => this.panes, this.services);
    globalThis.matchMedia?.("(prefers-color-scheme: dark)").addEventListener("change", () => this.applyTheme(this.theme));
    window.addEventListener("hashchange", () => this.readAddress());
  }

  build(root) {
    this.themeButton = createIconButton("theme-toggle", "auto", THEME_NAMES.auto, () => this.nextTheme());
    const help = createIconButton("help-button", "help", "Help and keys (?)", () => this.openHelp());
    this.heading = make("h1", { class: "page-title", title: this.manifest.title }, this.manifest.title);
    this.tabHost = make("div", { class: "top-tabs" });
    this.actionHost = make("div", { class: "top-actions" }, this.themeButton, help);
    this.main = make("main", { class: "panes" });
    root.prepend(make("header", { class: "top" }, this.heading, this.tabHost, this.actionHost), this.main);
    root.append(this.announcer, this.toast);
    this.applyTheme(patchOfFragment(readFragment()).theme ?? "auto");
  }

  /** Opens a scene in an element; the page follows its theme and puts its state into the address. */
  openPane(host, scene, options = {}) {
    const index = this.panes.length;
    const state = { ...patchOfFragment(readFragment(), index), theme: this.theme, ...options.state };
    const pane = createPane(host, scene, { ...options, page: this.services, state });
    this.panes.push(pane);
    for (const kind of ["pointerdown", "focusin"]) pane.element.addEventListener(kind, (event) => event.target.closest(".pane-body") && this.activate(pane));
    this.refreshControls();
    const stop = pane.store.subscribe((now) => now.theme !== this.theme && this.applyTheme(now.theme));
    return {
      ...pane,
      destroy: () => {
        stop();
        this.panes = this.panes.filter((other) => other.store !== pane.store);
        if (this.recent?.store === pane.store) this.recent = null;
        pane.destroy();
        this.refreshControls();
      },
    };
  }

  openScenes(scenes) {
    const isPair = scenes.length > 1;
    this.main.toggleAttribute("data-pair", isPair);
    const controls = isPair ? make("section", { class: "control-host", "aria-label": "Controls" }) : null;
    if (controls) this.main.before(controls);
    const opened = scenes.map((scene, index) => this.openPane(this.main, scene, {
      tabs: index === 0 ? this.tabHost : null, actionHost: index === 0 ? this.actionHost : null, controls, isTitled: isPair, isSecond: index > 0,
    }));
    if (isPair) linkStores(opened[0].store, opened[1].store, linkedKeys(scenes));
  }

  states() {
    return this.panes.map((pane) => pane.store.get());
  }

  changed() {
    this.refreshControls();
    writeFragment(() => this.fragment());
  }

  fragment() {
    const states = fragmentOf(this.states(), this.inputs(), this.panes.map((pane) => patchOfFragment(pane.scene().start)));
    return [this.prefix(), states].filter(Boolean).join("&");
  }

  /** What the controls of one pane offer depends on both. */
  refreshControls() {
    for (const pane of this.panes) pane.controls()?.update(pane.store.get());
  }

  activate(pane) {
    if (this.recent === pane) return;
    this.recent = pane;
    this.refreshControls();
  }

  /** The pane that was last used, which is the one that is exported. */
  activePane() {
    return this.recent ?? this.panes[0];
  }

  /** "left" or "right", where there are two panes. */
  columnOf(store) {
    if (this.panes.length < 2) return null;
    return this.panes[0].store === store ? "left" : "right";
  }

  /** Goes on to the next value of a switch of all panes; one that lacks what it is about stays as it is. */
  flip(key, values) {
    if (key === "unit" && !this.panes.some((pane) => hasWords(pane.scene()))) return false;
    const index = Math.max(...this.states().map((state) => values.indexOf(state[key])));
    for (const pane of this.panes) pane.store.set({ [key]: values[(index + 1) % values.length] });
    return true;
  }

  readAddress() {
    const fragment = readFragment();
    if (fragment === this.fragment()) return;
    this.panes.forEach((pane, index) => pane.take({ ...initialState(), ...patchOfFragment(fragment, index) }));
    this.restore(fragment);
  }

  applyTheme(theme) {
    this.theme = theme;
    document.documentElement.dataset.theme = resolveTheme(theme);
    this.themeButton.replaceChildren(icon(theme));
    this.themeButton.setAttribute("aria-label", THEME_NAMES[theme]);
    this.themeButton.title = `${THEME_NAMES[theme]} (t)`;
    for (const pane of this.panes) {
      pane.store.set({ theme });
      pane.refresh();
    }
    this.themed();
  }

  nextTheme() {
    this.applyTheme(THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length]);
    this.announce(THEME_NAMES[this.theme]);
  }

  openHelp() {
    this.help.open(this.panes.map((pane) => pane.scene()));
  }

  announce(text) {
    this.announcer.textContent = text;
  }

  async copyLink() {
    const link = linkTo(this.fragment());
    const isCopied = await this.copyText(link);
    const omission = this.inputs().every(isWholeInLink) ? "" : ". It leaves out the picture, or a text of more than 1000 characters";
    this.say(isCopied ? `The link to this view was copied${omission}` : `Copying is not allowed here. The link is ${link}`);
  }

  copyText(text) {
    return copyText(text);
  }

  /** A short message that can be seen and heard. */
  say(text) {
    this.announce(text);
    this.toast.textContent = text;
    this.toast.hidden = false;
    clearTimeout(this.toastTimer);
    this.toastTimer = setTimeout(() => { this.toast.hidden = true; }, 3500);
  }

  /** Says once, after the browser has put it on screen, that the first picture is there. */
  drawn() {
    if (this.isDrawn) return;
    this.isDrawn = true;
    requestAnimationFrame(() => requestAnimationFrame(() => {
      document.documentElement.dataset.ready = "1";
      performance.mark("first-picture");
    }));
  }
}

/** Two scenes share how they are shown; scenes over the same text also share what is chosen and seen. */
function linkedKeys(scenes) {
  const [first, second] = scenes.map((scene) => JSON.stringify(scene.sequences.map((sequence) => sequence.tokens)));
  return first === second ? [...SHARED_KEYS, "selected", "hidden", "pinned", "zoom", "step"] : SHARED_KEYS;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
    field.value = text;
    document.body.append(field);
    field.select();
    // The old way is the only one where the clipboard is not given to the page, as in some frames.
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }
}
