// Weights times the lengths of the values that they are of: what each key adds to a query.

import { MOST_FOLLOWED } from "./scene.js";

const WHOLE_FORMS = ["dense", "codes", "factors"];

/** Whether the values of a part were captured. */
export function hasNorms(scene, state) {
  return scene.parts[state.part].sites.every((number) => scene.sites[number].norms);
}

/** Why weights cannot be told times lengths, or null; of the map, in some of its heads. */
export function normsProblem(scene, state) {
  if (!hasNorms(scene, state)) return "The values were not captured";
  const isMap = state.view === "map";
  if (state.layer === "all" && !isMap) return "Lengths of values are not comparable between layers: choose one layer";
  const numbers = scene.parts[state.part].sites;
  const sites = (isMap ? numbers : [numbers[state.layer]]).map((number) => scene.sites[number]);
  const longest = Math.max(...sites.map(({ queries, keys }) => Math.max(queries, keys)));
  if (isMap && longest > MOST_FOLLOWED) return `Pictures of more than ${MOST_FOLLOWED} tokens are of weights alone`;
  const forms = sites.flatMap(({ maps }) => (isMap || state.mode !== "head" ? maps : [maps[state.head]]));
  return forms.every((form) => WHOLE_FORMS.includes(form?.kind)) ? null : "Not every weight is stored";
}

/** Whether weights are shown times lengths. */
export function isNormed(scene, state) {
  return state.measure === "norms" && normsProblem(scene, state) === null;
}

/** The map of a head, or the mean of a layer's heads, each weight times the length of its value. */
export async function normedMap(scene, number, { mode, head }) {
  const { heads, queries, keys, norms } = scene.sites[number];
  const lengths = await scene.loader.read(norms);
  const members = mode === "head" ? [head] : Array.from({ length: heads }, (_, index) => index);
  const maps = await Promise.all(members.map((member) => scene.headMap(number, member)));
  const data = new Float32Array(queries * keys);
  maps.forEach((map, index) => {
    const start = members[index] * keys;
    for (let i = 0; i < data.length; i += 1) data[i] += (map.data[i] * lengths[start + (i % keys)]) / maps.length;
  });
  const note = [...new Set(maps.map((map) => map.note))].join("; or ");
  return { queries, keys, data, exact: maps.every((map) => map.exact), top: null, known: null, largest: null, note };
}

/** One row of a head times the lengths of its values. */
export async function normedRow(scene, number, head, row) {
  const lengths = await scene.loader.read(scene.sites[number].norms);
  return row.map((weight, key) => weight * lengths[head * row.length + key]);
}
