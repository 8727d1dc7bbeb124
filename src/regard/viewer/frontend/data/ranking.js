// Heads by what one word gives another, from one row of each head of a part.

import { headRow, knownWeight } from "./frame.js";

/**
 * The heads of a state's part, the strongest first, as {layer, head, weight, most, isNormed, partner}. With a query alone the
 * weight is that of its strongest partner, which is named: another word that is not special. Where weights that are not
 * stored leave open which one that is, or what it gets, the weight is null, and `most` is what it may be.
 * `frame` is that of any head, for its words, which must be shown.
 */
export async function rankedByPair(scene, state, frame) {
  const [query, key] = state.pair;
  const i = indexOfPosition(frame.rows, query);
  const keys = key === undefined ? otherWords(frame, i) : [indexOfPosition(frame.columns, key)];
  const matches = [];
  for (const [layer, number] of scene.parts[state.part].sites.entries()) {
    const heads = Array.from({ length: scene.sites[number].heads }, (_, head) => head);
    const rows = await Promise.all(heads.map((head) => headRow(scene, state, frame, layer, head, i)));
    heads.forEach((head) => {
      const { best, weight, most } = strongestOf(rows[head], keys);
      const partner = key === undefined && weight ? frame.columns.labels[best] : null;
      matches.push({ layer, head, weight, most, isNormed: frame.isNormed, partner });
    });
  }
  return matches.sort((a, b) => (b.weight ?? -1) - (a.weight ?? -1));
}

/** Columns of another word than that of a row, which are not special. */
function otherWords({ square, columns }, i) {
  return columns.labels.map((_, j) => j).filter((j) => !(square && j === i) && !columns.special[j]);
}

/** The key that gets most for sure, and its weight: null where another may get more, or where it is not told. */
function strongestOf({ low, high }, keys) {
  if (!keys.length) return { best: -1, weight: 0, most: 0 };
  const best = keys.reduce((strongest, j) => (low[j] > low[strongest] ? j : strongest));
  const isClear = keys.every((j) => j === best || high[j] <= low[best]);
  const weight = isClear ? knownWeight(low[best], high[best]) : NaN;
  const most = keys.reduce((largest, j) => Math.max(largest, high[j]), -Infinity);
  return { best, weight: Number.isNaN(weight) ? null : weight, most };
}

/** The row or column that a position of a text belongs to; -1 where it is not shown. */
export function indexOfPosition(axis, position) {
  return axis.members.findIndex((members) => members.includes(position));
}
