// All layers × heads at once, with the name of each head's type, below the text.

import { measuredWeight } from "../../data/numbers.js";
import { indexOfPosition, rankedByPair } from "../../data/ranking.js";
import { layerName } from "../../data/scene.js";
import { make } from "../../drawing/elements.js";
import { isolated } from "../../drawing/labels.js";
import { svgDocument, svgEscape } from "../../export/svg.js";
import { headFrame, pictureState } from "./head_picture.js";
import { createHeadsGrid } from "./heads_grid.js";
import { createSentence } from "./sentence.js";

const PICTURE = { side: 96, gap: 16, left: 84, top: 16, caption: 34 };

/** The map view. */
export function createMapView(host, context) {
  const view = new MapView(host, context);
  const moveToGrid = () => view.heads.focus();
  return {
    update: (_frame, state) => view.update(state),
    picture: () => ({ svg: mapPicture(context, view.heads) }),
    resize() {},
    focus: moveToGrid,
    keys: { ArrowLeft: moveToGrid, ArrowRight: moveToGrid, ArrowUp: moveToGrid, ArrowDown: moveToGrid, Escape: () => view.clear() },
    destroy: () => view.destroy(),
  };
}

class MapView {
  constructor(host, context) {
    this.context = context;
    this.box = make("div", { class: "map-view" });
    this.scroller = make("div", { class: "scroller", "data-scrolls": true }, this.box);
    host.append(this.scroller);
    this.sentence = createSentence(this.box, context);
    this.heads = createHeadsGrid(this.box, context, "map", (layer, head) => this.open(layer, head));
    this.heads.grid.addEventListener("pointermove", (event) => this.point(event));
    this.heads.grid.addEventListener("pointerleave", () => this.leave());
    this.pointed = "";
  }

  destroy() {
    this.leave();
    this.heads.destroy();
    this.scroller.remove();
  }

  async update(state) {
    const { scene } = this.context;
    this.state = state;
    const frame = await headFrame(scene, state, 0, 0);
    if (this.state !== state) return;
    this.sentence.show(frame, state);
    const ranking = state.pair.length && this.sentence.hiddenToken() === null ? await this.rank(scene, state, frame) : null;
    if (this.state !== state) return;
    this.sentence.tell(ranking, ({ layer, head }) => `${layerName(scene, state.part, layer).toLowerCase()} head ${head}`);
    await this.heads.update(state, ranking);
  }

  /** The heads by what the chosen words give; asked for again where something that it depends on has changed. */
  rank(scene, state, frame) {
    const key = JSON.stringify([state.part, state.unit, state.special, state.step, state.pair, state.measure]);
    if (this.ranked?.scene !== scene || this.ranked.key !== key) this.ranked = { scene, key, ranking: rankedByPair(scene, state, frame) };
    return this.ranked.ranking;
  }

  open(layer, head) {
    const { scene, store, take, announce } = this.context;
    const opened = { layer, head, mode: "head", view: "matrix" };
    const [query] = store.get().pair;
    const row = query === undefined ? -1 : indexOfPosition(this.sentence.frame.rows, query);
    if (row < 0) store.set(opened);
    else take({ ...opened, selected: [row], direction: "from", hidden: [], zoom: null });
    announce(`${layerName(scene, store.get().part, layer)}, head ${head}, opened as a matrix`);
  }

  clear() {
    if (this.context.store.get().pair.length === 0) return false;
    this.sentence.choose([]);
    return true;
  }

  // The pair under the pointer, read from the frame of that head and not from its picture.
  async point(event) {
    const canvas = event.target.closest(".thumb")?.querySelector(".thumb-picture");
    const cell = canvas && this.heads.cells.get(canvas.parentElement.dataset.place);
    const box = canvas?.getBoundingClientRect();
    const [x, y] = box ? [(event.clientX - box.x) / box.width, (event.clientY - box.y) / box.height] : [-1, -1];
    if (!cell || x < 0 || y < 0 || x >= 1 || y >= 1) return this.leave();
    const here = `${cell.layer}-${cell.head} ${event.clientX} ${event.clientY}`;
    this.pointed = here;
    const frame = await this.frameUnder(cell);
    const [i, j] = [Math.floor(y * frame.rows.labels.length), Math.floor(x * frame.columns.labels.length)];
    const weight = await frame.value(i, j);
    if (this.pointed !== here) return undefined;
    const { part } = this.state;
    return this.context.tooltip.show(event.clientX, event.clientY, [
      `${isolated(frame.rows.labels[i])} → ${isolated(frame.columns.labels[j])}`,
      { text: measuredWeight(frame, weight), kind: "number" },
      { text: `${layerName(this.context.scene, part, cell.layer)} · head ${cell.head}`, kind: "muted" },
    ]);
  }

  /** The frame of the head under the pointer; that of another is not kept, as it may be large. */
  frameUnder(cell) {
    const [{ scene }, { state, hovered }] = [this.context, this];
    if (hovered?.cell !== cell || hovered.state !== state || hovered.scene !== scene) {
      this.hovered = { cell, state, scene, frame: headFrame(scene, pictureState(scene, state, cell.site), cell.layer, cell.head) };
    }
    return this.hovered.frame;
  }

  leave() {
    this.pointed = "";
    this.context.tooltip.hide();
  }
}

function mapPicture(context, heads) {
  const { side, gap, left, top, caption } = PICTURE;
  const colours = context.palette();
  const cells = [...heads.cells.values()];
  const columns = Math.max(...cells.map((cell) => cell.column)) + 1;
  const rows = heads.rows();
  const parts = [];
  rows.forEach((row, index) => {
    const y = top + index * (side + caption + gap) + side / 2;
    if (row.name !== null) parts.push(`<text x="16" y="${y}" font-size="13" fill="${colours.ink}">${svgEscape(row.name)}</text>`);
  });
  for (const cell of cells) parts.push(...cellPicture(cell, colours));
  return svgDocument(left + columns * (side + gap), top + rows.length * (side + caption + gap), colours.surface, parts);
}

function cellPicture(cell, colours) {
  const { side, gap, left, top, caption } = PICTURE;
  const x = left + cell.column * (side + gap);
  const y = top + cell.row * (side + caption + gap);
  const source = cell.data ? cell.canvas.toDataURL("image/png") : null;
  const place = `x="${x}" y="${y}" width="${side}" height="${side}"`;
  const rendering = cell.canvas.classList.contains("pixelated") ? "pixelated" : "auto";
  const image = source
    ? `<image ${place} preserveAspectRatio="none" image-rendering="${rendering}" href="${source}"/>`
    : `<rect ${place} fill="${colours.line}"/>`;
  const [number, note] = [cell.number, cell.note].map(svgEscape);
  return [
    image,
    `<text x="${x}" y="${y + side + 14}" font-size="11" fill="${colours.ink}">${number}</text>`,
    `<text x="${x + side}" y="${y + side + 14}" font-size="11" text-anchor="end" fill="${colours.muted}">${note}</text>`,
  ];
}
