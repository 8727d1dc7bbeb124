// Heads by what one word gives another, from one row of each head of a part.

import { headRow } from "./frame.js";

/**
 * The heads of a state's part, the strongest first, as {layer, head, weight, isNormed, partner}. With a query alone the weight is
 * that of its strongest partner, which is named: another word that is not special. A weight that is not stored is null.
 * `frame` is that of any head, for its words.
 */
export async function rankedByPair(scene, state, frame) {
  const [query, key] = state.pair;
  const i = indexOfPosition(frame.rows, query);
  const j = key === undefined ? -1 : indexOfPosition(frame.columns, key);
  const matches = [];
  for (const [layer, number] of scene.parts[state.part].sites.entries()) {
    const heads = Array.from({ length: scene.sites[number].heads }, (_, head) => head);
    const rows = await Promise.all(heads.map((head) => (i < 0 ? null : headRow(scene, state, frame, layer, head, i))));
    heads.forEach((head) => matches.push({ layer, head, ...matchOfRow(rows[head], frame, i, key === undefined ? null : j) }));
  }
  return matches.sort((a, b) => (b.weight ?? -1) - (a.weight ?? -1));
}

function matchOfRow(row, frame, i, key) {
  const j = !row ? -1 : (key ?? strongestPartner(row, frame, i));
  const weight = j >= 0 && Number.isFinite(row[j]) ? row[j] : null;
  return { weight, isNormed: frame.isNormed, partner: key === null && weight !== null ? frame.columns.labels[j] : null };
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
