// What is shown now: a map over pieces or words, special tokens shown or folded, some steps of it.

import { isNormed, normedMap, normedRow } from "./norms.js";
import { MEASURES, NEAR } from "./numbers.js";

export const TILE = 256; // cells of a side

const FOLDED_LABEL = "[special]";
const ROW_CACHE_SIZE = 256; // of a server's map
const SMALL_MAP = 64; // rows and columns up to which colours reach to the largest weight
const BRIGHT_SHARE = 0.99; // of larger maps, the share of cells whose colours differ

/** The frame of a scene in a state; an error says what is not there. */
export async function frameOf(scene, state) {
  const part = scene.parts[state.part];
  const layer = state.layer === "all" ? 0 : state.layer;
  const siteNumber = part.sites[layer];
  const site = scene.sites[siteNumber];
  const isOverLayers = state.layer === "all" || ["rollout", "relevance"].includes(state.mode);
  const normed = isNormed(scene, state);
  const square = site.query_sequence === site.key_sequence;
  const shownCount = shownPositions(scene, state, site.query_sequence);
  const rows = axisOf(scene, state, site.query_sequence, shownCount);
  const columns = square ? rows : axisOf(scene, state, site.key_sequence, shownPositions(scene, state, site.key_sequence));
  const signed = site.kind === "signed";
  const isRenormalised = dividesRows(scene, state, site) && !normed;
  const measure = normed ? MEASURES.norms : isRenormalised ? MEASURES.shares : MEASURES.weights;
  const frame = { rows, columns, signed, isGate: site.kind === "gate", square, measure, isRenormalised, isNormed: normed };
  const isLargestOfHeads = state.mode === "max" && !isOverLayers;
  const map = isLargestOfHeads ? await largestOfHeads(frame, scene, state) : reducedMap(frame, await mapOf(scene, state, siteNumber, isOverLayers));
  if (isOverLayers && state.mode === "max" && map.data && !isSelection(frame)) {
    throw new Error("the largest over all layers is stored for single tokens: choose one layer, or show pieces with special tokens");
  }
  [frame.exact, frame.note] = [map.exact, map.note];
  if (map.data === null) return remoteFrame(frame, scene, state, map);
  return map.spans ? partialFrame(frame, map) : wholeFrame(frame, map);
}

/** Whether rows of weights are shown as shares of what is left of them, since special tokens are hidden. */
export function dividesRows(scene, state, site) {
  const hasSpecial = [site.query_sequence, site.key_sequence].some((number) => scene.sequences[number].special.some(Boolean));
  return state.special === "hidden" && hasSpecial && !["signed", "gate"].includes(site.kind);
}

/**
 * The least and the most that the weights of one row of a head may be, of axes that a frame of the same state has: not all
 * of a long map is made for it.
 */
export async function headRow(scene, state, frame, layer, head, i) {
  const queries = frame.rows.members[i];
  const number = scene.parts[state.part].sites[layer];
  const stored = await scene.headRows(number, head, queries);
  if (stored) {
    const rows = frame.isNormed ? await Promise.all(stored.map((own) => normedRow(scene, number, head, own))) : stored;
    return spansOf(frame, knownRows((query) => rows[queries.indexOf(query)]), rows[0].length, false).row(i);
  }
  const own = { ...state, layer, head, mode: "head" };
  const map = await mapOf(scene, own, number, false);
  if (map.data === null) {
    const row = await remoteFrame({ ...frame }, scene, own, map).row(i);
    return { low: row, high: row };
  }
  const { keys, data } = map;
  return spansOf(frame, map.known ?? knownRows((query) => data.subarray(query * keys, (query + 1) * keys)), keys, false).row(i);
}

/** What is known of rows of which every weight is. */
function knownRows(rowOf) {
  return {
    row(query, low, high) {
      low.set(rowOf(query));
      high.set(low);
    },
  };
}

/**
 * How many rows and columns a tile has, being cut at the edge.
 * @returns {[number, number]}
 */
export function tileShape(frame, level, r, c) {
  const side = (count, place) => Math.min(TILE, Math.ceil(count / 2 ** level) - place * TILE);
  return [side(frame.rows.labels.length, r), side(frame.columns.labels.length, c)];
}

