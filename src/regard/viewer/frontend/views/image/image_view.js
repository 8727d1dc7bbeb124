// The attention of one query over the patches of a picture.

import { measuredWeight, readableWeight } from "../../data/numbers.js";
import { fitCanvas } from "../../drawing/canvas.js";
import { palette } from "../../drawing/colour.js";
import { make } from "../../drawing/elements.js";
import { visibleLabel } from "../../drawing/labels.js";
import { svgDocument, svgEscape } from "../../export/svg.js";
import { unitName } from "../../state/state.js";
import { buildImage, tokenChip } from "./elements.js";
import { crossThrough, meanWeights, outlinePatch, paintPatches, patchBox, patchName, patchPixels, patchTokens, patchWeights, pictureSides } from "./patches.js";

const PATCH_ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** The image view. */
export function createImageView(host, context) {
  let view = new ImageView(host, context);
  const move = (key) => () => view.move(...PATCH_ARROWS[key]);
  const follow = (frame, state) => {
    if (context.scene.image !== view.image) {
      view.destroy();
      view = new ImageView(host, context);
    }
    return view.update(frame, state);
  };
  return {
    update: follow,
    picture: () => ({ svg: view.picture() }),
    resize: () => view.paint(),
    focus: () => view.parts.canvas.focus(),
    destroy: () => view.destroy(),
    keys: Object.fromEntries(Object.keys(PATCH_ARROWS).map((key) => [key, move(key)])),
  };
}

class ImageView {
  constructor(host, context) {
    this.context = context;
    this.image = context.scene.image;
    this.grid = this.image;
    this.parts = buildImage(this.image);
    this.isSmooth = false;
    this.cursor = null;
    this.listen();
    host.append(this.parts.root);
    this.observer = new ResizeObserver(() => this.paint());
    this.observer.observe(this.parts.frame);
  }

  destroy() {
    this.observer.disconnect();
    this.parts.root.remove();
  }

  listen() {
    const { canvas, chips, direction, grain, opacity } = this.parts;
    canvas.addEventListener("pointermove", (event) => this.point(this.patchAt(event), event));
    canvas.addEventListener("pointerleave", () => this.point(null));
    canvas.addEventListener("blur", () => this.point(null));
    canvas.addEventListener("click", (event) => this.choosePatch(this.patchAt(event), event.shiftKey || event.ctrlKey || event.metaKey));
    canvas.addEventListener("keydown", (event) => this.press(event));
    chips.addEventListener("click", (event) => this.clickChip(event));
    chips.addEventListener("keydown", (event) => this.pressChip(event));
    direction.listen((value) => this.context.store.set({ direction: value, selected: this.chosen }));
    grain.listen((value) => {
      this.isSmooth = value === "smooth";
      this.paint();
    });
    opacity.addEventListener("input", () => this.paint());
  }

  async update(frame, state) {
    this.frame = frame;
    this.state = state;
    this.sides = pictureSides(this.context.scene, state);
    const { message, frame: box, panel, direction } = this.parts;
    message.hidden = this.sides !== null;
    box.hidden = panel.hidden = this.sides === null;
    if (!this.sides) return;
    this.grid = this.sides.grid;
    const isFrom = this.sides.direction === "from";
    this.chosenAxis = isFrom ? frame.rows : frame.columns;
    this.patchAxis = isFrom ? frame.columns : frame.rows;
    this.patches = patchTokens(this.grid, this.patchAxis);
    this.chooserPatches = this.sides.isOnPicture ? patchTokens(this.grid, this.chosenAxis) : { tokens: [], elsewhere: [...this.chosenAxis.labels.keys()] };
    this.chosen = this.chosenTokens();
    direction.element.hidden = !this.sides.isOnPicture;
    direction.show(this.sides.direction);
    this.listChips();
    await this.load(frame, isFrom);
  }

  // Selected tokens are rows or columns, as the direction says; a token without a place, such as a class token, comes first.
  chosenTokens() {
    const { selected, direction } = this.state;
    const count = this.chosenAxis.labels.length;
    const chosen = direction === this.sides.direction ? selected.filter((token) => token < count) : [];
    if (chosen.length) return chosen;
    const middle = Math.floor(this.grid.rows / 2) * this.grid.columns + Math.floor(this.grid.columns / 2);
    return [this.chooserPatches.elsewhere[0] ?? this.chooserPatches.tokens[middle] ?? 0];
  }

  async load(frame, isFrom) {
    const { chosen } = this;
    const rows = await Promise.all(chosen.map((token) => (isFrom ? frame.row(token) : frame.column(token))));
    if (frame !== this.frame || chosen !== this.chosen) return;
    this.weights = meanWeights(rows);
    this.values = patchWeights(this.patches.tokens, this.weights);
    this.peak = this.values.reduce((most, value) => (Math.abs(value) > most ? Math.abs(value) : most), 0);
    this.paint();
    this.describe();
  }

