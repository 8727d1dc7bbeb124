// One scene with its views, controls and status: everything but the page around it.

import { createControlBar } from "../controls/control_bar.js";
import { createLegend, statusText } from "../controls/legend.js";
import { createPairPanel } from "../controls/pair_panel.js";
import { createStepSlider } from "../controls/step_slider.js";
import { createTabs } from "../controls/tabs.js";
import { frameOf, scaleTop } from "../data/frame.js";
import { palette, weightAtShare } from "../drawing/colour.js";
import { make } from "../drawing/elements.js";
import { captionedSvg } from "../export/caption.js";
import { exportCsv, exportPng, exportSvg } from "../export/files.js";
import { patchOfFragment } from "../state/fragment.js";
import { initialState, settleState } from "../state/state.js";
import { createStore } from "../state/store.js";
import { createImageView } from "../views/image/image_view.js";
import { createLinesView } from "../views/lines/lines_view.js";
import { createHeadsGrid } from "../views/map/heads_grid.js";
import { createMapView } from "../views/map/map_view.js";
import { createMatrixView } from "../views/matrix/matrix_view.js";
import { createTextView } from "../views/text/text_view.js";

const FRAME_KEYS = ["part", "layer", "mode", "head", "unit", "special", "step", "measure"];
const BUSY_DELAY = 160;
const LONGEST_SUGGESTED = 512; // positions of a text up to which all pairs are looked at for a word to begin with
const VIEW_CREATORS = { map: createMapView, matrix: createMatrixView, lines: createLinesView, text: createTextView, image: createImageView };
let paneCount = 0;

/**
 * Opens a scene in an element.
 * options: page (services of page.js), state (a patch), isTitled, isSecond (no tabs, no control bar), and elements for
 * what need not stand in the pane: tabs, controls, actionHost (export buttons).
 */
export function createPane(host, scene, options) {
  const pane = new Pane(host, scene, options);
  return {
    store: pane.store,
    element: pane.element,
    scene: () => pane.context.scene,
    show: (next) => pane.show(next),
    take: (patch) => pane.take(patch),
    refresh: () => pane.refresh(),
    view: () => pane.view,
    controls: () => pane.controls,
    save: (kind) => pane.save(kind),
    destroy: () => pane.destroy(),
  };
}

class Pane {
  constructor(host, scene, options) {
    this.options = options;
    this.page = options.page;
    this.identity = `pane-${(paneCount += 1)}`;
    this.name = options.isSecond ? `Second: ${scene.title}` : scene.title;
    this.round = 0;
    this.frame = null;
    this.context = { scene, tooltip: this.page.tooltip, announce: this.page.announce, palette: () => palette(this.store.get().theme) };
    this.store = createStore({ ...startState(scene), ...options.state }, (state, patch) => settleState(this.context.scene, state, patch));
    this.context.store = this.store;
    this.context.fail = (problem) => this.fail(problem);
    this.context.recover = () => this.recover();
    this.context.scenes = this.page.scenes;
    this.context.states = this.page.states;
    this.context.flip = this.page.flip;
    this.context.setAll = this.page.setAll;
    this.context.exported = () => this.page.columnOf(this.page.active()?.store);
    this.context.take = (patch) => this.take(patch);
    this.context.legend = (scale) => this.showLegend(scale);
    this.build(host);
    this.stop = this.store.subscribe((state, changed) => this.follow(state, changed));
    this.follow(this.store.get(), ["view", ...FRAME_KEYS]);
  }

