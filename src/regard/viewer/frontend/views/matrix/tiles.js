// Tiles of a matrix as small canvases, painted once and then only copied to the screen.

import { TILE, tileShape } from "../../data/frame.js";
import { paintWeights } from "../../drawing/colour.js";
import { make } from "../../drawing/elements.js";

const MOST_TILES = 160;
const SMOOTH_BELOW = 2;
const RETRY_PAUSES = [300, 1200]; // milliseconds after which a tile that failed is asked for again by itself,
const LAST_PAUSE = 1500; // and after which, having failed each time, it is asked for when the view is drawn again
const NO_TILE = { canvas: null, weights: null };

/** Tiles of one frame in one colouring; `changed()` tells that a tile arrived or failed, so that it is time to draw. */
export function createTileCache(changed) {
  let [frame, colouring, tiles, failures] = [null, null, new Map(), new Map()];
  let problem = null;

  function startTile(key, level, row, column) {
    const tile = { ...NO_TILE };
    const [tileFrame, tileColouring] = [frame, colouring];
    const isCurrent = () => tileFrame === frame && tileColouring === colouring;
    const finish = (weights) => {
      tile.weights = weights;
      tile.canvas = paintedTile(weights, tileShape(tileFrame, level, row, column), tileColouring);
    };
    const answer = tileFrame.tile(level, row, column);
    if (!(answer instanceof Promise)) finish(answer);
    else answer.then((weights) => isCurrent() && addTile(key, () => finish(weights)), (reason) => isCurrent() && forgetTile(key, reason, isCurrent));
    return tile;
  }

  function addTile(key, finish) {
    finish();
    failures.delete(key);
    changed();
  }

  /** A tile that failed is not kept: it is asked for again after a pause, and then when the view is drawn again. */
  function forgetTile(key, reason, isCurrent) {
    tiles.delete(key);
    const count = (failures.get(key)?.count ?? 0) + 1;
    const pause = RETRY_PAUSES[count - 1];
    failures.set(key, { count, until: performance.now() + (pause ?? LAST_PAUSE), reason: pause ? null : reason });
    setTimeout(() => isCurrent() && changed(), pause ? pause + 1 : 0);
  }

  return {
    /** Forgets tiles of another frame or colouring. */
    follow(nextFrame, nextColouring) {
      if (nextFrame === frame && colouring && nextColouring.key === colouring.key) return;
      [frame, colouring, tiles, failures] = [nextFrame, nextColouring, new Map(), new Map()];
    },
    get(level, row, column) {
      const key = `${level}/${row}/${column}`;
      const failure = failures.get(key);
      problem ??= failure?.reason ?? null;
      if (!tiles.has(key) && failure?.until > performance.now()) return NO_TILE;
      const tile = tiles.get(key) ?? startTile(key, level, row, column);
      tiles.delete(key);
      tiles.set(key, tile);
      if (tiles.size > MOST_TILES) tiles.delete(tiles.keys().next().value);
      return tile;
    },
    /** Why a tile that was asked for since the last call is not there, though it was tried several times; or null. */
    problem() {
      const reason = problem;
      problem = null;
      return reason;
    },
    ready: (level, row, column) => tiles.get(`${level}/${row}/${column}`)?.canvas ?? null,
  };
}

function paintedTile(weights, [rows, columns], colouring) {
  const canvas = make("canvas", { width: columns, height: rows });
  const pixels = new ImageData(columns, rows);
  paintWeights(pixels, weights, colouring.peak, colouring.colour, colouring.signed, colouring.palette);
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
  const last = (startTile, length, scale, count) => Math.min(Math.ceil(count / side), Math.ceil((startTile + length / scale) / side));
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