  // A picture has its own ground, so the scale for dark pages serves on both: bright is strong.
  colours() {
    return palette("dark");
  }

  paint() {
    const { canvas, grain } = this.parts;
    if (!this.values || !canvas.clientWidth) return;
    const scale = window.devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    fitCanvas(canvas, Math.round(width * scale), Math.round(height * scale));
    const surface = canvas.getContext("2d");
    surface.setTransform(scale, 0, 0, scale, 0, 0);
    this.paintLayer(surface, width, height, this.strength());
    this.parts.picture.style.filter = `saturate(${this.saturation()})`;
    const { highlight } = this.colours();
    for (const patch of this.chosenPatches()) outlinePatch(surface, patchBox(this.grid, patch, width, height), highlight, 2.5);
    if (this.cursor !== null) {
      const box = patchBox(this.grid, this.cursor, width, height);
      crossThrough(surface, box, width, height);
      outlinePatch(surface, box, "#ffffff", 1.5);
    }
    grain.show(this.isSmooth ? "smooth" : "blocks");
    this.paintLegend();
  }

  strength() {
    return Number(this.parts.opacity.value) / 100;
  }

  // The picture pales under the layer, so that its own colours are not taken for weights.
  saturation() {
    return (1 - 0.75 * this.strength()).toFixed(2);
  }

  paintLayer(surface, width, height, opacity) {
    const scale = { peak: this.peak, mode: this.state.colour, isSigned: this.frame.signed, opacity };
    paintPatches(surface, patchPixels(this.values, this.grid, this.colours(), scale), width, height, this.isSmooth);
  }

  paintLegend() {
    const { bar, least, most } = this.parts.legend;
    const table = this.frame.signed ? this.colours().diverging : this.colours().lut;
    const pixels = new ImageData(256, 1);
    for (let index = 0; index < 256; index += 1) pixels.data.set([table[3 * index], table[3 * index + 1], table[3 * index + 2], 255], 4 * index);
    bar.getContext("2d").putImageData(pixels, 0, 0);
    const lowest = this.frame.signed ? -this.peak : this.state.colour === "log" ? this.peak * 1e-4 : 0;
    least.textContent = readableWeight(lowest);
    most.textContent = readableWeight(this.peak);
  }

  chosenPatches() {
    const chosen = new Set(this.chosen);
    return [...this.chooserPatches.tokens.keys()].filter((patch) => chosen.has(this.chooserPatches.tokens[patch]));
  }

  // What is shown, and the weight that lies on no patch: a picture alone would hide it.
  describe() {
    const { title, facts, canvas } = this.parts;
    const verb = this.frame.isGate ? "" : this.sides.direction === "from" ? " looks at" : " is looked at by";
    const name = this.chosen.length === 1 ? this.nameOf(this.chosen[0]) : `mean of ${this.chosen.length} ${unitName(this.state)}s`;
    title.replaceChildren(make("bdi", { class: "image-name" }, name), verb);
    const strongest = this.values.reduce((best, value, patch) => (Math.abs(value) > Math.abs(this.values[best] || 0) ? patch : best), 0);
    const entries = [[patchName(this.grid, strongest), this.values[strongest], this.isStrongestKnown(strongest) ? "strongest" : "strongest that is stored"]];
    for (const token of this.strongestElsewhere()) entries.push([visibleLabel(this.patchAxis.labels[token]), this.weights[token], "not on the picture"]);
    facts.replaceChildren(...entries.map(factLine));
    canvas.setAttribute("aria-label", `${name}${verb || " over"} the picture; strongest ${entries[0][0]}, ${readableWeight(entries[0][1])}. Arrow keys move the patch.`);
  }

  /** Whether no patch whose weight is not stored may have a larger one. */
  isStrongestKnown(patch) {
    if (!this.frame.partial) return true;
    const side = this.sides.direction === "from" ? "row" : "column";
    return this.chosen.length === 1 && Math.abs(this.values[patch]) >= this.frame.highest(side, this.chosen[0]);
  }

  strongestElsewhere() {
    const size = (token) => Math.abs(this.weights[token]) || 0;
    return [...this.patches.elsewhere].sort((a, b) => size(b) - size(a)).slice(0, 3);
  }

  nameOf(token) {
    const patch = this.chooserPatches.tokens.indexOf(token);
    return patch >= 0 ? patchName(this.grid, patch) : visibleLabel(this.chosenAxis.labels[token]);
  }

  listChips() {
    const { chips, chipsLabel } = this.parts;
    const { elsewhere } = this.chooserPatches;
    chipsLabel.textContent = this.sides.isOnPicture ? "Without a place on the picture" : `Choose the ${unitName(this.state)} ${this.sides.direction === "from" ? "that looks" : "looked at"}`;
    chipsLabel.hidden = chips.hidden = elsewhere.length === 0 || this.frame.isGate;
    const hadFocus = chips.contains(document.activeElement);
    const stop = elsewhere.find((token) => this.chosen.includes(token)) ?? elsewhere[0];
    chips.replaceChildren(...elsewhere.map((token) => tokenChip(token, this.chosenAxis.labels[token], this.chosen.includes(token), token === stop)));
    if (hadFocus) chips.querySelector('[tabindex="0"]')?.focus();
  }