  build(host) {
    const { options, context } = this;
    this.title = make("h2", { class: "pane-title", hidden: !options.isTitled }, context.scene.title);
    const head = make("div", { class: "pane-head" }, this.title);
    this.viewHost = make("div", { class: "view-host", id: this.identity, role: "tabpanel" });
    this.tabs = options.isSecond ? null : createTabs(options.tabs ?? head, context, this.identity);
    if (options.isSecond) this.viewHost.setAttribute("role", "group");
    this.problem = make("p", { class: "problem", role: "alert", hidden: true });
    this.status = make("p", { class: "status", "data-testid": "status" });
    const foot = make("footer", { class: "foot" });
    this.legend = createLegend(foot);
    foot.append(this.status);
    this.railHost = make("div", { class: "rail-scroll", "data-scrolls": true });
    const railTitle = make("div", { class: "rail-title", "aria-hidden": "true" }, "Heads");
    const rail = make("aside", { class: "rail", "aria-label": `Heads of ${this.name}` }, railTitle, this.railHost);
    const middle = make("div", { class: "stage-middle" }, this.viewHost);
    this.stage = make("div", { class: "stage" }, this.problem, middle, foot);
    this.pair = createPairPanel(middle, context);
    context.pinned = (cell) => (cell ? this.pair.show(this.frame, this.store.get(), cell.row, cell.column) : this.pair.hide());
    this.element = make("section", { class: "pane", "aria-label": this.name }, head);
    head.hidden = !options.isTitled && Boolean(options.tabs || options.isSecond);
    this.controls = options.isSecond ? null : createControlBar(options.controls ?? this.element, context, this.actions(), options.actionHost);
    this.element.append(make("div", { class: "pane-body" }, rail, this.stage));
    host.append(this.element);
    this.rail = createHeadsGrid(this.railHost, context, "rail", (layer, head) => this.chooseHead(layer, head));
    this.slider = this.buildSlider();
    this.sizes = new ResizeObserver(() => this.view?.resize());
    this.sizes.observe(this.viewHost);
  }

  buildSlider() {
    if (!this.context.scene.steps) return null;
    const host = this.controls ? this.controls.steps : make("div", { class: "step-host" });
    if (!this.controls) this.stage.prepend(host);
    return createStepSlider(host, this.context);
  }

  chooseHead(layer, head) {
    this.store.set({ layer, head, mode: "head" });
  }

  actions() {
    return { save: (kind) => this.page.active().save(kind), copyLink: () => this.page.copyLink() };
  }

  save(kind) {
    return kind === "csv" ? this.exportNumbers() : this.exportPicture(kind === "png" ? exportPng : exportSvg);
  }

  async exportPicture(exportFile) {
    try {
      await exportFile(this.picture(), this.store.get(), this.context.scene);
      this.announceSaved("The picture");
    } catch (problem) {
      this.fail(problem);
    }
  }

  announceSaved(file) {
    const column = this.page.columnOf(this.store);
    this.page.announce(column ? `${file} of the ${column} column was saved` : `${file} was saved`);
  }

  /** What the view shows as SVG, with the colour scale and what is shown below it. */
  picture() {
    const { view } = this.store.get();
    const scale = view === "image" ? null : this.legend.current(); // that view draws a scale of its own
    return captionedSvg(this.view.picture().svg, this.context.scene.title, this.status.textContent, scale, this.context.palette());
  }

  async exportNumbers() {
    try {
      const state = this.store.get();
      const isCurrent = this.frame && !this.frameWanted; // the map view leaves the frame of another view behind
      const frame = isCurrent ? this.frame : await frameOf(this.context.scene, state);
      const progress = (done, total) => frame.whole === null && this.page.announce(`${done} of ${total} rows are here`);
      await exportCsv(frame, state, this.context.scene, progress);
      this.announceSaved("The table of weights");
    } catch (problem) {
      this.fail(problem);
    }
  }

  /** Brings the pane to a state of which some keys changed. */
  follow(state, changed) {
    const isFirst = !this.shownView;
    if (changed.includes("view")) this.openView(state);
    this.tabs?.update(state);
    this.controls?.update(state);
    this.slider?.update?.(this.frame, state);
    this.showRail(state);
    this.element.dataset.view = state.view;
    this.element.toggleAttribute("data-single", headCount(this.context.scene, state.part) === 1);
    const needsFrame = changed.some((key) => FRAME_KEYS.includes(key)) || this.frame === null;
    if (needsFrame) [this.frameWanted, this.isRestored] = [true, false];
    if (state.view === "map") this.showMap(state);
    else if (this.frameWanted) this.loadFrame(state);
    else this.draw(state);
    if (!isFirst) this.page.changed();
  }

  /** Takes a state from outside: what it chooses and zooms to is meant for the frame that comes with it. */
  take(patch) {
    this.store.set(patch);
    this.isRestored = this.frameWanted;
  }

