// Canvases of the size of their place.

/** Sets the size of a canvas, which clears it, only where it changed. */
export function fitCanvas(canvas, width, height) {
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
}
