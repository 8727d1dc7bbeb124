// One attention map as a matrix on canvas: zoom, pan, crosshair, labels, values under the pointer.

import { createIconButton } from "../../controls/fields.js";
import { scaleTop } from "../../data/frame.js";
import { measuredWeight, readableWeight } from "../../data/numbers.js";
import { make } from "../../drawing/elements.js";
import { isolated, withoutControls } from "../../drawing/labels.js";
import { svgDocument } from "../../export/svg.js";
import { cameraOn, cameraWithCell, coveredArea, pannedCamera, windowOf, zoomedCamera } from "./camera.js";
import { watchGestures } from "./gestures.js";
import { createLabelSet, labelsAsSvg } from "./labels.js";
import { drawAxes, drawCrosshair, drawWeights } from "./painting.js";
import { createTileCache } from "./tiles.js";

const PLOT_PADDING = 12;
const ZOOM_BUTTONS = 60; // room for them: at the right, or where it is narrow, below
const NARROW_MATRIX = 520;
const STORE_PAUSE = 180;
const PICTURE_RATIO = 2;
/** @type {Record<string, [number, number]>} */
const KEY_STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** The matrix view. */
export function createMatrixView(host, context) {
  const view = new MatrixView(host, context);
  return {
    update: (frame, state) => view.update(frame, state),
    picture: () => ({ svg: view.picture() }),
    resize: () => view.resize(),
    destroy: () => view.destroy(),
    focus: () => view.overlay.focus(),
    keys: view.keys(),
  };
}

class MatrixView {
  constructor(host, context) {
    this.context = context;
    this.canvas = make("canvas", { class: "matrix-layer", "aria-hidden": "true" });
    this.overlay = make("canvas", {
      class: "matrix-layer matrix-overlay", tabindex: "0", role: "application", "data-testid": "matrix-canvas",
      "aria-roledescription": "attention matrix", "aria-label": "Attention matrix",
    });
    this.empty = make("p", { class: "empty", hidden: true });
    this.box = make("div", { class: "matrix-view" }, this.canvas, this.overlay, this.zoomButtons(), this.empty);
    host.append(this.box);
    this.surface = this.canvas.getContext("2d", { alpha: false });
    this.above = this.overlay.getContext("2d");
    this.cache = createTileCache(() => this.schedule());
    this.cell = null;
    this.pinnedCell = false;
    this.writtenZoom = null;
    this.due = { base: 0, above: 0, store: 0 };
    this.stopGestures = watchGestures(this.overlay, this.gestures());
    this.measure();
    this.clear(); // it is black until then
  }

  zoomButtons() {
    const button = (name, label, action) => createIconButton(`zoom-${name}`, name, label, action);
    return make("div", { class: "matrix-zoom", role: "group", "aria-label": "Zoom" },
      button("plus", "Zoom in (+)", () => this.zoomBy(1.6)),
      button("minus", "Zoom out (−)", () => this.zoomBy(1 / 1.6)),
      button("fit", "See everything (0)", () => this.showAll()));
  }

  update(frame, state) {
    const isNew = frame !== this.frame;
    const previousShape = this.frame && [this.rows, this.columns].join();
    this.frame = frame;
    this.state = state;
    this.rows = frame.rows.labels.length;
    this.columns = frame.columns.labels.length;
    const isEmpty = this.rows === 0 || this.columns === 0;
    this.empty.hidden = !isEmpty;
    this.empty.textContent = isEmpty ? `There is nothing to draw: ${this.rows} queries × ${this.columns} keys.` : "";
    if (isEmpty) {
      this.clear();
      return;
    }
    this.colours = this.context.palette();
    this.followColouring();
    if (isNew) this.measureLabels();
    const isOtherShape = previousShape !== [this.rows, this.columns].join();
    if (isNew || state.zoom !== this.writtenZoom) {
      if (isOtherShape || state.zoom !== this.writtenZoom || !this.camera) this.lookAt(state.zoom);
      else this.lookAt(this.windowNow());
    }
    if (this.cell && (this.cell.row >= this.rows || this.cell.column >= this.columns)) this.dropCell();
    const size = `${this.rows} queries by ${this.columns} keys`;
    this.overlay.setAttribute("aria-label", `Attention matrix, ${size}. Arrow keys move the crosshair, plus and minus zoom.`);
    this.schedule();
    if (isNew && this.cell) this.showCell(false);
    if (isNew && this.pinnedCell) this.context.pinned(this.cell);
  }