  openView(state) {
    if (this.shownView === state.view) return;
    this.wantsFocus = Boolean(this.shownView) && this.losesFocus(state.view);
    this.view?.destroy();
    this.pair.hide();
    this.viewHost.replaceChildren();
    this.viewHost.setAttribute("aria-label", `${state.view} view`);
    this.shownView = state.view;
    this.view = VIEW_CREATORS[state.view](this.viewHost, this.context);
  }

  /** Whether the keyboard is on what another view takes away, or nowhere. */
  losesFocus(nextView) {
    const focused = document.activeElement;
    return focused === document.body || this.viewHost.contains(focused) || (nextView === "map" && this.railHost.contains(focused));
  }

  async showRail(state) {
    try {
      await this.rail.update(state);
    } catch (problem) {
      this.fail(problem);
    }
  }

  async showMap(state) {
    const { view } = this;
    this.hideProblem();
    this.status.textContent = statusText(this.context.scene, state, null);
    this.legend.show(1, false, state.colour, this.context.palette(), [state.colour === "log" ? `≤ ${weightAtShare(0, 1, "log")} of it` : "0", "", "largest of each head"]);
    try {
      await view.update(null, state);
    } catch (problem) {
      if (view === this.view) this.fail(problem);
    }
    this.returnFocus();
    this.page.drawn();
  }

  async loadFrame(state) {
    const round = (this.round += 1);
    this.frameWanted = true;
    const slow = setTimeout(() => this.setBusy(round), BUSY_DELAY);
    try {
      const frame = await frameOf(this.context.scene, state);
      if (round !== this.round) return;
      this.takeFrame(frame);
    } catch (problem) {
      if (round === this.round) this.fail(problem);
    } finally {
      clearTimeout(slow);
      if (round === this.round) delete this.stage.dataset.busy;
    }
  }

  setBusy(round) {
    if (round !== this.round) return;
    this.stage.dataset.busy = "";
    this.status.textContent = "Computing weights…";
  }

  takeFrame(frame) {
    const previous = this.frame;
    this.frame = frame;
    this.frameWanted = false;
    this.hideProblem();
    if (previous) this.page.announce(statusText(this.context.scene, this.store.get(), null));
    const patch = previous && !this.isRestored ? carriedSelection(previous, frame, this.store.get(), this.framePart) : {};
    this.framePart = this.store.get().part;
    this.isRestored = false;
    this.slider?.update?.(frame, this.store.get());
    const state = this.store.get();
    this.store.set(patch);
    if (this.store.get() === state) this.draw(state);
  }

  async draw(state) {
    const { frame, view } = this;
    if (!frame || state.view === "map") return;
    if (state.view === "lines" && this.suggestWord(frame, state)) return;
    this.status.textContent = statusText(this.context.scene, state, frame);
    this.status.title = this.status.textContent;
    this.showLegend(null);
    try {
      await view.update(frame, state);
    } catch (problem) {
      if (view === this.view && frame === this.frame) this.fail(problem);
    }
    this.returnFocus();
    this.page.drawn();
  }

  /** Lines begin with a word whose lines tell something, but for a translation; what is clicked first takes its place. */
  suggestWord(frame, state) {
    if (this.hasSuggested) return false;
    this.hasSuggested = true;
    const isTranslation = !frame.square && Boolean(frame.columns.name); // its lines are few and read together
    const row = state.selected.length || isTranslation ? -1 : clearestRow(frame, state);
    if (row < 0) return false;
    this.context.suggested = [row];
    this.store.set({ selected: [row], direction: "from" });
    return true;
  }

  /** A keyboard that was in the view before goes on in the view that took its place. */
  returnFocus() {
    if (this.wantsFocus && this.losesFocus(this.shownView)) this.view.focus?.();
    this.wantsFocus = false;
  }

  showLegend(scale) {
    const { colour } = this.store.get();
    const { peak, signed } = scale ?? this.frame ?? { peak: 1, signed: false };
    const top = !scale && this.frame && this.store.get().view === "matrix" ? scaleTop(this.frame, colour) : peak;
    this.legend.show(top, signed, colour, this.context.palette(), null, top < peak);
  }

