// Which links the lines view draws, how strong each one looks, and the drawing itself.

import { scaleShare } from "../../drawing/colour.js";

const MOST_LINES = 2000;
export const MOST_WHILE_SCROLLING = 600;
const LINE_LEVELS = 48;
const ONE_PATH = 24;
const SMALL_LIST = 64;

// The positions of the strongest weights, strongest first. Weights of nothing and hidden positions give no link.
export function strongest(weights, limit, isHidden, most) {
  const count = limit.kind === "top" ? Math.min(limit.value, most) : most;
  const floor = limit.kind === "threshold" ? limit.value : 0;
  return count <= SMALL_LIST ? strongestFew(weights, floor, count, isHidden) : strongestMany(weights, floor, count, isHidden);
}

function strongestFew(weights, floor, count, isHidden) {
  const indices = [];
  for (let index = 0; index < weights.length; index += 1) {
    const size = Math.abs(weights[index]);
    if (!(size > 0) || size < floor || isHidden[index]) continue;
    if (indices.length === count && size <= Math.abs(weights[indices[count - 1]])) continue;
    let place = indices.length === count ? count - 1 : indices.length;
    while (place > 0 && Math.abs(weights[indices[place - 1]]) < size) {
      indices[place] = indices[place - 1];
      place -= 1;
    }
    if (count > 0) indices[place] = index;
  }
  return indices;
}

function strongestMany(weights, floor, count, isHidden) {
  const indices = [];
  for (let index = 0; index < weights.length; index += 1) {
    const size = Math.abs(weights[index]);
    if (size > 0 && size >= floor && !isHidden[index]) indices.push(index);
  }
  return indices.sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a])).slice(0, count);
}

// The links of every row at once: three arrays of the same length, rows in order. At most 64 a row: more is a blur.
export function allLinks(rows, rowWeights, limit, isHidden) {
  const from = [];
  const to = [];
  const weight = [];
  for (const row of rows) {
    const weights = rowWeights(row);
    if (!weights) continue;
    for (const column of strongest(weights, limit, isHidden, SMALL_LIST)) {
      from.push(row);
      to.push(column);
      weight.push(weights[column]);
    }
  }
  return { from, to, weight };
}

/** The links with an end among these rows and columns; an index by ends, made once, saves a look at all of them. */
export function linksAt(links, rows, columns) {
  links.byRow ??= indicesByEnd(links.from);
  links.byColumn ??= indicesByEnd(links.to);
  const matches = new Set();
  for (const row of rows) for (const index of links.byRow.get(row) ?? []) matches.add(index);
  for (const column of columns) for (const index of links.byColumn.get(column) ?? []) matches.add(index);
  const indices = [...matches];
  const pick = (values) => indices.map((index) => values[index]);
  return { from: pick(links.from), to: pick(links.to), weight: pick(links.weight) };
}

function indicesByEnd(ends) {
  const indices = new Map();
  ends.forEach((end, index) => (indices.has(end) ? indices.get(end).push(index) : indices.set(end, [index])));
  return indices;
}

// Links with an end inside the window, placed and ordered so that strong ones are drawn last.
// geometry: { left, right, height, leftMiddle(row), rightMiddle(column) }; a middle is null when the token is hidden.
export function placedLinks(links, geometry, peak, colourMode, most = MOST_LINES) {
  const placed = [];
  const { height } = geometry;
  for (let index = 0; index < links.from.length; index += 1) {
    const start = geometry.leftMiddle(links.from[index]);
    const end = geometry.rightMiddle(links.to[index]);
    if (start === null || end === null || (isOutside(start, height) && isOutside(end, height))) continue;
    const weight = links.weight[index];
    const strength = scaleShare(Math.abs(weight), peak, colourMode);
    const thickness = scaleShare(Math.abs(weight), peak, "linear");
    placed.push({ start: squeezedEnd(start, height), end: squeezedEnd(end, height), strength, thickness, isNegative: weight < 0 });
  }
  placed.sort((a, b) => a.strength - b.strength);
  return { lines: placed.slice(-most), leftOut: Math.max(0, placed.length - MOST_LINES) };
}