  followColouring() {
    const { frame, state, colours } = this;
    const peak = scaleTop(frame, state.colour);
    const key = [state.colour, colours.theme, peak].join();
    this.cache.follow(frame, { key, peak, colour: state.colour, signed: frame.signed, palette: colours });
  }

  measure() {
    const { clientWidth: width, clientHeight: height } = this.box;
    const ratio = window.devicePixelRatio || 1;
    if (width === this.width && height === this.height && ratio === this.ratio) return false;
    this.width = width;
    this.height = height;
    this.ratio = ratio;
    for (const canvas of [this.canvas, this.overlay]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    this.isClear = true;
    return true;
  }

  measureLabels() {
    const isNarrow = this.width < NARROW_MATRIX;
    const longest = isNarrow ? 76 : 132;
    this.rowSet = createLabelSet(this.frame.rows, this.surface, longest);
    this.columnSet = this.frame.rows === this.frame.columns ? this.rowSet : createLabelSet(this.frame.columns, this.surface, longest);
    const [x, y] = [this.rowSet.margin + 4, this.columnSet.margin + 4];
    const [right, bottom] = isNarrow ? [PLOT_PADDING, ZOOM_BUTTONS] : [ZOOM_BUTTONS, PLOT_PADDING];
    this.plot = { x, y, width: Math.max(40, this.width - x - right), height: Math.max(40, this.height - y - bottom) };
  }

  resize() {
    if (!this.measure() || !this.frame || !this.rows || !this.columns) return;
    const window = this.camera ? this.windowNow() : this.state.zoom;
    this.measureLabels();
    this.lookAt(window);
    this.draw();
  }

  windowNow() {
    return windowOf(this.camera, this.rows, this.columns, this.plot);
  }

  lookAt(window) {
    this.writtenZoom = this.state.zoom;
    this.camera = cameraOn(window, this.rows, this.columns, this.plot);
  }

  layout() {
    const { camera, plot, rowSet, columnSet, rows, columns, colours } = this;
    return { camera, plot, rowSet, columnSet, rows, columns, colours, area: coveredArea(camera, rows, columns, plot) };
  }

  schedule() {
    this.due.base ||= requestAnimationFrame(() => this.draw());
  }

  scheduleCrosshair() {
    this.due.above ||= requestAnimationFrame(() => this.drawAbove());
  }

  draw() {
    cancelAnimationFrame(this.due.base);
    this.due.base = 0;
    if (!this.camera || this.width === 0) return;
    const { surface, ratio } = this;
    surface.setTransform(ratio, 0, 0, ratio, 0, 0);
    surface.fillStyle = this.colours.surface;
    surface.fillRect(0, 0, this.width, this.height);
    const layout = this.layout();
    drawWeights(surface, layout, this.cache, this.frame, this.state, ratio);
    drawAxes(surface, layout, this.state);
    this.tellOfTiles();
    this.drawAbove();
  }

  /** Says that tiles in sight cannot be had, and no longer says so when they are there or out of sight. */
  tellOfTiles() {
    const problem = this.cache.problem();
    if (problem && problem !== this.problem) this.context.fail(problem);
    if (!problem && this.problem) this.context.recover();
    this.problem = problem;
  }

  drawAbove() {
    cancelAnimationFrame(this.due.above);
    this.due.above = 0;
    const { above, ratio } = this;
    if (!this.cell && this.isClear) return;
    this.isClear = !this.cell;
    above.setTransform(ratio, 0, 0, ratio, 0, 0);
    above.clearRect(0, 0, this.width, this.height);
    if (this.cell) drawCrosshair(above, this.layout(), this.frame, this.cell, this.state.colour, this.cell.value);
  }

  clear() {
    this.camera = null;
    this.surface.setTransform(1, 0, 0, 1, 0, 0);
    this.surface.fillStyle = this.context.palette().surface;
    this.surface.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.above.clearRect(0, 0, this.overlay.width, this.overlay.height);
  }

  /** Takes a new camera, draws it, and tells the store once the movement has ended. */
  move(camera) {
    this.camera = camera;
    this.schedule();
    clearTimeout(this.due.store);
    this.due.store = setTimeout(() => {
      if (!this.camera) return;
      this.writtenZoom = this.windowNow();
      this.context.store.set({ zoom: this.writtenZoom });
      this.writtenZoom = this.context.store.get().zoom;
    }, STORE_PAUSE);
  }

  zoomBy(factor, x = this.plot.x + this.plot.width / 2, y = this.plot.y + this.plot.height / 2) {
    if (this.camera) this.move(zoomedCamera(this.camera, factor, x, y, this.rows, this.columns, this.plot));
  }

  showAll() {
    if (this.camera) this.move(cameraOn(null, this.rows, this.columns, this.plot));
  }

  gestures() {
    return {
      pan: (x, y) => this.camera && this.move(pannedCamera(this.camera, x, y, this.rows, this.columns, this.plot)),
      zoom: (factor, x, y) => this.zoomBy(factor, x, y),
      hover: (x, y) => this.hover(x, y),
      leave: () => !this.pinnedCell && this.dropCell(),
      tap: (x, y) => this.tap(x, y),
      start: () => this.context.tooltip.hide(),
    };
  }

  cellAt(x, y) {
    if (!this.camera) return null;
    const { area } = this.layout();
    if (x < area.x || y < area.y || x >= area.x + area.width || y >= area.y + area.height) return null;
    const row = Math.floor(this.camera.top + (y - this.plot.y) / this.camera.scaleY);
    const column = Math.floor(this.camera.left + (x - this.plot.x) / this.camera.scaleX);
    return row >= 0 && column >= 0 && row < this.rows && column < this.columns ? { row, column, value: null } : null;
  }

  hover(x, y) {
    if (this.pinnedCell) return;
    const cell = this.cellAt(x, y);
    if (!cell) this.dropCell();
    else this.takeCell(cell, false);
  }

  tap(x, y) {
    const cell = this.cellAt(x, y);
    const isSame = this.pinnedCell && cell && cell.row === this.cell.row && cell.column === this.cell.column;
    if (!cell || isSame) this.unpin();
    else {
      this.takeCell(cell, true);
      this.pin();
    }
  }

  takeCell(cell, spoken) {
    const isSame = this.cell && this.cell.row === cell.row && this.cell.column === cell.column;
    if (isSame && !spoken) return;
    this.cell = cell;
    this.showCell(spoken);
  }

  /** Shows the crosshair and, as soon as it is known, the weight of the cell. */
  async showCell(spoken) {
    const { cell, frame } = this;
    this.scheduleCrosshair();
    try {
      const answer = frame.value(cell.row, cell.column);
      const weight = answer instanceof Promise ? await answer : answer;
      if (cell !== this.cell || frame !== this.frame) return;
      cell.value = Number.isNaN(weight.value) ? null : weight.value;
      this.scheduleCrosshair();
      this.describeCell(cell, weight, spoken);
    } catch (problem) {
      if (cell === this.cell && frame === this.frame) this.context.fail(problem);
    }
  }

  describeCell(cell, weight, spoken) {
    const [query, key] = [this.frame.rows.labels[cell.row], this.frame.columns.labels[cell.column]];
    const layout = this.layout();
    const box = this.overlay.getBoundingClientRect();
    const x = box.left + this.plot.x + (cell.column + 1 - layout.camera.left) * layout.camera.scaleX;
    const y = box.top + this.plot.y + (cell.row + 1 - layout.camera.top) * layout.camera.scaleY;
    this.context.tooltip.show(x, y, [
      { text: `${isolated(query)} → ${isolated(key)}`, kind: "strong" },
      { text: measuredWeight(this.frame, weight), kind: "number" },
      ...(weight.mean ? [{ text: `mean of ${weight.mean.side} × ${weight.mean.side}: ≈ ${readableWeight(weight.mean.value)}`, kind: "muted" }] : []),
      { text: `query ${cell.row} · key ${cell.column}`, kind: "muted" },
    ]);
    if (spoken) this.context.announce(`${withoutControls(query)} to ${withoutControls(key)}: ${weight.exact || Number.isNaN(weight.value) ? "" : "about "}${readableWeight(weight.value)}`);
  }

  dropCell() {
    this.cell = null;
    this.pinnedCell = false;
    this.context.pinned(null);
    this.context.tooltip.hide();
    this.scheduleCrosshair();
  }

  pin() {
    this.pinnedCell = true;
    this.context.pinned(this.cell);
    this.context.store.set({ selected: [this.cell.row], direction: "from", pinned: true });
  }

  unpin() {
    this.dropCell();
    this.context.store.set({ selected: [], pinned: false });
  }

  step([down, across], event) {
    if (!this.camera) return;
    const size = event.shiftKey ? 10 : 1;
    const from = this.cell ?? { row: Math.max(0, Math.floor(this.camera.top)) - down, column: Math.max(0, Math.floor(this.camera.left)) - across };
    const row = Math.max(0, Math.min(this.rows - 1, from.row + down * size));
    const column = Math.max(0, Math.min(this.columns - 1, from.column + across * size));
    this.move(cameraWithCell(this.camera, row, column, this.rows, this.columns, this.plot));
    this.takeCell({ row, column, value: null }, true);
    if (this.pinnedCell) this.pin();
  }

  toggleRow() {
    if (!this.cell) return;
    const { selected } = this.context.store.get();
    const { row } = this.cell;
    this.context.store.set({ selected: selected.includes(row) ? selected.filter((other) => other !== row) : [...selected, row] });
  }

  keys() {
    const moves = Object.entries(KEY_STEPS).map(([key, step]) => [key, (event) => this.step(step, event)]);
    return {
      ...Object.fromEntries(moves),
      "+": () => this.zoomBy(1.5),
      "=": () => this.zoomBy(1.5),
      "-": () => this.zoomBy(1 / 1.5),
      0: () => this.showAll(),
      Enter: () => this.cell && this.pin(),
      " ": () => this.toggleRow(),
      Escape: () => (this.cell || this.context.store.get().selected.length ? this.unpin() : false),
    };
  }

  picture() {
    const layout = this.layout();
    const ratio = Math.max(PICTURE_RATIO, this.ratio);
    const canvas = make("canvas", { width: this.width * ratio, height: this.height * ratio });
    const surface = canvas.getContext("2d");
    surface.setTransform(ratio, 0, 0, ratio, 0, 0);
    drawWeights(surface, layout, this.cache, this.frame, this.state, ratio);
    const image = `<image width="${this.width}" height="${this.height}" href="${canvas.toDataURL("image/png")}"/>`;
    return svgDocument(this.width, this.height, this.colours.surface, [image, ...labelsAsSvg(layout)]);
  }

  destroy() {
    this.stopGestures();
    this.cache.follow(null, { key: "" });
    cancelAnimationFrame(this.due.base);
    cancelAnimationFrame(this.due.above);
    clearTimeout(this.due.store);
    this.context.tooltip.hide();
    this.box.remove();
  }
}