  choose(token, isAdding = false) {
    const others = this.chosen.filter((other) => other !== token);
    const isTaken = others.length < this.chosen.length;
    const selected = isAdding && isTaken && others.length ? others : isAdding ? [...others, token] : [token];
    this.context.store.set({ selected: selected.sort((a, b) => a - b), direction: this.sides.direction });
  }

  choosePatch(patch, isAdding) {
    const token = this.chooserPatches.tokens[patch] ?? -1;
    if (token >= 0) this.choose(token, isAdding);
  }

  clickChip(event) {
    const chip = event.target.closest("[data-token]");
    if (chip) this.choose(Number(chip.dataset.token), event.shiftKey || event.ctrlKey || event.metaKey);
  }

  pressChip(event) {
    const distance = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
    const index = this.chooserPatches.elsewhere.indexOf(Number(event.target.dataset?.token));
    if (!distance || index < 0) return;
    const next = this.chooserPatches.elsewhere[index + distance];
    if (next !== undefined) this.choose(next);
    event.preventDefault();
    event.stopPropagation();
  }

  press(event) {
    if (!PATCH_ARROWS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    this.move(...PATCH_ARROWS[event.key]);
    event.preventDefault();
    event.stopPropagation();
  }

  // The keyboard moves the patch that looks; where patches do not choose, it moves the crosshair.
  move(down, across) {
    const { rows, columns } = this.grid;
    const middle = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
    const from = this.sides.isOnPicture ? this.chosenPatches()[0] : this.cursor;
    const patch = from === undefined || from === null ? middle : neighbourPatch(from, down, across, rows, columns);
    if (this.sides.isOnPicture) {
      this.choosePatch(patch, false);
      this.context.announce(patchName(this.grid, patch));
      return;
    }
    const box = patchBox(this.grid, patch, this.parts.canvas.clientWidth, this.parts.canvas.clientHeight);
    const corner = this.parts.canvas.getBoundingClientRect();
    this.point(patch, { clientX: corner.x + box.x + box.width, clientY: corner.y + box.y + box.height });
    this.context.announce(`${patchName(this.grid, patch)}, ${readableWeight(this.values[patch])}`);
  }

  patchAt(event) {
    const box = this.parts.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.x) / box.width) * this.grid.columns);
    const row = Math.floor(((event.clientY - box.y) / box.height) * this.grid.rows);
    const isInside = column >= 0 && row >= 0 && column < this.grid.columns && row < this.grid.rows;
    return isInside ? row * this.grid.columns + column : null;
  }

  async point(patch, event) {
    const isNew = patch !== this.cursor;
    this.cursor = patch;
    if (isNew) this.paint();
    if (patch === null || !this.values) return this.context.tooltip.hide();
    const weight = await this.exactWeight(patch);
    if (patch === this.cursor) this.context.tooltip.show(event.clientX, event.clientY, [patchName(this.grid, patch), { text: measuredWeight(this.frame, weight), kind: "number" }]);
  }

  exactWeight(patch) {
    const token = this.patches.tokens[patch];
    if (this.chosen.length > 1 || token < 0) return { value: this.values[patch], exact: this.frame.exact };
    return this.sides.direction === "from" ? this.frame.value(this.chosen[0], token) : this.frame.value(token, this.chosen[0]);
  }

  picture() {
    const colours = this.context.palette();
    const { canvas, title } = this.parts;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    this.cursor = null;
    this.paint();
    const place = `x="16" y="16" width="${width}" height="${height}" preserveAspectRatio="none"`;
    return svgDocument(width + 32, height + 60, colours.surface, [
      `<filter id="pale"><feColorMatrix type="saturate" values="${this.saturation()}"/></filter>`,
      `<image ${place} filter="url(#pale)" href="${svgEscape(this.image.source)}"/>`,
      `<image ${place} href="${canvas.toDataURL("image/png")}"/>`,
      `<text x="16" y="${height + 42}" font-size="14" fill="${colours.ink}">${svgEscape(title.textContent)}</text>`,
      `<text x="${width + 16}" y="${height + 42}" font-size="12" text-anchor="end" fill="${colours.muted}">largest ${svgEscape(readableWeight(this.peak))}</text>`,
    ]);
  }
}

function neighbourPatch(patch, down, across, rows, columns) {
  const row = Math.min(Math.max(Math.floor(patch / columns) + down, 0), rows - 1);
  const column = Math.min(Math.max((patch % columns) + across, 0), columns - 1);
  return row * columns + column;
}

function factLine([name, weight, note]) {
  const number = make("span", { class: "image-fact-weight" }, readableWeight(weight));
  return make("li", {}, make("bdi", {}, name), number, make("span", { class: "image-fact-note" }, note));
}
