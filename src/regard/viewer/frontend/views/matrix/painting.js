// What is painted on the two canvases of the matrix: weights and labels below, the crosshair above.

import { TILE, scaleTop } from "../../data/frame.js";
import { readableWeight } from "../../data/numbers.js";
import { inkOnWeight, weightColour } from "../../drawing/colour.js";
import { LABEL_FONT, axisNames, drawLabels, labelsLieFlat } from "./labels.js";
import { drawTiles } from "./tiles.js";

const GAPS_FROM = 14;
const VALUES_FROM = 40;

/** Draws weights, and where cells are large, the gaps between them and their values. */
export function drawWeights(surface, layout, cache, frame, state, ratio) {
  const { camera, plot, area, colours } = layout;
  surface.save();
  surface.beginPath();
  surface.rect(area.x, area.y, area.width, area.height);
  surface.clip();
  drawTiles(surface, cache, frame, camera, plot, ratio);
  const smallest = Math.min(camera.scaleX, camera.scaleY);
  if (smallest >= GAPS_FROM) drawGaps(surface, layout, ratio);
  if (smallest >= VALUES_FROM) drawValues(surface, layout, cache, frame, state);
  if (frame.cut !== null && frame.cut !== undefined) coverRowsFrom(surface, layout, frame.cut);
  surface.restore();
  surface.strokeStyle = colours.line;
  surface.lineWidth = 1;
  surface.strokeRect(Math.round(area.x) - 0.5, Math.round(area.y) - 0.5, Math.round(area.width) + 1, Math.round(area.height) + 1);
}

function drawGaps(surface, { camera, plot, area, colours, rows, columns }, ratio) {
  const snapped = (value) => Math.round(value * ratio) / ratio;
  surface.fillStyle = colours.surface;
  for (let column = Math.max(1, Math.ceil(camera.left)); column < columns; column += 1) {
    const x = plot.x + (column - camera.left) * camera.scaleX;
    if (x > area.x + area.width) break;
    surface.fillRect(snapped(x), area.y, 1, area.height);
  }
  for (let row = Math.max(1, Math.ceil(camera.top)); row < rows; row += 1) {
    const y = plot.y + (row - camera.top) * camera.scaleY;
    if (y > area.y + area.height) break;
    surface.fillRect(area.x, snapped(y), area.width, 1);
  }
}

function drawValues(surface, layout, cache, frame, state) {
  surface.font = LABEL_FONT.replace("12px", "11px");
  surface.textAlign = "center";
  surface.textBaseline = "middle";
  for (const [row, column, x, y] of visibleCells(layout)) {
    const value = frame.partial ? frame.value(row, column).value : tileWeight(cache, layout, row, column);
    if (!(Math.abs(value) >= 0.005)) continue;
    surface.fillStyle = inkOnWeight(layout.colours, value, scaleTop(frame, state.colour), state.colour, frame.signed);
    surface.fillText(shortValue(value), x, y);
  }
}

/** A weight of the finest tiles; NaN while its tile is on the way. */
function tileWeight(cache, layout, row, column) {
  const { weights } = cache.get(0, Math.floor(row / TILE), Math.floor(column / TILE));
  const width = Math.min(TILE, layout.columns - Math.floor(column / TILE) * TILE);
  return weights ? weights[(row % TILE) * width + (column % TILE)] : NaN;
}

function shortValue(value) {
  return Math.abs(value) < 10 ? value.toFixed(2).replace(/^(-?)0\./, "$1.") : readableWeight(value);
}

function* visibleCells({ camera, plot, rows, columns }) {
  const lastRow = Math.min(rows, Math.ceil(camera.top + plot.height / camera.scaleY));
  const lastColumn = Math.min(columns, Math.ceil(camera.left + plot.width / camera.scaleX));
  for (let row = Math.max(0, Math.floor(camera.top)); row < lastRow; row += 1) {
    for (let column = Math.max(0, Math.floor(camera.left)); column < lastColumn; column += 1) {
      yield [row, column, plot.x + (column + 0.5 - camera.left) * camera.scaleX, plot.y + (row + 0.5 - camera.top) * camera.scaleY];
    }
  }
}

