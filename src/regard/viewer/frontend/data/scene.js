// Weights of a scene: decoded, or multiplied from queries and keys, when somebody asks for them.

import { fetchLoader, inlineLoader } from "./chunks.js";

const CACHE_SIZE = 48 << 20; // numbers of maps that stay in memory

/**
 * A scene whose maps can be asked for.
 * A map is {queries, keys, data, exact, top}: weights row by row, whether all of them are exact,
 * and where not, the places and values of those that are. On a server's scene data may be null.
 */
export function openScene(manifest, loader) {
  const maps = boundedCache(CACHE_SIZE);
  const cached = (key, make) => maps.get(key) ?? maps.set(key, make());
  const scene = { ...manifest, loader };
  scene.headMap = (site, head) =>
    cached(`${site}/${head}`, () => readHeadMap(scene, manifest.sites[site], head));
  scene.layerMap = (site, mode) => cached(`${site}/${mode}`, () => combineHeads(scene, site, mode));
  scene.partMap = (part, name) => cached(`part ${part}/${name}`, () => readPartMap(scene, part, name));
  return scene;
}

/** The loader of a scene that came with the page, or from the server. */
export function loaderOf(manifest) {
  if (manifest.id === null) return inlineLoader(manifest.first_chunk);
  return fetchLoader(`/api/traces/${encodeURIComponent(manifest.id)}`);
}

/** A small picture of one head: bytes from 0 to 255 for its largest weight. */
export async function thumbnail(scene, site, head) {
  const chunk = scene.sites[site].thumbnails;
  const [, height, width] = chunk.shape;
  scene.thumbnails ??= new Map();
  if (!scene.thumbnails.has(site)) scene.thumbnails.set(site, scene.loader.read(chunk));
  const thumbnails = await scene.thumbnails.get(site);
  return { data: thumbnails.subarray(head * height * width, (head + 1) * height * width), height, width };
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
  const form = site.form;
  const size = { queries: site.queries, keys: site.keys, exact: isExact(form), top: null };
  if (form.kind === "tiles") return { ...size, exact: true, data: null };
  const data =
    form.kind === "factors"
      ? await factorWeights(scene, site, head)
      : await storedWeights(scene, form, head, site.queries, site.keys);
  const map = { ...size, data };
  if (form.top) map.top = await correctTop(scene, form.top[head], map);
  return map;
}

async function readPartMap(scene, part, name) {
  const { maps, sites } = scene.parts[part];
  const form = maps[name];
  if (!form) throw new Error(`there is no ${name} of ${scene.parts[part].label}`);
  const { queries, keys } = scene.sites[sites[0]];
  if (form.kind === "tiles") return { queries, keys, exact: true, top: null, data: null };
  const data = await storedWeights(scene, form, 0, queries, keys);
  const map = { queries, keys, exact: isExact(form), top: null, data };
  if (form.top) map.top = await correctTop(scene, form.top[0], map);
  return map;
}

/** Mean or largest over the heads of one layer. */
async function combineHeads(scene, site, mode) {
  const { heads, queries, keys, form } = scene.sites[site];
  if (form.kind === "tiles") return { queries, keys, exact: true, top: null, data: null };
  const data = new Float32Array(queries * keys).fill(mode === "max" ? -Infinity : 0);
  for (let head = 0; head < heads; head += 1) {
    const weights = (await scene.headMap(site, head)).data;
    if (mode === "max") for (let i = 0; i < data.length; i += 1) data[i] = Math.max(data[i], weights[i]);
    else for (let i = 0; i < data.length; i += 1) data[i] += weights[i] / heads;
  }
  return { queries, keys, exact: isExact(form), top: null, data };
}

/** Whether every number is the one of the trace; rows that are streamed come in half precision. */
function isExact(form) {
  return form.kind === "dense" && form.exact !== false;
}

/** Weights that are kept as numbers, or as codes of blocks. */
async function storedWeights(scene, form, index, queries, keys) {
  const chunk = form.maps[index];
  const numbers = await scene.loader.read(chunk);
  if (form.kind === "dense") return numbers;
  const values = valuesOfCodes(form, index);
  const data = new Float32Array(queries * keys);
  const breadth = chunk.shape[1];
  for (let row = 0, at = 0; row < queries; row += 1) {
    const start = Math.floor(row / form.pool) * breadth;
    for (let key = 0; key < keys; key += 1, at += 1) {
      data[at] = values[numbers[start + Math.floor(key / form.pool)]];
    }
  }
  return data;
}

function valuesOfCodes(form, index) {
  return Float32Array.from({ length: 256 }, (_, code) => {
    if (form.signed) return (code - 128) * form.units[index];
    return code === 0 ? 0 : form.units[index] * Math.exp(form.step * (code - 1));
  });
}

/** exp(scale · query · key − normaliser) where a key is permitted, else 0. */
async function factorWeights(scene, site, head) {
  const { form, queries, keys } = site;
  const [query, key, normaliser, runs] = await Promise.all([
    scene.loader.read(form.query[head]),
    scene.loader.read(form.key[Math.floor(head / form.groups)]),
    scene.loader.read(form.lse),
    form.runs ? scene.loader.read(form.runs) : null,
  ]);
  const width = form.query[head].shape[1];
  const data = new Float32Array(queries * keys);
  let run = queries;
  for (let row = 0; row < queries; row += 1) {
    const offset = normaliser[head * queries + row];
    const scaled = query.subarray(row * width, (row + 1) * width).map((part) => part * form.scale);
    const count = runs ? runs[row] : 1;
    for (let i = 0; i < count; i += 1, run += 2) {
      const [start, stop] = runs ? [runs[run], runs[run + 1]] : [0, keys];
      fillRow(data, row * keys, scaled, key, width, start, stop, offset);
    }
  }
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
