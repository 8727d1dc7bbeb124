// Weights of a scene: decoded, or multiplied from queries and keys, when somebody asks for them.

import { fetchLoader, inlineLoader } from "./chunks.js";
import { meanKnowledge, eachRun, partialMap, valuesOfCodes } from "./partial_map.js";

/** Positions up to which pictures of a map follow words, hidden tokens, steps and lengths of values. */
export const MOST_FOLLOWED = 512;

const THUMBNAIL_SIDE = 64; // positions of a side of a thumbnail
const CACHE_SIZE = 48 << 20; // numbers of maps that stay in memory

/**
 * A scene whose maps can be asked for.
 * A map is {queries, keys, data, exact, top, known, largest, note}: weights row by row, whether all of them are exact,
 * and where not, the places of those that are. Where `known` is not null, data are colours, and what is known of
 * weights is asked of it. `largest` is the largest weight, null where nobody knows. On a server's scene data may be null.
 */
export function openScene(manifest, loader) {
  const maps = boundedCache(CACHE_SIZE);
  const cached = (key, make) => maps.get(key) ?? maps.set(key, make());
  const scene = { ...manifest, loader };
  scene.headMap = (site, head) =>
    cached(`${site}/${head}`, () => readHeadMap(scene, manifest.sites[site], head));
  scene.headRows = (site, head, queries) => readHeadRows(scene, manifest.sites[site], head, queries);
  scene.layerMap = (site) => cached(`${site}/mean`, () => meanOfHeads(scene, site));
  scene.partMap = (part, name) => cached(`part ${part}/${name}`, () => readPartMap(scene, part, name));
  return scene;
}

/** The loader of a scene that came with the page, or from the server. */
export function loaderOf(manifest) {
  if (manifest.id === null) return inlineLoader(manifest.first_chunk);
  return fetchLoader(`/api/traces/${encodeURIComponent(manifest.id)}`);
}

/** A small picture of one head: bytes from 0 to 255 for its largest weight; stored, or made of its weights. */
export async function thumbnail(scene, site, head) {
  const chunk = scene.sites[site].thumbnails;
  if (!chunk) return pictureOfMap(await scene.headMap(site, head), scene.sites[site].peak[head]);
  const [, height, width] = chunk.shape;
  scene.thumbnails ??= new Map();
  if (!scene.thumbnails.has(site)) scene.thumbnails.set(site, scene.loader.read(chunk));
  const thumbnails = await scene.thumbnails.get(site);
  return { data: thumbnails.subarray(head * height * width, (head + 1) * height * width), height, width };
}

/** The largest weight of each block of a map, 255 for the largest of all. */
function pictureOfMap({ data: weights, queries, keys }, peak) {
  const [height, width] = [Math.min(THUMBNAIL_SIDE, queries), Math.min(THUMBNAIL_SIDE, keys)];
  const [data, scale] = [new Uint8Array(height * width), 255 / (peak || 1)];
  for (let i = 0, at = 0; i < queries; i += 1) {
    const start = Math.floor((i * height) / queries) * width;
    for (let j = 0; j < keys; j += 1, at += 1) {
      const pixel = start + Math.floor((j * width) / keys);
      data[pixel] = Math.max(data[pixel], Math.round(Math.abs(weights[at]) * scale));
    }
  }
  return { data, height, width };
}

/** Promises by key, the ones used longest ago forgotten when their maps take too much. */
function boundedCache(capacity) {
  const entries = new Map();
  let total = 0;
  const evict = (key) => {
    total -= entries.get(key)?.size ?? 0;
    entries.delete(key);
  };
  return {
    get(key) {
      const entry = entries.get(key);
      if (!entry) return undefined;
      entries.delete(key);
      entries.set(key, entry);
      return entry.promise;
    },
    set(key, promise) {
      const entry = { promise, size: 0 };
      entries.set(key, entry);
      promise.then(
        (map) => {
          if (entries.get(key) !== entry) return;
          entry.size = map.data?.length ?? 0;
          total += entry.size;
          for (const oldestKey of entries.keys()) {
            if (total <= capacity || oldestKey === key) break;
            evict(oldestKey);
          }
        },
        () => entries.get(key) === entry && evict(key), // a failure may be tried again
      );
      return promise;
    },
  };
}

async function readHeadMap(scene, site, head) {
  return readMap(scene, site.maps[head], site.queries, site.keys, site.peak[head]);
}