/** The weight of the strongest colour: a few strong weights must not darken all others of a large map. */
export function scaleTop(frame, colour) {
  return colour === "linear" && !frame.signed ? frame.bright : frame.peak;
}

/** How many steps the rows of a part grew by after the prompt; 0 of an encoder. */
export function stepCount(scene, partNumber) {
  const site = scene.sites[scene.parts[partNumber].sites[0]];
  if (scene.steps?.sequence !== site.query_sequence) return 0;
  return Math.max(0, site.queries - scene.steps.prompt);
}

function mapOf(scene, state, site, isOverLayers) {
  if (isOverLayers) {
    const name = ["rollout", "relevance"].includes(state.mode) ? state.mode : state.mode === "max" ? "max" : "mean";
    return scene.partMap(state.part, name);
  }
  if (isNormed(scene, state)) return normedMap(scene, site, state);
  return state.mode === "head" ? scene.headMap(site, state.head) : scene.layerMap(site);
}

/** A map over the rows and columns of a frame; `spans` has what is known of weights where not all of them are kept. */
function reducedMap(frame, map) {
  const { data, known } = map;
  if (data === null) return map;
  if (isPlainMap(frame, map)) return { received: null, ...map, spans: known && spansOf(frame, known, map.keys, true), count: known?.count ?? null, mean: known?.mean.bind(known) };
  const whole = mergedWeights(map, frame.rows, frame.columns);
  if (frame.isRenormalised) divideRows(whole, frame.columns.labels.length);
  const spans = known && spansOf(frame, known, map.keys, false);
  const note = map.exact ? map.note : `for pairs of tokens, ${map.note}`; // sums and shares are not as near
  return { ...map, data: whole, spans, note, top: null, largest: null, received: null, count: null, mean: () => null };
}

/** The largest over the heads of a layer: words are merged and rows divided in each head before, as a sum of largest weights is no weight. */
async function largestOfHeads(frame, scene, state) {
  const number = scene.parts[state.part].sites[state.layer];
  const { heads, maps, peak } = scene.sites[number];
  const isPartial = maps.some(({ kind }) => kind === "largest");
  const [notes, spans] = [new Set(), []];
  const joined = { data: null, exact: true, top: null, received: null, count: null, mean: () => null };
  for (let head = 0; head < heads; head += 1) {
    const map = reducedMap(frame, await mapOf(scene, { ...state, mode: "head", head }, number, false));
    joined.largest = map.largest === null ? null : Math.max(...peak);
    if (map.data === null) return { ...map, largest: joined.largest };
    notes.add(map.note);
    joined.exact &&= map.exact;
    if (isPartial) spans.push(map.spans ?? spansOfWhole(frame, map.data));
    joined.data = joined.data ? largerOf(joined.data, map.data) : map.data.slice();
  }
  return { ...joined, note: [...notes].join("; or "), spans: isPartial ? largestSpans(spans) : null };
}

/** The larger of each two numbers, in place of the first. */
function largerOf(target, values) {
  for (let i = 0; i < target.length; i += 1) target[i] = Math.max(target[i], values[i]);
  return target;
}

/** Positions shown of a sequence that was generated: the prompt and as many steps as the state says; null for all. */
function shownPositions(scene, state, sequence) {
  if (scene.steps?.sequence !== sequence || state.step === null || state.step === undefined) return null;
  return scene.steps.prompt + state.step;
}

/** Labels of one side, and the positions that each stands for. */
function axisOf(scene, state, number, shownCount) {
  const prompt = (scene.steps?.sequence === number && scene.steps.prompt) || Infinity;
  const sequence = scene.sequences[number];
  const groups = groupsOf(sequence, state.unit === "words");
  const shownGroups = groups.filter((group) => shownCount === null || group.members.every((i) => i < shownCount));
  if (state.special === "shown") return axisOfGroups(shownGroups, prompt, sequence.name);
  const specialGroups = shownGroups.filter((group) => group.special);
  const otherGroups = shownGroups.filter((group) => !group.special);
  if (specialGroups.length && state.special === "folded") {
    otherGroups.push({ label: FOLDED_LABEL, special: true, members: specialGroups.flatMap((group) => group.members) });
  }
  return axisOfGroups(otherGroups, prompt, sequence.name);
}

