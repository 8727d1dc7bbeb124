// Layers × heads as thumbnails: the whole map, and the rail beside an open view.

import { hasSink, headType, typeTitle } from "../../data/head_types.js";
import { layerName } from "../../data/scene.js";
import { paintWeights } from "../../drawing/colour.js";
import { make } from "../../drawing/elements.js";
import { visibleLabel, withoutControls } from "../../drawing/labels.js";
import { initialState } from "../../state/state.js";
import { arrangedHeads } from "./arrangement.js";
import { headPicture, pictureKey } from "./head_picture.js";

const MOST_IN_RAIL_ROW = 9;

/** A grid of head buttons; `kind` is "map" or "rail", `choose(layer, head)` is called by click and Enter. */
export function createHeadsGrid(host, context, kind, choose) {
  const grid = make("div", { class: `heads heads-${kind}`, role: "grid" });
  host.append(grid);
  const cells = new Map();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawCell(cells.get(entry.target.getAttribute("data-place")));
  }, { root: null, rootMargin: "200px" });
  const model = { context, kind, choose, grid, cells, watcher, state: null, shape: "", key: "", scene: null, current: "", firstPicture: null };
  grid.addEventListener("keydown", (event) => moveInGrid(model, event));
  return {
    grid,
    cells,
    /** The rows of the grid. */
    rows: () => model.rows,
    /** Follows the state; resolves when the first thumbnails are drawn. */
    async update(state, ranking = null) {
      const { scene } = context;
      // The rail has every head in its place, as the stored thumbnails show them.
      model.state = kind === "rail" ? { ...initialState(), part: state.part } : state;
      grid.setAttribute("aria-label", `Heads by ${model.state.sort === "pair" ? "chosen words" : model.state.sort}`);
      model.rows = arrangedHeads(scene, model.state, ranking);
      const shape = gridShape(scene, model.state.part, model.rows);
      const key = pictureKey(scene, model.state);
      if (model.shape !== shape) fillGrid(model);
      else if (model.scene !== scene || model.key !== key) renewCells(model);
      [model.shape, model.key, model.scene] = [shape, key, scene];
      markCurrent(model, state);
      recolour(model);
      return firstDrawn(model);
    },
    focus: () => currentButton(model)?.focus(),
    destroy() {
      watcher.disconnect();
      grid.remove();
    },
  };
}

/** What the buttons of a grid depend on: names of rows, their heads and types. */
function gridShape(scene, part, rows) {
  const types = scene.parts[part].sites.map((number) => scene.sites[number].types);
  return JSON.stringify([part, rows, types]);
}

/** Another scene or other tokens of the same heads: old thumbnails stay until the new ones are there. */
function renewCells(model) {
  model.watcher.disconnect();
  for (const cell of model.cells.values()) {
    cell.isRequested = false;
    model.watcher.observe(cell.button);
  }
}

function fillGrid(model) {
  const { kind, cells, watcher, rows } = model;
  const hadFocus = model.grid.contains(document.activeElement) ? document.activeElement.getAttribute("data-place") : null;
  watcher.disconnect();
  cells.clear();
  model.grid.setAttribute("aria-rowcount", String(rows.length));
  model.grid.replaceChildren(...rows.map((row, index) => gridRow(model, row, index)));
  model.grid.style.setProperty(`--${kind}-columns`, String(kind === "rail" ? railColumns(rows) : mostHeads(rows)));
  model.grid.toggleAttribute("data-flow", rows.every((row) => row.name === null));
  for (const cell of cells.values()) watcher.observe(cell.button);
  if (hadFocus) (cells.get(hadFocus) ?? cells.values().next().value)?.button.focus();
}

function mostHeads(rows) {
  return Math.max(1, ...rows.map((row) => row.heads.length));
}

function railColumns(rows) {
  const most = mostHeads(rows);
  if (most <= MOST_IN_RAIL_ROW) return Math.max(4, most);
  return [8, 6, 7, 5].find((columns) => most % columns === 0) ?? 8;
}

function gridRow(model, row, index) {
  const heads = row.heads.map((place, column) => headCell(model, place, index, column));
  const label = row.name === null ? [] : [make("div", { class: "heads-layer", role: "rowheader", title: row.title }, row.name)];
  return make("div", { class: "heads-row", role: "row" }, ...label, make("div", { class: "heads-cells", role: "presentation" }, ...heads));
}

