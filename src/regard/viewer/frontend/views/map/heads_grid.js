// Layers × heads as thumbnails: the whole map, and the rail beside an open view.

import { typeTitle } from "../../data/head_types.js";
import { layerName, thumbnail } from "../../data/scene.js";
import { paintWeights } from "../../drawing/colour.js";
import { make } from "../../drawing/elements.js";

const MOST_IN_RAIL_ROW = 9;

/** A grid of head buttons; `kind` is "map" or "rail", `choose(layer, head)` is called by click and Enter. */
export function createHeadsGrid(host, context, kind, choose) {
  const grid = make("div", { class: `heads heads-${kind}`, role: "grid", "aria-label": "Heads by layer" });
  host.append(grid);
  const cells = new Map();
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) drawCell(cells.get(entry.target.getAttribute("data-place")));
  }, { root: null, rootMargin: "200px" });
  const model = { context, kind, choose, grid, cells, watcher, part: null, shape: "", scene: null, current: "", firstPicture: null };
  grid.addEventListener("keydown", (event) => moveInGrid(model, event));
  return {
    grid,
    cells,
    /** Follows the state; resolves when the first thumbnails are drawn. */
    async update(state) {
      const shape = gridShape(context.scene, state.part);
      if (model.shape !== shape) fillGrid(model, state.part);
      else if (model.scene !== context.scene) renewCells(model);
      [model.shape, model.scene] = [shape, context.scene];
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

/** What the buttons of a grid depend on: part, names of layers, types of heads. */
function gridShape(scene, part) {
  return JSON.stringify([part, scene.parts[part].sites.map((number) => [scene.sites[number].layer, scene.sites[number].label, scene.sites[number].heads, scene.sites[number].types])]);
}

/** Another scene of the same shape: old thumbnails stay until the new ones are there. */
function renewCells(model) {
  const { scene } = model.context;
  model.watcher.disconnect();
  for (const cell of model.cells.values()) {
    cell.number = scene.parts[model.part].sites[cell.layer];
    cell.site = scene.sites[cell.number];
    cell.isRequested = false;
    model.watcher.observe(cell.button);
  }
}

function fillGrid(model, part) {
  const { context, kind, cells, watcher } = model;
  model.part = part;
  watcher.disconnect();
  cells.clear();
  const { scene } = context;
  const sites = scene.parts[part].sites.map((number) => scene.sites[number]);
  model.grid.setAttribute("aria-rowcount", String(sites.length));
  model.grid.replaceChildren(...sites.map((site, layer) => gridRow(model, site, layer)));
  model.grid.style.setProperty(`--${kind}-columns`, String(kind === "rail" ? railColumns(sites) : mostHeads(sites)));
  for (const cell of cells.values()) watcher.observe(cell.button);
}

function mostHeads(sites) {
  return Math.max(1, ...sites.map((site) => site.heads));
}

function railColumns(sites) {
  const most = mostHeads(sites);
  if (most <= MOST_IN_RAIL_ROW) return Math.max(4, most);
  return [8, 6, 7, 5].find((columns) => most % columns === 0) ?? 8;
}

function gridRow(model, site, layer) {
  const { scene } = model.context;
  const name = layerName(scene, model.part, layer);
  const heads = Array.from({ length: site.heads }, (_, head) => headCell(model, site, layer, head));
  const label = make("div", { class: "heads-layer", role: "rowheader", title: site.name }, name);
  return make("div", { class: "heads-row", role: "row" }, label, make("div", { class: "heads-cells", role: "presentation" }, ...heads));
}

function headCell(model, site, layer, head) {
  const type = site.types?.[head] ?? "";
  const canvas = make("canvas", { class: "thumb-picture", width: 1, height: 1, "aria-hidden": "true" });
  const place = `${layer}-${head}`;
  const button = make("button", {
    type: "button", class: "thumb", tabindex: "-1", "data-place": place,
    "data-testid": `${model.kind === "map" ? "thumb" : "rail"}-${place}`,
    "aria-label": `${layerName(model.context.scene, model.part, layer)}, head ${head} ${type}`.trim(),
    title: model.kind === "rail" ? `head ${head}${type ? ` · ${typeTitle(type)}` : ""}` : null,
    onclick: () => model.choose(layer, head),
  }, canvas);
  if (model.kind === "map") {
    button.append(make("span", { class: "thumb-head" }, `${head}`), " ", make("span", { class: "thumb-type", title: typeTitle(type) }, type));
  }
  const number = model.context.scene.parts[model.part].sites[layer];
  model.cells.set(place, { model, site, number, layer, head, button, canvas, data: null, paintedTheme: null, isRequested: false });
  return make("div", { role: "gridcell", class: "heads-cell" }, button);
}

function drawCell(cell) {
  if (!cell || cell.isRequested) return;
  cell.isRequested = true;
  const { model } = cell;
  const pending = Promise.resolve(thumbnail(model.context.scene, cell.number, cell.head)).then((data) => {
    cell.data = data;
    cell.paintedTheme = null;
    paintCell(cell);
  });
  pending.catch((problem) => {
    cell.button.title = `This thumbnail cannot be drawn: ${problem.message}`;
    cell.button.classList.add("thumb-broken");
  });
  model.firstPicture ??= pending.catch(() => undefined);
}

function paintCell(cell) {
  const colours = cell.model.context.palette();
  if (!cell.data || cell.paintedTheme === colours.theme) return;
  cell.paintedTheme = colours.theme;
  const { data, height, width } = cell.data;
  if (height === 0 || width === 0) return;
  cell.canvas.width = width;
  cell.canvas.height = height;
  const pixels = new ImageData(width, height);
  paintWeights(pixels, data, 255, "linear", false, colours);
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
  model.current = model.cells.has(selectedPlace) ? selectedPlace : "0-0";
  for (const [place, cell] of model.cells) {
    const active = place === model.current;
    cell.button.tabIndex = active ? 0 : -1;
    cell.button.toggleAttribute("data-current", active && isSingleHead);
    if (active && isSingleHead) cell.button.setAttribute("aria-current", "true");
    else cell.button.removeAttribute("aria-current");
    cell.button.toggleAttribute("data-together", !isSingleHead && (state.layer === "all" || cell.layer === state.layer));
  }
  if (isMoved) keepInSight(model);
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
  const layer = from.layer + step[0];
  const row = [...model.cells.values()].filter((cell) => cell.layer === layer);
  const target = row[Math.min(from.head + step[1], step[1] === 0 ? row.length - 1 : Infinity)];
  if (!target) return;
  from.button.tabIndex = -1;
  target.button.tabIndex = 0;
  target.button.focus();
}
