// Maps that are made in the page while a model writes: loaders, maps of several heads, small pictures.

const SMALL = 64; // positions of a side of a thumbnail

/** A loader of chunks that make themselves. */
export const madeHere = { remote: null, read: async (chunk) => chunk.make() };

/** A map of 16-bit numbers as a chunk; `make` gives its weights. */
export function madeMap(rows, columns, make) {
  return { id: 0, dtype: "f32", shape: [rows, columns], make };
}

/** The maps of a part over all layers; `all()` gives the map of each head in turn. */
export function madeTogether(rows, columns, all) {
  const over = (mode) => ({ kind: "dense", exact: false, maps: [madeMap(rows, columns, () => together(all(), mode, rows * columns))] });
  return { mean: over("mean"), max: over("max") };
}

/** Small pictures of all heads of a site: the largest weight of each block, 255 for the head's peak. */
export function madeThumbnails(rows, columns, peaks, mapOf) {
  const [height, width] = [Math.min(SMALL, rows), Math.min(SMALL, columns)];
  const make = () => {
    const small = new Uint8Array(peaks.length * height * width);
    peaks.forEach((peak, head) => {
      const [data, scale] = [mapOf(head), 255 / (peak || 1)];
      for (let i = 0, at = 0; i < rows; i += 1) {
        const start = (head * height + Math.floor((i * height) / rows)) * width;
        for (let j = 0; j < columns; j += 1, at += 1) {
          const place = start + Math.floor((j * width) / columns);
          small[place] = Math.max(small[place], Math.round(Math.abs(data[at]) * scale));
        }
      }
    });
    return small;
  };
  return { id: 0, dtype: "u8", shape: [peaks.length, height, width], make };
}

/** Mean or largest over maps. */
function together(maps, mode, size) {
  const whole = new Float32Array(size);
  let count = 0;
  for (const one of maps) {
    count += 1;
    if (mode === "max") for (let i = 0; i < size; i += 1) whole[i] = Math.max(whole[i], one[i]);
    else for (let i = 0; i < size; i += 1) whole[i] += one[i];
  }
  if (mode === "mean") for (let i = 0; i < size; i += 1) whole[i] /= count;
  return whole;
}
