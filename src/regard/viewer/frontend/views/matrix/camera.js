// Which cells of a matrix are on screen: plain arithmetic on `camera` = {left, top, scaleX, scaleY}
// (first visible cell, pixels per cell) and `plot` = {x, y, width, height} (pixels).

const LARGEST_FITTED_CELL = 66;
const LARGEST_ZOOMED_CELL = 72;
const LARGEST_STRETCH = 3;

/** Pixels per cell at which the whole matrix is seen; cells are square unless that would leave a thin strip. */
function fittedScale(rows, columns, plot) {
  const wide = Math.min(plot.width / columns, LARGEST_FITTED_CELL);
  const high = Math.min(plot.height / rows, LARGEST_FITTED_CELL);
  const ratio = Math.max(wide / high, high / wide);
  if (ratio <= LARGEST_STRETCH) return { scaleX: Math.min(wide, high), scaleY: Math.min(wide, high) };
  return { scaleX: wide, scaleY: high };
}

/**
 * The camera that shows the window [row0, column0, row1, column1], or everything when it is null. A window of all rows
 * may show fewer columns than rows are stretched for, as speech does in half a minute of silence.
 */
export function cameraOn(window, rows, columns, plot) {
  const fitted = fittedScale(rows, columns, plot);
  if (!window) return boundedCamera({ left: 0, top: 0, ...fitted }, rows, columns, plot);
  const [row0, column0, row1, column1] = window;
  const requested = Math.min(plot.width / (column1 - column0) / fitted.scaleX, plot.height / (row1 - row0) / fitted.scaleY);
  const factor = Math.min(largestZoom(fitted), Math.max(1, requested));
  const hasAllRows = row0 <= 0 && row1 >= rows;
  const wide = Math.min(LARGEST_ZOOMED_CELL, plot.width / (column1 - column0));
  const scaleX = hasAllRows ? Math.max(wide, fitted.scaleX) : fitted.scaleX * factor;
  const camera = { left: column0, top: row0, scaleX, scaleY: fitted.scaleY * factor };
  return boundedCamera(camera, rows, columns, plot);
}

/** The camera moved by pixels. */
export function pannedCamera(camera, deltaX, deltaY, rows, columns, plot) {
  const moved = { ...camera, left: camera.left - deltaX / camera.scaleX, top: camera.top - deltaY / camera.scaleY };
  return boundedCamera(moved, rows, columns, plot);
}

/** The camera zoomed by a factor, with the cell under (x, y) staying there. */
export function zoomedCamera(camera, factor, x, y, rows, columns, plot) {
  const fitted = fittedScale(rows, columns, plot);
  const current = camera.scaleX / fitted.scaleX;
  const step = Math.min(largestZoom(fitted), Math.max(1, current * factor)) / current;
  const column = camera.left + (x - plot.x) / camera.scaleX;
  const row = camera.top + (y - plot.y) / camera.scaleY;
  const [scaleX, scaleY] = [camera.scaleX * step, Math.max(fitted.scaleY, camera.scaleY * step)];
  return boundedCamera({ left: column - (x - plot.x) / scaleX, top: row - (y - plot.y) / scaleY, scaleX, scaleY }, rows, columns, plot);
}

/** The camera moved as little as needed to have a cell in sight. */
export function cameraWithCell(camera, row, column, rows, columns, plot) {
  const [across, down] = [plot.width / camera.scaleX, plot.height / camera.scaleY];
  const left = Math.min(column, Math.max(camera.left, column + 1 - across));
  const top = Math.min(row, Math.max(camera.top, row + 1 - down));
  return boundedCamera({ ...camera, left, top }, rows, columns, plot);
}

/** The visible window in cells, or null when everything is seen. */
export function windowOf(camera, rows, columns, plot) {
  const fitted = fittedScale(rows, columns, plot);
  if (camera.scaleX <= fitted.scaleX * 1.0001) return null;
  const [column0, row0] = [Math.max(0, camera.left), Math.max(0, camera.top)];
  const column1 = Math.min(columns, camera.left + plot.width / camera.scaleX);
  const row1 = Math.min(rows, camera.top + plot.height / camera.scaleY);
  return [row0, column0, row1, column1];
}

/** The part of the plot that the matrix covers, in pixels. */
export function coveredArea(camera, rows, columns, plot) {
  const x0 = Math.max(plot.x, plot.x - camera.left * camera.scaleX);
  const y0 = Math.max(plot.y, plot.y - camera.top * camera.scaleY);
  const x1 = Math.min(plot.x + plot.width, plot.x + (columns - camera.left) * camera.scaleX);
  const y1 = Math.min(plot.y + plot.height, plot.y + (rows - camera.top) * camera.scaleY);
  return { x: x0, y: y0, width: Math.max(0, x1 - x0), height: Math.max(0, y1 - y0) };
}

function largestZoom(fitted) {
  return Math.max(1, LARGEST_ZOOMED_CELL / Math.min(fitted.scaleX, fitted.scaleY));
}

function boundedCamera(camera, rows, columns, plot) {
  const across = plot.width / camera.scaleX;
  const down = plot.height / camera.scaleY;
  const left = across >= columns ? (columns - across) / 2 : Math.max(0, Math.min(columns - across, camera.left));
  const top = down >= rows ? 0 : Math.max(0, Math.min(rows - down, camera.top));
  return { ...camera, left, top };
}
