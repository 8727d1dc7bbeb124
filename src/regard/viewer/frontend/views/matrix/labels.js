// Token labels beside a matrix: thinned out so that they never touch, shortened to their margin.

import { visibleLabel } from "../../drawing/labels.js";
import { svgEscape, underlineAttribute } from "../../export/svg.js";

export const LABEL_FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const LABEL_SPACING = 14;
const LABEL_PADDING = 8;
const LONGEST_MEASURED = 60;
const STEPS = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000];

/** Measures and shortens the labels of an axis once; `margin` is the room that they need. */
export function createLabelSet({ name, labels, written }, measuring, most) {
  const shown = labels.map(visibleLabel);
  const widths = new Map();
  const shortened = new Map();
  const widthOf = (text) => {
    if (!widths.has(text)) widths.set(text, measuring.measureText(text).width);
    return widths.get(text);
  };
  const longest = [...new Set(shown)].sort((left, right) => right.length - left.length).slice(0, LONGEST_MEASURED);
  measuring.font = LABEL_FONT;
  const widest = Math.max(0, ...longest.map(widthOf));
  return {
    name,
    widest,
    written,
    margin: Math.ceil(Math.min(most, widest)) + LABEL_PADDING * 2,
    /** The label, shortened to at most `room` pixels. */
    text(index) {
      if (!shortened.has(index)) shortened.set(index, fittingText(shown[index], most, widthOf));
      return shortened.get(index);
    },
  };
}

function fittingText(text, room, widthOf) {
  if (widthOf(text) <= room) return text;
  const letters = [...text];
  let [low, high] = [0, letters.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (widthOf(`${letters.slice(0, middle).join("")}…`) <= room) low = middle;
    else high = middle - 1;
  }
  return `${letters.slice(0, low).join("")}…`;
}

/** Every how many cells a label has room. */
function labelStep(scale) {
  return STEPS.find((step) => step * scale >= LABEL_SPACING) ?? Infinity;
}

/** The cells of an axis that get a label: [first, last) by step. */
function* labelledCells(start, length, scale, count) {
  const step = labelStep(scale);
  if (!Number.isFinite(step)) return;
  const first = Math.max(0, Math.ceil(start / step) * step);
  const last = Math.min(count, start + length / scale);
  for (let cell = first; cell < last; cell += step) {
    const middle = (cell + 0.5 - start) * scale;
    if (middle >= 0 && middle <= length) yield [cell, middle];
  }
}

/** What the axes are, [text, x, y] in the corner between them, if it is large enough. */
export function axisNames({ area, rowSet, columnSet }) {
  if (area.x < 76 || area.y < 44) return [];
  const [across, down] = [columnSet.name?.toLowerCase() ?? "keys", rowSet.name?.toLowerCase() ?? "queries"];
  return [[`${across} →`, area.x - 14, area.y - 33], [`${down} ↓`, area.x - 14, area.y - 18]];
}

/** Whether column labels fit side by side without being turned. */
export function labelsLieFlat(set, scale) {
  return scale >= set.widest + 10;
}

/** Draws the labels of both axes; `emphasis(axis, index)` gives a colour or null. */
export function drawLabels(surface, layout, emphasis) {
  const { camera, plot, area, rowSet, columnSet, rows, columns, colours } = layout;
  surface.font = LABEL_FONT;
  surface.textBaseline = "middle";
  surface.textAlign = "right";
  for (const [row, middle] of labelledCells(camera.top, plot.height, camera.scaleY, rows)) {
    surface.fillStyle = emphasis("row", row) ?? colours.muted;
    surface.fillText(rowSet.text(row), area.x - LABEL_PADDING, plot.y + middle);
    if (rowSet.written[row]) underline(surface, rowSet.text(row), area.x - LABEL_PADDING, Math.round(plot.y + middle) + 6, colours);
  }
  const flat = labelsLieFlat(columnSet, camera.scaleX);
  surface.textAlign = flat ? "center" : "left";
  for (const [column, middle] of labelledCells(camera.left, plot.width, camera.scaleX, columns)) {
    surface.fillStyle = emphasis("column", column) ?? colours.muted;
    const line = columnSet.written[column] ? colours : null;
    if (flat) drawFlat(surface, columnSet.text(column), plot.x + middle, area.y - LABEL_PADDING - 4, line);
    else drawTurned(surface, columnSet.text(column), plot.x + middle, area.y - LABEL_PADDING, line);
  }
}

function drawFlat(surface, text, x, y, line) {
  surface.fillText(text, x, y);
  if (line) underline(surface, text, x, Math.round(y) + 6, line);
}

/** A line below a label: what the model wrote. */
function underline(surface, text, x, y, colours) {
  const width = surface.measureText(text).width;
  const start = { right: x - width, center: x - width / 2, left: x }[surface.textAlign];
  surface.fillStyle = colours.accent;
  surface.fillRect(start, y, width, 1);
}

function drawTurned(surface, text, x, y, line) {
  surface.save();
  surface.translate(x, y);
  surface.rotate(-Math.PI / 2);
  surface.fillText(text, 0, 0);
  if (line) underline(surface, text, 0, Math.round(x) - x + 6, line);
  surface.restore();
}

/** The labels of both axes as SVG text. */
export function labelsAsSvg(layout) {
  const { camera, plot, area, rowSet, columnSet, rows, columns, colours } = layout;
  const style = `font-size="12" fill="${colours.muted}" dominant-baseline="central"`;
  const parts = [];
  for (const [row, middle] of labelledCells(camera.top, plot.height, camera.scaleY, rows)) {
    parts.push(`<text x="${area.x - LABEL_PADDING}" y="${plot.y + middle}" text-anchor="end" ${style}${underlineAttribute(rowSet.written[row])}>${svgEscape(rowSet.text(row))}</text>`);
  }
  const flat = labelsLieFlat(columnSet, camera.scaleX);
  for (const [column, middle] of labelledCells(camera.left, plot.width, camera.scaleX, columns)) {
    const [x, y] = [plot.x + middle, area.y - LABEL_PADDING];
    const place = flat ? `x="${x}" y="${y - 4}" text-anchor="middle"` : `transform="translate(${x} ${y}) rotate(-90)"`;
    parts.push(`<text ${place} ${style}${underlineAttribute(columnSet.written[column])}>${svgEscape(columnSet.text(column))}</text>`);
  }
  const small = `font-size="11" text-anchor="end" fill="${colours.muted}" dominant-baseline="central"`;
  for (const [name, x, y] of axisNames(layout)) parts.push(`<text x="${x}" y="${y}" ${small}>${svgEscape(name)}</text>`);
  return parts;
}