function headCell(model, { layer, head, value, partner }, row, column) {
  const { scene } = model.context;
  const { part, sort } = model.state;
  const site = scene.sites[scene.parts[part].sites[layer]];
  const type = site.types?.[head] ?? "";
  const name = layerName(scene, part, layer);
  const canvas = make("canvas", { class: "thumb-picture", width: 1, height: 1, "aria-hidden": "true" });
  const place = `${layer}-${head}`;
  const button = make("button", {
    type: "button", class: "thumb", tabindex: "-1", "data-place": place,
    "data-testid": `${model.kind === "map" ? "thumb" : "rail"}-${place}`,
    "aria-label": `${name}, head ${head} ${type}`.trim(),
    title: model.kind === "rail" ? `head ${head}${type ? ` · ${typeTitle(type)}` : ""}` : null,
    onclick: () => model.choose(layer, head),
  }, canvas);
  const number = sort === "layer" ? `${head}` : `${site.label ?? site.layer ?? layer}·${head}`;
  if (model.kind === "map") {
    const title = typeTitle(type);
    const captions = [
      make("span", { class: "thumb-head" }, number),
      make("span", { class: "thumb-value" }, value.replace(" %", "%")),
      ...(partner ? [make("span", { class: "thumb-partner" }, "→ ", make("bdi", {}, visibleLabel(partner)))] : []),
      ...(type ? [make("span", { class: "thumb-type", title }, headType(type))] : []),
      ...(hasSink(type) ? [make("span", { class: "thumb-type", title }, "+ sink")] : []),
    ];
    button.append(...captions.flatMap((caption) => [" ", caption]));
    const text = withoutControls(captions.map((caption) => caption.textContent).filter(Boolean).join(" "));
    button.setAttribute("aria-label", sort === "layer" ? `${name}, head ${text}` : `${name}, head ${head}: ${text}`);
  }
  model.cells.set(place, { model, site, layer, head, number, note: value || headType(type), row, column, button, canvas, data: null, painted: null, isRequested: false });
  return make("div", { role: "gridcell", class: "heads-cell" }, button);
}

function drawCell(cell) {
  if (!cell || cell.isRequested) return;
  cell.isRequested = true;
  const { model } = cell;
  const { state } = model;
  const pending = headPicture(model.context.scene, state, cell.layer, cell.head).then((data) => {
    if (model.state !== state && pictureKey(model.context.scene, model.state) !== pictureKey(model.context.scene, state)) return;
    cell.data = data;
    cell.painted = null;
    paintCell(cell);
  });
  pending.catch((problem) => {
    cell.button.title = `This thumbnail cannot be drawn: ${problem.message}`;
    cell.button.classList.add("thumb-broken");
  });
  model.firstPicture ??= pending.catch(() => undefined);
}

function paintCell(cell) {
  const { context, state } = cell.model;
  const colours = context.palette();
  const look = `${colours.theme} ${state.colour}`;
  if (!cell.data || cell.painted === look) return;
  cell.painted = look;
  const { data, height, width, peak, signed } = cell.data;
  if (height === 0 || width === 0) return;
  cell.canvas.width = width;
  cell.canvas.height = height;
  const pixels = new ImageData(width, height);
  paintWeights(pixels, data, peak, state.colour, signed, colours);
  cell.canvas.getContext("2d").putImageData(pixels, 0, 0);
  cell.canvas.classList.toggle("pixelated", width <= 40 && height <= 40);
}

function recolour(model) {
  for (const cell of model.cells.values()) paintCell(cell);
}

function firstDrawn(model) {
  if (model.cells.size === 0) return Promise.resolve();
  // The observer tells only after a frame; the first thumbnail is surely wanted.
  drawCell(model.cells.get(model.current) ?? model.cells.values().next().value);
  return model.firstPicture;
}

function markCurrent(model, state) {
  const selectedPlace = `${state.layer === "all" ? 0 : state.layer}-${state.head}`;
  const isSingleHead = state.mode === "head" && state.layer !== "all";
  const isMoved = selectedPlace !== model.current;
  model.current = model.cells.has(selectedPlace) ? selectedPlace : (model.cells.keys().next().value ?? "");
  for (const [place, cell] of model.cells) {
    const active = place === model.current;
    cell.button.tabIndex = active ? 0 : -1;
    cell.button.toggleAttribute("data-current", active && isSingleHead);
    if (active && isSingleHead) cell.button.setAttribute("aria-current", "true");
    else cell.button.removeAttribute("aria-current");
    cell.button.toggleAttribute("data-together", !isSingleHead && (state.layer === "all" || cell.layer === state.layer));
  }
  if (isMoved && model.state.sort === "layer") keepInSight(model);
}

function keepInSight(model) {
  const button = currentButton(model);
  const scroller = model.grid.closest("[data-scrolls]");
  if (!button || !scroller || !button.offsetParent) return;
  const [box, frame] = [button.getBoundingClientRect(), scroller.getBoundingClientRect()];
  if (box.top < frame.top) scroller.scrollTop -= frame.top - box.top + 24;
  if (box.bottom > frame.bottom) scroller.scrollTop += box.bottom - frame.bottom + 24;
}

function currentButton(model) {
  return model.cells.get(model.current)?.button;
}

const GRID_STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** Moves the focus of a grid; returns whether the key was one of its own. */
function moveInGrid(model, event) {
  const step = GRID_STEPS[event.key];
  const from = model.cells.get(event.target.dataset?.place);
  if (!step || !from || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  event.stopPropagation();
  const row = [...model.cells.values()].filter((cell) => cell.row === from.row + step[0]);
  const target = row[Math.min(from.column + step[1], step[1] === 0 ? row.length - 1 : Infinity)];
  if (!target) return;
  from.button.tabIndex = -1;
  target.button.tabIndex = 0;
  target.button.focus();
}
