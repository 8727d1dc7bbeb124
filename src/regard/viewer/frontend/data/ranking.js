// Heads by what one word gives another, from the frames of all heads of a part.

import { frameOf } from "./frame.js";

/**
 * The heads of a state's part, the strongest first, as {layer, head, weight, partner}. With a query alone the weight is
 * that of its strongest partner, which is named: another word that is not special. A weight that is not stored is null.
 */
export async function rankedByPair(scene, state) {
  const [query, key] = state.pair;
  const places = scene.parts[state.part].sites.flatMap((number, layer) =>
    Array.from({ length: scene.sites[number].heads }, (_, head) => ({ layer, head })));
  const matches = await Promise.all(places.map((place) => matchOfHead(scene, state, place, query, key)));
  return matches.sort((a, b) => (b.weight ?? -1) - (a.weight ?? -1));
}

async function matchOfHead(scene, state, { layer, head }, query, key) {
  const frame = await frameOf(scene, { ...state, layer, head, mode: "head" });
  const i = indexOfPosition(frame.rows, query);
  if (i < 0) return { layer, head, weight: null, partner: null };
  const row = await frame.row(i);
  if (key !== undefined) {
    const weight = row[indexOfPosition(frame.columns, key)];
    return { layer, head, weight: Number.isFinite(weight) ? weight : null, partner: null };
  }
  const j = strongestPartner(row, frame, i);
  return j < 0 ? { layer, head, weight: null, partner: null } : { layer, head, weight: row[j], partner: frame.columns.labels[j] };
}

function strongestPartner(row, frame, i) {
  let best = -1;
  for (let j = 0; j < row.length; j += 1) {
    const isOwn = frame.square && j === i;
    if (!isOwn && !frame.columns.special[j] && Number.isFinite(row[j]) && (best < 0 || row[j] > row[best])) best = j;
  }
  return best;
}

/** The row or column that a position of a text belongs to; -1 where it is not shown. */
export function indexOfPosition(axis, position) {
  return axis.members.findIndex((members) => members.includes(position));
}