/** Some rows of a head without the others, where they can be made alone; null where they cannot. */
async function readHeadRows(scene, { maps, queries, keys }, head, rows) {
  const form = maps[head];
  if (form.kind !== "factors") return null;
  const data = await factorWeights(scene, form, queries, keys, rows);
  const weights = rows.map((_, index) => data.subarray(index * keys, (index + 1) * keys));
  if (form.top) {
    const [places, values] = await Promise.all([scene.loader.read(form.top.places), scene.loader.read(form.top.values)]);
    const count = form.top.places.shape[1];
    rows.forEach((row, index) => {
      for (let at = row * count; at < (row + 1) * count; at += 1) weights[index][places[at]] = values[at];
    });
  }
  return weights;
}

async function readPartMap(scene, part, name) {
  const { maps, sites } = scene.parts[part];
  const form = maps[name];
  if (!form) throw new Error(`there is no ${name} of ${scene.parts[part].label}`);
  const { queries, keys } = scene.sites[sites[0]];
  return readMap(scene, form, queries, keys, form.unit ?? null);
}

/** A map in the form it is kept in. */
async function readMap(scene, form, queries, keys, largest) {
  const { note } = form;
  const size = { queries, keys, largest, note, exact: isExact(form), top: null, known: null };
  if (form.kind === "tiles") return { ...size, data: null };
  if (form.kind === "largest") return partialMap(scene, form, size);
  if (form.kind === "factors") {
    const map = { ...size, data: await factorWeights(scene, form, queries, keys) };
    if (form.top) map.top = await correctTop(scene, form.top, map);
    return map;
  }
  const numbers = await scene.loader.read(form.weights);
  return { ...size, data: form.kind === "dense" ? numbers : valuesOfCodes(numbers, form) };
}

/** The mean over the heads of one layer. */
async function meanOfHeads(scene, site) {
  const { heads, queries, keys, maps } = scene.sites[site];
  const isWhole = (form) => form.kind !== "tiles";
  const notes = new Set(maps.map((form) => form.note));
  const note = [...notes].join("; or ");
  const exact = maps.every(isExact);
  const size = { queries, keys, largest: null, note, exact, top: null, known: null };
  if (!maps.every(isWhole)) return { ...size, data: null };
  const data = new Float32Array(queries * keys);
  const parts = [];
  for (let head = 0; head < heads; head += 1) {
    const map = await scene.headMap(site, head);
    const weights = map.data;
    parts.push(map);
    for (let i = 0; i < data.length; i += 1) data[i] += weights[i] / heads;
  }
  const isPartial = parts.some((map) => map.known);
  return { ...size, data, known: isPartial ? meanKnowledge(parts) : null };
}

/** Whether every number is the one of the trace; rows that are streamed come in half precision. */
function isExact(form) {
  return form.kind === "tiles" || (form.kind === "dense" && form.exact !== false);
}

/** exp(scale · query · key − normaliser) where a key is permitted, else 0; of all rows, or of some. */
async function factorWeights(scene, form, queries, keys, rows = null) {
  const [query, key, normaliser, runs] = await Promise.all([
    scene.loader.read(form.query),
    scene.loader.read(form.key),
    scene.loader.read(form.lse),
    form.runs ? scene.loader.read(form.runs) : null,
  ]);
  const width = form.query.shape[1];
  const data = new Float32Array((rows ?? { length: queries }).length * keys);
  eachRun(runs, queries, keys, (row, start, stop) => {
    const place = rows ? rows.indexOf(row) : row;
    if (place < 0) return;
    const scaled = query.subarray(row * width, (row + 1) * width).map((part) => part * form.scale);
    fillRow(data, place * keys, scaled, key, width, start, stop, normaliser[row]);
  });
  return data;
}

function fillRow(data, base, query, key, width, start, stop, offset) {
  for (let column = start; column < stop; column += 1) {
    let score = 0;
    for (let i = 0, at = column * width; i < width; i += 1, at += 1) score += query[i] * key[at];
    data[base + column] = Math.exp(score - offset);
  }
}

/** Puts the exact largest weights of each row in their places, and says where they are. */
async function correctTop(scene, top, map) {
  const [places, values] = await Promise.all([scene.loader.read(top.places), scene.loader.read(top.values)]);
  const count = top.places.shape[1];
  for (let row = 0, at = 0; row < map.queries; row += 1) {
    for (let i = 0; i < count; i += 1, at += 1) map.data[row * map.keys + places[at]] = values[at];
  }
  return { count, places };
}

/** The name people know a site by: its label, its layer, or where it stands in its part. */
export function layerName(scene, part, index) {
  const site = scene.sites[scene.parts[part].sites[index]];
  if (site.label) return site.label;
  return site.layer === null || site.layer === undefined ? `Site ${index}` : `Layer ${site.layer}`;
}

/** What the sites of a part are called together. */
export function layersName(scene, part) {
  return part.sites.every((number) => scene.sites[number].label) ? "site" : "layer";
}
