// Maps that are made in the page while a model writes: loaders, maps of several heads, small pictures.

const THUMBNAIL_SIDE = 64; // positions of a side of a thumbnail

/** A loader of chunks that make themselves. */
export const localLoader = { remote: null, read: async (chunk) => chunk.make() };

/** A map of 16-bit numbers as a chunk; `make` gives its weights. */
export function localMap(rows, columns, make) {
  return { id: 0, dtype: "f32", shape: [rows, columns], make };
}

/** The maps of a part over all layers; `headMaps()` gives the map of each head in turn. */
export function combinedMaps(rows, columns, headMaps, note) {
  const combined = (mode) => ({ kind: "dense", exact: false, note, weights: localMap(rows, columns, () => combineMaps(headMaps(), mode, rows * columns)) });
  return { mean: combined("mean"), max: combined("max") };
}

/** Small pictures of all heads of a site: the largest weight of each block, 255 for the head's peak. */
export function localThumbnails(rows, columns, peaks, mapOf) {
  const [height, width] = [Math.min(THUMBNAIL_SIDE, rows), Math.min(THUMBNAIL_SIDE, columns)];
  const make = () => {
    const thumbnails = new Uint8Array(peaks.length * height * width);
    peaks.forEach((peak, head) => {
      const [data, scale] = [mapOf(head), 255 / (peak || 1)];
      for (let i = 0, at = 0; i < rows; i += 1) {
        const start = (head * height + Math.floor((i * height) / rows)) * width;
        for (let j = 0; j < columns; j += 1, at += 1) {
          const pixel = start + Math.floor((j * width) / columns);
          thumbnails[pixel] = Math.max(thumbnails[pixel], Math.round(Math.abs(data[at]) * scale));
        }
      }
    });
    return thumbnails;
  };
  return { id: 0, dtype: "u8", shape: [peaks.length, height, width], make };
}

/** Mean or largest over maps. */
function combineMaps(maps, mode, size) {
  const whole = new Float32Array(size);
  let count = 0;
  for (const map of maps) {
    count += 1;
    if (mode === "max") for (let i = 0; i < size; i += 1) whole[i] = Math.max(whole[i], map[i]);
    else for (let i = 0; i < size; i += 1) whole[i] += map[i];
  }
  if (mode === "mean") for (let i = 0; i < size; i += 1) whole[i] /= count;
  return whole;
}