function groupsOf(sequence, asWords) {
  const { tokens, words, special } = sequence;
  if (!asWords || !words) {
    return tokens.map((label, i) => ({ label, special: special[i], members: [i] }));
  }
  const groups = words.names.map((label) => ({ label, special: false, members: [] }));
  words.pieces.forEach((word, i) => word !== null && groups[word].members.push(i));
  for (const group of groups) group.special = group.members.length > 0 && group.members.every((i) => special[i]);
  return groups;
}

/** An axis; what a model wrote comes after the prompt. */
function axisOfGroups(groups, prompt, name) {
  return {
    name,
    labels: groups.map((group) => group.label),
    special: groups.map((group) => group.special),
    members: groups.map((group) => group.members),
    written: groups.map(({ members }) => members.length > 0 && members.every((position) => position >= prompt)),
  };
}

/** A frame of which every weight is here. */
function wholeFrame(frame, map) {
  const { rows, columns } = frame;
  const whole = map.data;
  paintFrom(frame, whole);
  const breadth = columns.labels.length;
  frame.whole = whole;
  frame.largest = frame.peak;
  frame.partial = null;
  frame.value = (i, j) => ({
    value: whole[i * breadth + j],
    exact: map.exact || isTopWeight(map.top, i, j),
  });
  frame.cut = (side, index) => (side === "row" ? whole.subarray(index * breadth, (index + 1) * breadth) : Float32Array.from(rows.labels, (_, i) => whole[i * breadth + index]));
  frame.row = async (i) => whole.slice(i * breadth, (i + 1) * breadth);
  frame.column = async (j) => frame.cut("column", j);
  frame.highest = () => 0;
  frame.received = () => meanOfRows(whole, rows.labels.length, breadth);
  return frame;
}

/**
 * A frame of which the largest weights of each row are here. A weight is NaN where it is not known; `highest` is what
 * those of a row or column may be that are not, so that nothing above it is missed.
 */
function partialFrame(frame, map) {
  paintFrom(frame, map.data);
  const { spans } = map;
  frame.whole = null;
  frame.largest = map.largest;
  frame.partial = { count: map.count };
  frame.value = (i, j) => {
    const [low, high] = spans.pair(i, j);
    const value = knownWeight(low, high);
    return { value, exact: false, low, high, mean: Number.isNaN(value) ? map.mean(i, j) : null };
  };
  frame.cut = (side, index) => {
    const { low, high } = spans[side](index);
    return low.map((least, other) => knownWeight(least, high[other]));
  };
  frame.row = async (i) => frame.cut("row", i);
  frame.column = async (j) => frame.cut("column", j);
  frame.highest = (side, index) => {
    const { low, high } = spans[side](index);
    return high.reduce((most, value, other) => (value > low[other] ? Math.max(most, value) : most), 0);
  };
  frame.received = () => map.received;
  return frame;
}

/** A weight that lies between two numbers, where they tell it to a thousandth, else NaN. */
export function knownWeight(low, high) {
  if (low === high) return low;
  return low > 0 && high - low <= NEAR ? (low + high) / 2 : NaN;
}

/** The least and the most that the weights of a row, a column and a pair may be. */
function spansOf(frame, known, keys, plain) {
  const { rows, columns } = frame;
  const [least, most] = [new Float32Array(keys), new Float32Array(keys)];
  const row = (i) => {
    if (i !== latest.index) [latest.index, latest.span] = [i, rowSpan(i)];
    return latest.span;
  };
  const latest = { index: null, span: null };
  const rowSpan = (i) => {
    const low = new Float32Array(columns.labels.length);
    const high = new Float32Array(columns.labels.length);
    if (plain) {
      known.row(i, low, high);
      return { low, high };
    }
    const { length } = rows.members[i];
    for (const query of rows.members[i]) {
      known.row(query, least, most);
      columns.members.forEach((members, j) => {
        for (const key of members) {
          low[j] += least[key] / length;
          high[j] += most[key] / length;
        }
      });
    }
    return frame.isRenormalised ? dividedSpan(low, high) : { low, high };
  };
  const pair = (i, j) => {
    if (plain) return known.pair(i, j);
    if (frame.isRenormalised) return [row(i).low[j], row(i).high[j]];
    const sums = [0, 0];
    for (const query of rows.members[i]) {
      for (const key of columns.members[j]) known.pair(query, key).forEach((end, side) => (sums[side] += end / rows.members[i].length));
    }
    return sums;
  };
  const column = (j) => {
    const [low, high] = [new Float32Array(rows.labels.length), new Float32Array(rows.labels.length)];
    for (let i = 0; i < low.length; i += 1) [low[i], high[i]] = pair(i, j);
    return { low, high };
  };
  return { row, column, pair };
}

