// Every head in one grid: a row for each layer, a colour for each head.

import { weightColour, inkOnWeight } from "../drawing/colour.js";
import { make } from "../drawing/elements.js";
import { DIFFERENCE } from "./collection.js";
import { briefNumber, withError } from "./numbers.js";
import { TYPE, isWanted } from "./state.js";

const MOST = 44; // pixels of a cell
const LEAST = 12;
const WITH_NUMBERS = 30; // pixels from which a cell has room for a number
const LABELS = 34; // of the numbers of layers
const MEANS = 78; // of the means of layers

/** The grid; `update(state, colours)` paints it, `focus()` puts the keyboard on the chosen head. */
export function createHeadsGrid(host, numbers, store, tooltip) {
  const cells = numbers.heads.map((head, index) => cellOf(head, index));
  const most = Math.max(...numbers.layers.map((layer) => layer.heads));
  const means = numbers.layers.map(() => make("div", { class: "layer-mean", "aria-hidden": "true" }, make("span", { class: "layer-bar" }), make("span", { class: "layer-number" })));
  const head = make("div", { class: "grid-row grid-top", role: "row" }, make("div", { class: "grid-corner", role: "columnheader" }, make("span", { class: "unseen" }, "Layer")),
    ...Array.from({ length: most }, (_, number) => make("div", { class: "grid-column", role: "columnheader", "aria-label": `head ${number}` }, number % 2 && most > 40 ? "" : String(number))));
  const rows = numbers.layers.map((layer, place) => make("div", { class: "grid-row", role: "row" },
    make("div", { class: "grid-layer", role: "rowheader", "aria-label": `layer ${layer.layer}`, title: layer.site }, String(layer.layer)),
    ...cells.slice(numbers.firsts[place], numbers.firsts[place] + layer.heads), means[place]));
  const grid = make("div", { class: "heads-table", role: "grid", "aria-label": "Heads: a row for each layer", "data-testid": "heads-table" }, head, ...rows);
  const scroller = make("div", { class: "grid-scroller" }, grid);
  host.append(scroller);
  let chosen = -1;
  let textOf = (_head) => [];

  const indexOf = (event) => {
    const cell = event.target.closest?.("[role=gridcell]");
    return cell ? Number(cell.dataset.head) : -1;
  };
  grid.addEventListener("click", (event) => {
    const at = indexOf(event);
    if (at >= 0) store.set({ at });
  });
  grid.addEventListener("pointermove", (event) => {
    const at = event.pointerType === "touch" ? -1 : indexOf(event);
    if (at < 0) tooltip.hide();
    else tooltip.show(event.clientX, event.clientY, textOf(at));
  });
  grid.addEventListener("pointerleave", () => tooltip.hide());
  grid.addEventListener("keydown", (event) => {
    const at = neighbour(numbers, store.get().at, event.key);
    if (at < 0) return;
    event.preventDefault();
    store.set({ at });
    cells[at].focus();
  });

  const fit = () => {
    const room = Math.floor((scroller.clientWidth - LABELS - MEANS - 4) / most);
    const size = Math.min(MOST, Math.max(LEAST, room));
    grid.style.setProperty("--cell", `${size}px`);
    grid.toggleAttribute("data-large", size >= WITH_NUMBERS);
  };
  const widest = () => host.parentElement.style.setProperty("--grid-width", `${LABELS + most * MOST + MEANS + 16}px`);
  new ResizeObserver(fit).observe(scroller);

  return {
    focus: () => cells[store.get().at].focus(),
    update(state, scale, colours) {
      textOf = (at) => tooltipLines(numbers, state, at);
      paint(numbers, state, scale, colours, cells);
      paintMeans(numbers, state, scale, means);
    },
    choose(at) {
      if (chosen >= 0) {
        cells[chosen].setAttribute("aria-selected", "false");
        cells[chosen].tabIndex = -1;
      }
      chosen = at;
      cells[at].setAttribute("aria-selected", "true");
      cells[at].tabIndex = 0;
      showInside(scroller, cells[at]);
    },
    resize() {
      widest();
      fit();
    },
  };
}

function cellOf({ place, head }, index) {
  return make("div", { class: "head-cell", role: "gridcell", tabindex: "-1", "aria-selected": "false", "data-head": index, "data-testid": `cell-${place}-${head}` });
}

/** Scrolls the grid alone, and only where the cell is out of sight. */
function showInside(scroller, cell) {
  const [box, view] = [cell.getBoundingClientRect(), scroller.getBoundingClientRect()];
  if (view.width === 0) return;
  const [left, top] = [view.left + LABELS, view.top + 22];
  if (box.left < left) scroller.scrollLeft -= left - box.left;
  if (box.right > view.right) scroller.scrollLeft += box.right - view.right;
  if (box.top < top) scroller.scrollTop -= top - box.top;
  if (box.bottom > view.bottom) scroller.scrollTop += box.bottom - view.bottom;
}

