// Maps that are made in the page while a model writes: loaders, maps of several heads.

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