/** What is known where everything is. */
function spansOfWhole(frame, whole) {
  const breadth = frame.columns.labels.length;
  const both = (values) => ({ low: values, high: values });
  return {
    row: (i) => both(whole.subarray(i * breadth, (i + 1) * breadth)),
    column: (j) => both(Float32Array.from(frame.rows.labels, (_, i) => whole[i * breadth + j])),
    pair: (i, j) => [whole[i * breadth + j], whole[i * breadth + j]],
  };
}

/** What is known of the largest of several weights. */
function largestSpans(all) {
  const largest = (ends) => ends.slice(1).reduce(largerOf, ends[0].slice());
  const joined = (side) => (index) => {
    const spans = all.map((own) => own[side](index));
    return { low: largest(spans.map(({ low }) => low)), high: largest(spans.map(({ high }) => high)) };
  };
  return { row: joined("row"), column: joined("column"), pair: (i, j) => largest(all.map((own) => own.pair(i, j))) };
}

/** The least and the most that weights are of what is left of a row: each is largest where all others are smallest. */
function dividedSpan(low, high) {
  const [least, most] = [low, high].map((ends) => ends.reduce((total, weight) => total + weight, 0));
  const share = (weight, others) => (weight > 0 ? weight / (weight + others) : 0);
  return { low: low.map((weight, j) => share(weight, most - high[j])), high: high.map((weight, j) => share(weight, least - low[j])) };
}

/** Puts tiles, and what colours need, into a frame. */
function paintFrom(frame, whole) {
  const pyramid = [whole];
  frame.peak = largestWeight(whole);
  frame.levels = levelCount(frame);
  frame.bright = brightWeight(frame, pyramid);
  frame.tile = (level, r, c) => cutTile(pyramidLevel(pyramid, frame, level), frame, level, r, c);
}

/** What each column receives of a row, in the mean. */
function meanOfRows(whole, height, breadth) {
  const means = new Float32Array(breadth);
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < breadth; column += 1) means[column] += whole[row * breadth + column];
  }
  return means.map((sum) => sum / height);
}

function isPlainMap({ rows, columns }, map) {
  return isPlain(rows, map.queries) && isPlain(columns, map.keys);
}

/** Whether each row and column is one position, and its weights are those of the map. */
function isSelection({ rows, columns, isRenormalised }) {
  return !isRenormalised && [rows, columns].every((axis) => axis.members.every((members) => members.length <= 1));
}

/** Whether every position stands for itself. */
function isPlain(axis, count) {
  return axis.members.length === count && axis.members.every((m, i) => m.length === 1 && m[0] === i);
}

/** Attention to a word is the sum over its pieces, attention from a word the mean over them. */
function mergedWeights(map, rows, columns) {
  const breadth = columns.labels.length;
  const target = new Int32Array(map.keys).fill(-1);
  columns.members.forEach((members, j) => members.forEach((key) => (target[key] = j)));
  const whole = new Float32Array(rows.labels.length * breadth);
  const row = new Float64Array(breadth);
  rows.members.forEach((members, i) => {
    row.fill(0);
    for (const query of members) {
      const start = query * map.keys;
      for (let key = 0; key < map.keys; key += 1) {
        if (target[key] >= 0) row[target[key]] += map.data[start + key];
      }
    }
    for (let j = 0; j < breadth; j += 1) whole[i * breadth + j] = row[j] / Math.max(1, members.length);
  });
  return whole;
}