function coverRowsFrom(surface, { camera, plot, area, colours }, cut) {
  const y = Math.max(area.y, plot.y + (cut - camera.top) * camera.scaleY);
  surface.fillStyle = colours.surface;
  if (y < area.y + area.height) surface.fillRect(area.x, y, area.width, area.y + area.height - y);
}

/** Labels, with those of chosen rows or columns in the accent colour and their places marked. */
export function drawAxes(surface, layout, state) {
  const chosen = new Set(state.selected);
  const side = state.direction === "to" ? "column" : "row";
  drawLabels(surface, layout, (axis, index) => (axis === side && chosen.has(index) ? layout.colours.accent : null));
  drawAxisNames(surface, layout);
  const { camera, plot, area, colours } = layout;
  surface.fillStyle = colours.accent;
  for (const index of chosen) {
    const [x, y] = [plot.x + (index - camera.left) * camera.scaleX, plot.y + (index - camera.top) * camera.scaleY];
    if (side === "row" && y + camera.scaleY > area.y && y < area.y + area.height) surface.fillRect(area.x - 4, y, 3, Math.max(2, camera.scaleY));
    if (side === "column" && x + camera.scaleX > area.x && x < area.x + area.width) surface.fillRect(x, area.y - 4, Math.max(2, camera.scaleX), 3);
  }
}

function drawAxisNames(surface, layout) {
  surface.font = LABEL_FONT.replace("12px", "11px");
  surface.textAlign = "right";
  surface.fillStyle = layout.colours.muted;
  for (const [name, x, y] of axisNames(layout)) surface.fillText(name, x, y);
}

/** The row and column of a cell, its outline, and both labels, which are always readable. */
export function drawCrosshair(surface, layout, frame, cell, colourMode, value) {
  const { camera, plot, area, colours } = layout;
  const x = plot.x + (cell.column - camera.left) * camera.scaleX;
  const y = plot.y + (cell.row - camera.top) * camera.scaleY;
  surface.save();
  surface.beginPath();
  surface.rect(area.x, area.y, area.width, area.height);
  surface.clip();
  surface.fillStyle = colours.accent;
  surface.globalAlpha = 0.14;
  surface.fillRect(area.x, y, area.width, camera.scaleY);
  surface.fillRect(x, area.y, camera.scaleX, area.height);
  surface.globalAlpha = 1;
  const [width, height] = [Math.max(5, camera.scaleX), Math.max(5, camera.scaleY)];
  const [left, top] = [x + camera.scaleX / 2 - width / 2, y + camera.scaleY / 2 - height / 2];
  if (value !== null && camera.scaleX < 5) {
    surface.fillStyle = weightColour(colours, value, scaleTop(frame, colourMode), colourMode, frame.signed);
    surface.fillRect(left, top, width, height);
  }
  surface.strokeStyle = colours.highlight;
  surface.lineWidth = 2;
  surface.strokeRect(left, top, width, height);
  surface.restore();
  drawChips(surface, layout, cell, x + camera.scaleX / 2, y + camera.scaleY / 2);
}

function drawChips(surface, layout, cell, x, y) {
  const { area, rowSet, columnSet, camera } = layout;
  surface.font = LABEL_FONT;
  surface.textBaseline = "middle";
  const row = rowSet.text(cell.row);
  // Neighbours of the label step back, so that nothing stands half behind it.
  surface.fillStyle = layout.colours.surface;
  surface.fillRect(0, y - 15, area.x - 1, 30);
  surface.fillRect(x - 15, 0, 30, area.y - 1);
  drawChip(surface, layout, row, area.x - 4 - surface.measureText(row).width - 8, y);
  const column = columnSet.text(cell.column);
  const width = surface.measureText(column).width;
  if (labelsLieFlat(columnSet, camera.scaleX)) {
    drawChip(surface, layout, column, x - width / 2 - 4, area.y - 12);
    return;
  }
  surface.save();
  surface.translate(x, area.y - 4);
  surface.rotate(-Math.PI / 2);
  drawChip(surface, layout, column, 0, 0);
  surface.restore();
}

function drawChip(surface, { colours }, text, x, y) {
  const width = surface.measureText(text).width + 8;
  surface.fillStyle = colours.ink;
  surface.beginPath();
  surface.roundRect(x, y - 9, width, 18, 4);
  surface.fill();
  surface.fillStyle = colours.surface;
  surface.textAlign = "left";
  surface.fillText(text, x + 4, y);
}
