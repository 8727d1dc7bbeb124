// What each feature of a query and a key adds to the score of a pair, where queries and keys are held.

/** The products of a pair of positions, scaled as the score is; null where the page does not hold queries and keys. */
export async function pairFeatures(scene, { part, layer, head }, query, key) {
  const form = scene.sites[scene.parts[part].sites[layer]].maps[head];
  if (form.kind === "factors") {
    const [queries, keys] = await Promise.all([scene.loader.read(form.query), scene.loader.read(form.key)]);
    const width = form.query.shape[1];
    return Float32Array.from({ length: width }, (_, feature) => queries[query * width + feature] * keys[key * width + feature] * form.scale);
  }
  if (!scene.loader.remote) return null;
  return scene.loader.remote.floats(`features?${new URLSearchParams({ part, layer, head, mode: "head", row: query, column: key })}`);
}