function neighbour(numbers, at, key) {
  const { place, head } = numbers.heads[at];
  const last = numbers.layers[place].heads - 1;
  const up = (change) => {
    const layer = numbers.layers[place + change];
    return layer ? numbers.headAt(place + change, Math.min(head, layer.heads - 1)) : -1;
  };
  if (key === "ArrowLeft") return numbers.headAt(place, head - 1);
  if (key === "ArrowRight") return numbers.headAt(place, head + 1);
  if (key === "ArrowUp") return up(-1);
  if (key === "ArrowDown") return up(1);
  if (key === "Home") return numbers.headAt(place, 0);
  return key === "End" ? numbers.headAt(place, last) : -1;
}

/** The largest number of the colour scale, and whether there are numbers below zero. */
export function scaleOf(numbers, { by, run }) {
  if (by === TYPE) return null;
  const quantity = numbers.quantity(by);
  let [peak, least] = [0, 0];
  for (let head = 0; head < numbers.heads.length; head += 1) {
    const { mean } = numbers.estimate(quantity, head, run);
    if (!Number.isFinite(mean)) continue;
    peak = Math.max(peak, Math.abs(mean));
    least = Math.min(least, mean);
  }
  return { quantity, peak: peak || 1, signed: run === DIFFERENCE || least < 0 };
}

function paint(numbers, state, scale, colours, cells) {
  cells.forEach((cell, head) => {
    const isOff = !isWanted(numbers, state, head);
    cell.toggleAttribute("data-off", isOff);
    if (scale) paintNumber(numbers, state, scale, colours, cell, head, isOff);
    else paintType(numbers, state, cell, head, isOff);
    cell.setAttribute("aria-label", tooltipLines(numbers, state, head).map(({ text }) => text).join(", "));
  });
}

function paintNumber(numbers, state, scale, colours, cell, head, isOff) {
  const { mean } = numbers.estimate(scale.quantity, head, state.run);
  const isKnown = Number.isFinite(mean);
  cell.removeAttribute("data-type");
  cell.toggleAttribute("data-clear", !isOff && state.run === DIFFERENCE && numbers.isClear(scale.quantity, head) === true);
  cell.toggleAttribute("data-unknown", !isKnown);
  const isPainted = isKnown && !isOff;
  cell.style.background = isPainted ? weightColour(colours, mean, scale.peak, "linear", scale.signed) : "";
  cell.style.color = isPainted ? inkOnWeight(colours, mean, scale.peak, "linear", scale.signed) : "";
  cell.dataset.shown = isPainted ? briefNumber(mean, scale.peak) : "";
  cell.toggleAttribute("data-sign", false);
}

function paintType(numbers, state, cell, head, isOff) {
  const type = numbers.type(head, state.run === DIFFERENCE ? 1 : state.run);
  const isChanged = state.run === DIFFERENCE && numbers.isChanged(head);
  const isQuiet = state.run === DIFFERENCE && !isChanged;
  cell.style.background = "";
  cell.style.color = "";
  cell.removeAttribute("data-unknown");
  cell.toggleAttribute("data-clear", isChanged && !isOff);
  if (type && !isOff && !isQuiet) cell.dataset.type = type;
  else cell.removeAttribute("data-type");
  cell.dataset.shown = type && !isOff ? numbers.manifest.types[type] : "";
  cell.toggleAttribute("data-sign", true);
}

/** Means over the heads of each layer, so that what changes with depth can be seen. */
function paintMeans(numbers, state, scale, means) {
  means.forEach((element, place) => {
    element.hidden = !scale;
    if (!scale) return;
    const first = numbers.firsts[place];
    const values = Array.from({ length: numbers.layers[place].heads }, (_, head) => numbers.estimate(scale.quantity, first + head, state.run).mean).filter(Number.isFinite);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const [bar, number] = element.children;
    bar.style.width = `${Number.isFinite(mean) ? (36 * Math.abs(mean)) / scale.peak : 0}px`;
    bar.toggleAttribute("data-negative", mean < 0);
    number.textContent = briefNumber(mean, scale.peak);
    element.title = `mean of the layer: ${briefNumber(mean, scale.peak)}`;
  });
}

function tooltipLines(numbers, state, head) {
  const { layer, head: own } = numbers.heads[head];
  const lines = [{ text: `layer ${layer}, head ${own}`, kind: "strong" }];
  if (state.by !== TYPE) {
    const quantity = numbers.quantity(state.by);
    lines.push({ text: `${numbers.quantities[quantity].label} ${withError(numbers.estimate(quantity, head, state.run), state.run === DIFFERENCE)}`, kind: "number" });
    if (state.run === DIFFERENCE && numbers.isClear(quantity, head)) lines.push({ text: "a clear difference", kind: "plain" });
  }
  if (state.run === DIFFERENCE) {
    const [before, now] = [0, 1].map((run) => numbers.typeLabel(head, run));
    if (before || now) lines.push({ text: before === now ? before : `${before} → ${now}`, kind: "plain" });
  } else if (numbers.type(head, state.run)) lines.push({ text: numbers.typeLabel(head, state.run), kind: "plain" });
  return lines;
}
