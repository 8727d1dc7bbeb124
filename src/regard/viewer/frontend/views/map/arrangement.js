// In which rows the heads of a part stand: by layer, by type, or in one order.

import { headType } from "../../data/head_types.js";
import { readableWeight } from "../../data/numbers.js";
import { layerName } from "../../data/scene.js";
import { capitalised } from "../../drawing/labels.js";

const [LEAST_IN_ROW, MOST_IN_ROW] = [6, 12];

/**
 * Rows {name, title, heads: [{layer, head, value, partner}]} of the heads of a state's part; `ranking` is that of the chosen words,
 * strongest first. A name is null where a row is only a line of an order, and empty where it goes on with the row above.
 */
export function arrangedHeads(scene, state, ranking) {
  const sites = scene.parts[state.part].sites.map((number) => scene.sites[number]);
  const rows = sites.map((site, layer) => {
    const heads = Array.from({ length: site.heads }, (_, head) => ({ layer, head, value: "" }));
    return { name: layerName(scene, state.part, layer), title: site.name, heads: heads.filter(({ head }) => isOfType(site, head, state.type)) };
  });
  if (state.sort === "layer" || (state.sort === "pair" && !ranking)) return rows.filter((row) => row.heads.length);
  const heads = rows.flatMap((row) => row.heads);
  const size = Math.min(MOST_IN_ROW, Math.max(LEAST_IN_ROW, ...sites.map((site) => site.heads)));
  if (state.sort === "type") return rowsByType(sites, heads).flatMap(({ name, heads: members }) => cutRows(members, size, name, ""));
  const ordered = state.sort === "pair" ? rankedHeads(heads, ranking) : headsByFigure(sites, heads, state.sort);
  return cutRows(ordered, size, null, null);
}

/** Heads in rows of a size; the first has a name, the others another. */
function cutRows(heads, size, first, others) {
  const count = Math.ceil(heads.length / size);
  return Array.from({ length: count }, (_, row) => ({ name: row ? others : first, title: null, heads: heads.slice(row * size, (row + 1) * size) }));
}

function isOfType(site, head, type) {
  return !type || headType(site.types?.[head] ?? "") === type;
}

function rowsByType(sites, heads) {
  const rows = new Map();
  for (const place of heads) {
    const type = headType(sites[place.layer].types?.[place.head] ?? "");
    rows.set(type, [...(rows.get(type) ?? []), place]);
  }
  return [...rows].sort(([, a], [, b]) => b.length - a.length).map(([type, members]) => ({ name: capitalised(type), heads: members }));
}

function headsByFigure(sites, heads, figure) {
  const number = ({ layer, head }) => sites[layer][figure]?.[head] ?? NaN;
  const values = heads.filter((place) => !Number.isNaN(number(place)));
  return values.sort((a, b) => number(a) - number(b)).map((place) => ({ ...place, value: readableWeight(number(place)) }));
}

function rankedHeads(heads, ranking) {
  const shown = new Set(heads.map(({ layer, head }) => `${layer}-${head}`));
  return ranking.filter(({ layer, head }) => shown.has(`${layer}-${head}`)).map(({ layer, head, weight, isNormed, partner }) => {
    return { layer, head, value: weight === null ? "not stored" : pairText(weight, isNormed), partner };
  });
}

/** A weight as a share of a hundred; times the length of a value it is none. */
export function pairText(weight, isNormed) {
  if (isNormed) return readableWeight(weight);
  const share = 100 * weight;
  return share > 0 && share < 1 ? "<1 %" : `${share.toFixed(0)} %`;
}