/** Rows as shares of what is left of them. */
function divideRows(whole, breadth) {
  for (let start = 0; start < whole.length; start += breadth) {
    const row = whole.subarray(start, start + breadth);
    const sum = row.reduce((total, weight) => total + weight, 0);
    if (sum > 0) for (let j = 0; j < breadth; j += 1) row[j] /= sum;
  }
}

function isTopWeight(top, i, j) {
  if (!top) return false;
  return top.places.subarray(i * top.count, (i + 1) * top.count).includes(j);
}

function largestWeight(values) {
  let peak = 0;
  for (let i = 0; i < values.length; i += 1) peak = Math.max(peak, Math.abs(values[i]));
  return peak;
}

function levelCount(frame) {
  const longest = Math.max(frame.rows.labels.length, frame.columns.labels.length, 1);
  return 1 + Math.max(0, Math.ceil(Math.log2(longest / TILE)));
}

/** A weight that only few of the cells exceed, as they are seen when the whole map is. */
function brightWeight(frame, pyramid) {
  const longest = Math.max(frame.rows.labels.length, frame.columns.labels.length);
  if (longest <= SMALL_MAP) return frame.peak;
  const weights = pyramidLevel(pyramid, frame, frame.levels - 1).filter((weight) => weight > 0).sort();
  return weights.length ? weights[Math.floor(BRIGHT_SHARE * (weights.length - 1))] : frame.peak;
}

function pyramidLevel(pyramid, frame, level) {
  for (let l = pyramid.length; l <= level; l += 1) pyramid.push(halvedLevel(pyramid[l - 1], frame, l));
  return pyramid[level];
}

/** The next level: of each four cells the one farthest from 0, so that nothing strong is lost. */
function halvedLevel(fine, frame, level) {
  const size = (count, l) => Math.ceil(count / 2 ** l);
  const [height, breadth] = [size(frame.rows.labels.length, level - 1), size(frame.columns.labels.length, level - 1)];
  const [rows, columns] = [size(frame.rows.labels.length, level), size(frame.columns.labels.length, level)];
  const coarse = new Float32Array(rows * columns);
  for (let i = 0; i < height; i += 1) {
    const start = (i >> 1) * columns;
    for (let j = 0, at = i * breadth; j < breadth; j += 1, at += 1) {
      const cell = start + (j >> 1);
      if (Math.abs(fine[at]) > Math.abs(coarse[cell])) coarse[cell] = fine[at];
    }
  }
  return coarse;
}

function cutTile(values, frame, level, r, c) {
  const [height, breadth] = tileShape(frame, level, r, c);
  const columns = Math.ceil(frame.columns.labels.length / 2 ** level);
  const tile = new Float32Array(height * breadth);
  for (let i = 0; i < height; i += 1) {
    const start = (r * TILE + i) * columns + c * TILE;
    tile.set(values.subarray(start, start + breadth), i * breadth);
  }
  return tile;
}

/** A frame whose numbers the server makes when they are asked for. */
function remoteFrame(frame, scene, state, map) {
  const rowCache = new Map();
  const parameters = new URLSearchParams({
    part: state.part,
    layer: state.layer,
    mode: state.mode,
    head: state.head,
    unit: state.unit,
    special: state.special,
  });
  const request = (path, position) => {
    const query = new URLSearchParams(parameters);
    for (const [name, value] of Object.entries(position)) query.set(name, value);
    return scene.loader.remote.floats(`${path}?${query}`);
  };
  frame.whole = null;
  frame.partial = null;
  frame.largest = isPlainMap(frame, map) ? map.largest : null;
  frame.peak = frame.largest ?? 1;
  frame.bright = frame.peak;
  frame.levels = levelCount(frame);
  frame.row = (i) => {
    if (!rowCache.has(i)) {
      if (rowCache.size >= ROW_CACHE_SIZE) rowCache.clear();
      rowCache.set(i, request("row", { row: i }));
      rowCache.get(i).catch(() => rowCache.delete(i)); // a refused row may be asked for again
    }
    return rowCache.get(i);
  };
  frame.column = (j) => request("column", { column: j });
  frame.value = async (i, j) => ({ value: (await frame.row(i))[j], exact: true });
  frame.cut = null;
  frame.highest = () => 0;
  frame.received = () => null;
  frame.tile = (level, row, column) => request("tile", { level, row, column });
  return frame;
}
