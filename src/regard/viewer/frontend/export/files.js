// What is on screen as a file: pictures as SVG and PNG, numbers as CSV.

import { MEASURES, shortestFloat } from "../data/numbers.js";

const PNG_SCALE = 2;
const ROWS_BETWEEN_PAUSES = 32;

/** A file name that says what is shown, such as `regard-layer3-head1-matrix.png`. */
function exportName(state, scene, extension, measure = null) {
  const parts = ["regard"];
  const part = scene.parts[state.part];
  if (part && scene.parts.length > 1) parts.push(part.name);
  const isAllHeads = state.view === "map" && !extension.endsWith("csv");
  parts.push(...(isAllHeads ? [] : weightsName(state, scene, part)), ...(measure ? [measure] : []), state.view);
  return `${parts.map(fileNamePart).filter(Boolean).join("-")}.${extension}`;
}

function weightsName(state, scene, part) {
  const whole = state.layer === "all" || state.mode === "rollout" || state.mode === "relevance";
  if (whole) return [state.mode];
  const site = scene.sites[part.sites[state.layer]];
  const layer = site?.label ?? `layer${site?.layer ?? state.layer}`;
  return [layer, state.mode === "head" ? `head${state.head}` : state.mode];
}

function fileNamePart(word) {
  return String(word).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
}

function downloadBlob(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  // Some browsers read the address only after the click has returned.
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

/** Saves a picture as an SVG file. */
export function exportSvg(svg, state, scene) {
  downloadBlob(new Blob([svg], { type: "image/svg+xml" }), exportName(state, scene, "svg"));
}

/** Saves a picture as a PNG file, at twice its size. */
export async function exportPng(svg, state, scene) {
  downloadBlob(await rasterise(svg), exportName(state, scene, "png"));
}

// A data address and not a blob address: a page opened from disk has an origin of its own kind, and a canvas that
// drew a picture from "elsewhere" gives nothing back.
async function rasterise(svg) {
  const picture = new Image();
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await picture.decode();
  const canvas = document.createElement("canvas");
  canvas.width = picture.width * PNG_SCALE;
  canvas.height = picture.height * PNG_SCALE;
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) => {
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the picture is too large for a PNG"))), "image/png");
  });
}

/**
 * Saves the weights of the rows in sight; `progress(done, total)` is told as rows come in, one by one. Pairs whose weight
 * is not stored are left out, and the name of the file says so; it also says what numbers are that are not the weights.
 */
export async function exportCsv(frame, state, scene, progress) {
  const rows = shownRows(frame, state);
  const keyFields = frame.columns.labels.map((label, column) => `${column},${csvField(label)}`);
  const measure = frame.measure.replace("×", "times");
  const parts = [`query,query_token,key,key_token,${measure.replaceAll(" ", "_")}\r\n`];
  for (const [done, row] of rows.entries()) {
    parts.push(csvRow(row, csvField(frame.rows.labels[row]), keyFields, await frame.row(row)));
    if (done % ROWS_BETWEEN_PAUSES === 0) {
      progress(done, rows.length);
      await new Promise((resume) => setTimeout(resume));
    }
  }
  progress(rows.length, rows.length);
  const extension = frame.partial ? "stored.csv" : "csv";
  downloadBlob(new Blob(parts, { type: "text/csv;charset=utf-8" }), exportName(state, scene, extension, measure === MEASURES.weights ? null : measure));
}

function csvRow(row, rowField, keyFields, weights) {
  let text = "";
  for (let column = 0; column < keyFields.length; column += 1) {
    if (!Number.isNaN(weights[column])) text += `${row},${rowField},${keyFields[column]},${shortestFloat(weights[column])}\r\n`;
  }
  return text;
}

function shownRows(frame, state) {
  const count = frame.rows.labels.length;
  const all = Array.from({ length: count }, (_, row) => row);
  if (state.view === "matrix" && state.zoom) {
    const [first, , last] = state.zoom;
    return all.filter((row) => row + 1 > first && row < last);
  }
  const isByRow = ["lines", "image"].includes(state.view) && state.direction === "from";
  const chosen = isByRow ? state.selected.filter((row) => row < count) : [];
  if (chosen.length) return [...chosen].sort((a, b) => a - b);
  return state.view === "lines" ? all.filter((row) => !state.hidden.includes(row)) : all;
}

// A spreadsheet runs a cell that begins with = + - @ (or with a tab or return before it) as a formula. Tokens come from
// anybody's text, so such a token gets an apostrophe in front, which spreadsheets show as text.
function csvField(text) {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return safe !== text || /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