function isOutside(middle, height) {
  return middle < 0 || middle > height;
}

// An end far outside would make its line leave the window at once. Distances beyond the edge are squeezed, in order.
function squeezedEnd(middle, height) {
  const reach = height * 0.7;
  if (middle < 0) return -reach * (1 - Math.exp(middle / reach));
  if (middle > height) return height + reach * (1 - Math.exp((height - middle) / reach));
  return middle;
}

// Colour and opacity follow the colour scale, logarithmic or not; the width always follows the weight itself.
function lineStyle(palette, { strength, thickness, isNegative }, isSigned, only) {
  const table = isSigned ? palette.diverging : palette.lut;
  const reach = 0.42 + 0.58 * strength ** 0.7;
  const index = isSigned ? Math.round(127.5 + (isNegative ? -127.5 : 127.5) * reach) : Math.round(255 * reach);
  const colour = only ?? `rgb(${table[3 * index]},${table[3 * index + 1]},${table[3 * index + 2]})`;
  return { colour, opacity: 0.14 + 0.8 * strength ** 0.6, width: 0.8 + 3.6 * thickness };
}

// Lines come weakest first, so those that look the same follow each other and share one path.
function linesByStyle(lines) {
  const groups = [];
  for (const line of lines) {
    const level = (share) => Math.round(share * LINE_LEVELS);
    const look = `${level(line.strength)} ${level(line.thickness)} ${line.isNegative}`;
    const last = groups.at(-1);
    if (last?.look === look && last.lines.length < ONE_PATH) last.lines.push(line);
    else groups.push({ look, lines: [line] });
  }
  return groups;
}

/** Draws lines in the colours of their weights, or all in one. */
export function drawLines(surface, lines, geometry, palette, isSigned, only = null) {
  const { left, right } = geometry;
  const middle = (left + right) / 2;
  for (const group of linesByStyle(lines)) {
    const style = lineStyle(palette, group.lines[0], isSigned, only);
    surface.strokeStyle = style.colour;
    surface.globalAlpha = style.opacity;
    surface.lineWidth = style.width;
    surface.beginPath();
    for (const { start, end } of group.lines) {
      surface.moveTo(left, start);
      surface.bezierCurveTo(middle, start, middle, end, right, end);
    }
    surface.stroke();
  }
  surface.globalAlpha = 1;
}

export function fadeEdges(surface, width, height, above, below) {
  const depth = Math.min(56, height / 4);
  surface.globalCompositeOperation = "destination-out";
  if (above) fadeEdge(surface, width, 0, depth);
  if (below) fadeEdge(surface, width, height, height - depth);
  surface.globalCompositeOperation = "source-over";
}

function fadeEdge(surface, width, edge, inner) {
  const fade = surface.createLinearGradient(0, edge, 0, inner);
  fade.addColorStop(0, "rgba(0,0,0,1)");
  fade.addColorStop(1, "rgba(0,0,0,0)");
  surface.fillStyle = fade;
  surface.fillRect(0, Math.min(edge, inner), width, Math.abs(edge - inner));
}

export function linkPaths(lines, geometry, palette, isSigned, only = null) {
  const { left, right } = geometry;
  const middle = ((left + right) / 2).toFixed(1);
  return lines.map((line) => {
    const { start, end } = line;
    const style = lineStyle(palette, line, isSigned, only);
    const path = `M${left} ${start.toFixed(1)}C${middle} ${start.toFixed(1)} ${middle} ${end.toFixed(1)} ${right} ${end.toFixed(1)}`;
    const stroke = `stroke="${style.colour}" stroke-opacity="${style.opacity.toFixed(3)}" stroke-width="${style.width.toFixed(2)}"`;
    return `<path d="${path}" fill="none" stroke-linecap="round" ${stroke}/>`;
  });
}
