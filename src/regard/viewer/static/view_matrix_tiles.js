// Tiles of a matrix as small canvases, painted once and then only copied to the screen.

import {make} from "./dom.js";
import {paintWeights} from "./colour.js";
import {TILE, tileShape} from "./frames.js";

const MOST_TILES = 160;
const SMOOTH_BELOW = 2;

/** Tiles of one frame in one colouring; `arrived` is called when a tile that was waited for is there. */
export function createTileCache(arrived, failed) {
  let [frame, look, tiles] = [null, "", new Map()];

  function start(level, row, column) {
    const tile = { canvas: null, weights: null };
    const [asked, colouring] = [frame, look];
    const finish = (weights) => {
      if (asked !== frame || colouring !== look) return;
      tile.weights = weights;
      tile.canvas = paintedTile(weights, tileShape(asked, level, row, column), colouring);
    };
    const answer = asked.tile(level, row, column);
    if (answer instanceof Promise) answer.then((weights) => { finish(weights); arrived(); }, failed);
    else finish(answer);
    return tile;
  }

  return {
    /** Forgets tiles of another frame or colouring. */
    follow(nextFrame, nextLook) {
      if (nextFrame === frame && look && nextLook.key === look.key) return;
      [frame, look, tiles] = [nextFrame, nextLook, new Map()];
    },
    get(level, row, column) {
      const key = `${level}/${row}/${column}`;
      const tile = tiles.get(key) ?? start(level, row, column);
      tiles.delete(key);
      tiles.set(key, tile);
      if (tiles.size > MOST_TILES) tiles.delete(tiles.keys().next().value);
      return tile;
    },
    ready: (level, row, column) => tiles.get(`${level}/${row}/${column}`)?.canvas ?? null,
  };
}

function paintedTile(weights, [rows, columns], look) {
  const canvas = make("canvas", { width: columns, height: rows });
  const pixels = new ImageData(columns, rows);
  paintWeights(pixels, weights, look.peak, look.colour, look.signed, look.palette);
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return canvas;
}

/** The level at which one pooled cell is at least about a pixel of the device, along the axis that is drawn larger: a
 * map of few rows and many columns must not have its rows pooled. */
function levelFor(camera, ratio, levels) {
  const pixels = Math.max(camera.scaleX, camera.scaleY) * ratio;
  return Math.max(0, Math.min(levels - 1, Math.ceil(-Math.log2(pixels) - 0.01)));
}

/** Draws the visible tiles; cells of tiles still on the way come from a coarser level. */
export function drawTiles(surface, cache, frame, camera, plot, ratio) {
  const level = levelFor(camera, ratio, frame.levels);
  const side = TILE * 2 ** level;
  const [rows, columns] = [frame.rows.labels.length, frame.columns.labels.length];
  surface.imageSmoothingEnabled = Math.max(camera.scaleX, camera.scaleY) * 2 ** level * ratio < SMOOTH_BELOW;
  const last = (start, length, scale, count) => Math.min(Math.ceil(count / side), Math.ceil((start + length / scale) / side));
  const lastRow = last(camera.top, plot.height, camera.scaleY, rows);
  const lastColumn = last(camera.left, plot.width, camera.scaleX, columns);
  for (let row = Math.max(0, Math.floor(camera.top / side)); row < lastRow; row += 1) {
    for (let column = Math.max(0, Math.floor(camera.left / side)); column < lastColumn; column += 1) {
      const { canvas } = cache.get(level, row, column);
      if (canvas) placeTile(surface, canvas, [row, column], side, camera, plot, ratio, [rows, columns]);
      else placeCoarser(surface, cache, frame, level, row, column, camera, plot);
    }
  }
}

function placeTile(surface, canvas, [row, column], side, camera, plot, ratio, [rows, columns]) {
  // Edges fall on whole pixels of the device, so that neighbours leave no seam.
  const snapped = (value) => Math.round(value * ratio) / ratio;
  const across = (cell) => plot.x + (Math.min(columns, cell) - camera.left) * camera.scaleX;
  const down = (cell) => plot.y + (Math.min(rows, cell) - camera.top) * camera.scaleY;
  const x = snapped(across(column * side));
  const y = snapped(down(row * side));
  surface.drawImage(canvas, x, y, snapped(across((column + 1) * side)) - x, snapped(down((row + 1) * side)) - y);
}

function placeCoarser(surface, cache, frame, level, row, column, camera, plot) {
  for (let above = level + 1; above < frame.levels; above += 1) {
    const factor = 2 ** (above - level);
    const canvas = cache.ready(above, Math.floor(row / factor), Math.floor(column / factor));
    if (!canvas) continue;
    const size = TILE / factor;
    const [fromX, fromY] = [(column % factor) * size, (row % factor) * size];
    const [width, height] = [Math.min(size, canvas.width - fromX), Math.min(size, canvas.height - fromY)];
    const cell = 2 ** above;
    const x = plot.x + (column * TILE * 2 ** level - camera.left) * camera.scaleX;
    const y = plot.y + (row * TILE * 2 ** level - camera.top) * camera.scaleY;
    if (width > 0 && height > 0) surface.drawImage(canvas, fromX, fromY, width, height, x, y, width * cell * camera.scaleX, height * cell * camera.scaleY);
    return;
  }
}
