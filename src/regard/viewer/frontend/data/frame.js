// What is shown now: a map over pieces or words, special tokens shown or folded, some steps of it.

export const TILE = 256; // cells of a side

const FOLDED = "[special]";
const ROWS_KEPT = 256; // of a server's map
const SMALL_MAP = 64; // rows and columns up to which colours reach to the largest weight
const BRIGHT = 0.99; // of larger maps, the share of cells whose colours differ

/** The frame of a scene in a state; an error says what is not there. */
export async function frameOf(scene, state) {
  const part = scene.parts[state.part];
  const layer = state.layer === "all" ? 0 : state.layer;
  const number = part.sites[layer];
  const site = scene.sites[number];
  const through = state.layer === "all" || ["rollout", "relevance"].includes(state.mode);
  const map = await mapOf(scene, state, number, through);
  const square = site.query_sequence === site.key_sequence;
  const until = shownPositions(scene, state, site.query_sequence);
  const rows = axisOf(scene, state, site.query_sequence, until);
  const columns = square ? rows : axisOf(scene, state, site.key_sequence, shownPositions(scene, state, site.key_sequence));
  const signed = site.kind === "signed";
  const frame = { rows, columns, signed, isGate: site.kind === "gate", square, exact: map.exact, note: scene.note, cut: until };
  if (map.data === null) return remoteFrame(frame, scene, state, number);
  return wholeFrame(frame, map);
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

function mapOf(scene, state, site, through) {
  if (through) {
    const name = ["rollout", "relevance"].includes(state.mode) ? state.mode : state.mode === "max" ? "max" : "mean";
    return scene.partMap(state.part, name);
  }
  return state.mode === "head" ? scene.headMap(site, state.head) : scene.layerMap(site, state.mode);
}

/** Positions shown of a sequence that was generated: the prompt and as many steps as the state says; null for all. */
function shownPositions(scene, state, sequence) {
  if (scene.steps?.sequence !== sequence || state.step === null || state.step === undefined) return null;
  return scene.steps.prompt + state.step;
}

/** Labels of one side, and the positions that each stands for. */
function axisOf(scene, state, number, until) {
  const prompt = (scene.steps?.sequence === number && scene.steps.prompt) || Infinity;
  const sequence = scene.sequences[number];
  const groups = groupsOf(sequence, state.unit === "words");
  const shown = groups.filter((group) => until === null || group.members.every((i) => i < until));
  if (state.special !== "folded") return asAxis(shown, prompt, sequence.name);
  const special = shown.filter((group) => group.special);
  const others = shown.filter((group) => !group.special);
  if (special.length) {
    others.push({ label: FOLDED, special: true, members: special.flatMap((group) => group.members) });
  }
  return asAxis(others, prompt, sequence.name);
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
function asAxis(groups, prompt, name) {
  return {
    name,
    labels: groups.map((group) => group.label),
    special: groups.map((group) => group.special),
    members: groups.map((group) => group.members),
    written: groups.map(({ members }) => members.length > 0 && members.every((position) => position >= prompt)),
  };
}

function wholeFrame(frame, map) {
  const { rows, columns } = frame;
  const plain = isPlain(rows, map.queries) && isPlain(columns, map.keys);
  const whole = plain ? map.data : merged(map, rows, columns);
  const breadth = columns.labels.length;
  const pyramid = [whole];
  frame.whole = whole;
  frame.peak = largest(whole);
  frame.levels = levelsOf(frame);
  frame.bright = brightOf(frame, pyramid);
  frame.value = (i, j) => ({
    value: whole[i * breadth + j],
    exact: map.exact || (plain && isTop(map.top, i, j)),
  });
  frame.row = async (i) => whole.slice(i * breadth, (i + 1) * breadth);
  frame.column = async (j) => Float32Array.from(rows.labels, (_, i) => whole[i * breadth + j]);
  frame.tile = (level, r, c) => cutTile(levelOf(pyramid, frame, level), frame, level, r, c);
  return frame;
}

/** Whether every position stands for itself. */
function isPlain(axis, count) {
  return axis.members.length === count && axis.members.every((m, i) => m.length === 1 && m[0] === i);
}

/** Attention to a word is the sum over its pieces, attention from a word the mean over them. */
function merged(map, rows, columns) {
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

function isTop(top, i, j) {
  if (!top) return false;
  return top.places.subarray(i * top.count, (i + 1) * top.count).includes(j);
}

function largest(values) {
  let peak = 0;
  for (let i = 0; i < values.length; i += 1) peak = Math.max(peak, Math.abs(values[i]));
  return peak;
}

function levelsOf(frame) {
  const longest = Math.max(frame.rows.labels.length, frame.columns.labels.length, 1);
  return 1 + Math.max(0, Math.ceil(Math.log2(longest / TILE)));
}

/** A weight that only few of the cells exceed, as they are seen when the whole map is. */
function brightOf(frame, pyramid) {
  const longest = Math.max(frame.rows.labels.length, frame.columns.labels.length);
  if (longest <= SMALL_MAP) return frame.peak;
  const seen = levelOf(pyramid, frame, frame.levels - 1).filter((weight) => weight > 0).sort();
  return seen.length ? seen[Math.floor(BRIGHT * (seen.length - 1))] : frame.peak;
}

function levelOf(pyramid, frame, level) {
  for (let l = pyramid.length; l <= level; l += 1) pyramid.push(halved(pyramid[l - 1], frame, l));
  return pyramid[level];
}

/** The next level: of each four cells the one farthest from 0, so that nothing strong is lost. */
function halved(fine, frame, level) {
  const size = (count, l) => Math.ceil(count / 2 ** l);
  const [height, breadth] = [size(frame.rows.labels.length, level - 1), size(frame.columns.labels.length, level - 1)];
  const [rows, columns] = [size(frame.rows.labels.length, level), size(frame.columns.labels.length, level)];
  const coarse = new Float32Array(rows * columns);
  for (let i = 0; i < height; i += 1) {
    const start = (i >> 1) * columns;
    for (let j = 0, at = i * breadth; j < breadth; j += 1, at += 1) {
      const place = start + (j >> 1);
      if (Math.abs(fine[at]) > Math.abs(coarse[place])) coarse[place] = fine[at];
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
function remoteFrame(frame, scene, state, site) {
  const rowsInHand = new Map();
  const asked = new URLSearchParams({
    part: state.part,
    layer: state.layer,
    mode: state.mode,
    head: state.head,
    unit: state.unit,
    special: state.special,
  });
  const ask = (path, places) => {
    const query = new URLSearchParams(asked);
    for (const [name, value] of Object.entries(places)) query.set(name, value);
    return scene.loader.remote.floats(`${path}?${query}`);
  };
  frame.whole = null;
  frame.peak = state.mode === "head" && state.layer !== "all" ? scene.sites[site].peak[state.head] : 1;
  frame.bright = frame.peak;
  frame.levels = levelsOf(frame);
  frame.row = (i) => {
    if (!rowsInHand.has(i)) {
      if (rowsInHand.size >= ROWS_KEPT) rowsInHand.clear();
      rowsInHand.set(i, ask("row", { row: i }));
      rowsInHand.get(i).catch(() => rowsInHand.delete(i)); // a refused row may be asked for again
    }
    return rowsInHand.get(i);
  };
  frame.column = (j) => ask("column", { column: j });
  frame.value = async (i, j) => ({ value: (await frame.row(i))[j], exact: true });
  frame.tile = (level, row, column) => ask("tile", { level, row, column });
  return frame;
}