  fail(problem) {
    this.problem.hidden = false;
    this.problem.textContent = `This cannot be shown: ${problem?.message ?? problem}`;
    this.status.textContent = this.problem.textContent;
    this.stage.dataset.failed = "";
    delete this.stage.dataset.busy;
    this.page.drawn();
  }

  /** What failed before is there now. */
  recover() {
    this.hideProblem();
    this.status.textContent = statusText(this.context.scene, this.store.get(), this.frame);
  }

  hideProblem() {
    delete this.stage.dataset.failed;
    this.problem.hidden = true;
    this.problem.textContent = "";
  }

  /** Draws everything again in other colours. */
  refresh() {
    this.showRail(this.store.get());
    if (this.shownView === "map") this.showMap(this.store.get());
    else this.draw(this.store.get());
  }

  /** Replaces the scene, keeping what is looked at where the new one has it. */
  show(scene) {
    this.context.scene = scene;
    this.title.textContent = scene.title;
    this.frameWanted = true;
    if (!this.slider) this.slider = this.buildSlider();
    this.store.set({ part: this.store.get().part });
    this.follow(this.store.get(), FRAME_KEYS);
  }

  destroy() {
    this.round += 1;
    this.stop();
    this.sizes.disconnect();
    this.view?.destroy();
    this.rail.destroy();
    this.slider?.destroy?.();
    this.tabs?.destroy();
    this.controls?.destroy();
    this.element.remove();
  }
}

function headCount(scene, part) {
  return scene.parts[part].sites.reduce((sum, number) => sum + scene.sites[number].heads, 0);
}

/**
 * The row of the words chosen on the map, else the one with the clearest partner that is neither special nor itself, both of
 * them words and no punctuation; -1 if none is known.
 */
function clearestRow(frame, { pair, hidden }) {
  if (pair.length) return frame.rows.members.findIndex((members) => members.includes(pair[0]));
  const columns = frame.columns.labels.length;
  const [isWord, isPartner] = [frame.rows, frame.columns].map(({ labels, special }) => labels.map((label, i) => !special[i] && /[\p{L}\p{N}]/u.test(label)));
  if (!frame.whole || frame.whole.length > LONGEST_SUGGESTED ** 2) return isWord.indexOf(true);
  let [best, strongest] = [-1, 0];
  for (let i = 0; i < frame.rows.labels.length; i += 1) {
    if (!isWord[i] || hidden.includes(i)) continue;
    for (let j = 0; j < columns; j += 1) {
      const weight = Math.abs(frame.whole[i * columns + j]);
      if (weight > strongest && isPartner[j] && !(frame.square && i === j)) [best, strongest] = [i, weight];
    }
  }
  return best;
}

function startState(scene) {
  const heads = scene.sites.reduce((sum, site) => sum + site.heads, 0);
  const view = scene.image ? "image" : heads > 1 ? "map" : "matrix";
  return { ...initialState(), view, ...patchOfFragment(scene.start) };
}

/** The patch that keeps chosen words chosen when the rows of a frame come to mean something else. */
function carriedSelection(before, after, state, partBefore) {
  const isSameShape = before.rows.labels.length === after.rows.labels.length && before.columns.labels.length === after.columns.labels.length;
  const patch = isSameShape ? {} : { zoom: null };
  if (partBefore !== state.part) return { ...patch, selected: [], hidden: [], pinned: false };
  if (isSameShape && isSameAxis(before.rows, after.rows) && isSameAxis(before.columns, after.columns)) return patch;
  const isFrom = state.direction === "from" || before.square;
  const [oldAxis, axis] = isFrom ? [before.rows, after.rows] : [before.columns, after.columns];
  const indices = new Map();
  axis.members.forEach((members, index) => members.forEach((position) => indices.set(position, index)));
  const positions = state.selected.flatMap((index) => oldAxis.members[index] ?? []);
  const selected = new Set(positions.map((position) => indices.get(position)));
  selected.delete(undefined);
  return { ...patch, hidden: [], selected: [...selected] };
}

/** Whether each label stands for the same positions. */
function isSameAxis(before, after) {
  return before.members.every((members, index) => members.join() === after.members[index].join());
}
