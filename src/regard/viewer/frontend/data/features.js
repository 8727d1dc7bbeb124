// What each feature of a query and a key adds to the score of a pair, where queries and keys are held.

/** The products of a pair of positions, scaled as the score is; null where the page does not hold queries and keys. */
export async function pairFeatures(scene, { part, layer, head }, query, key) {
  const site = scene.sites[scene.parts[part].sites[layer]];
  const form = site.maps[head];
  if (form.kind === "factors") return products(scene, form, query, key);
  if (site.features) {
    const group = Math.floor((head * site.features.groups) / site.heads);
    return products(scene, site.features, head * site.queries + query, group * site.keys + key);
  }
  if (!scene.loader.remote) return null;
  return scene.loader.remote.floats(`features?${new URLSearchParams({ part, layer, head, mode: "head", row: query, column: key })}`);
}

/** The products of a row of queries and a row of keys. */
async function products(scene, form, queryRow, keyRow) {
  const [queries, keys] = await Promise.all([scene.loader.read(form.query), scene.loader.read(form.key)]);
  const width = form.query.shape[1];
  return Float32Array.from({ length: width }, (_, feature) => queries[queryRow * width + feature] * keys[keyRow * width + feature] * form.scale);
}
