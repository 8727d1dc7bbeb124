// The numbers of one collection, or of two: read from chunks, asked for by head.

import { inlineLoader } from "../data/chunks.js";

const NO_TYPE = 255;

/** What the place of a run in a choice is called that means the second less the first. */
export const DIFFERENCE = "difference";

/** Reads what the grid needs; the details of heads are read when somebody looks at them. */
export async function openCollection(manifest) {
  const loader = inlineLoader(0);
  const heads = manifest.layers.flatMap((layer, place) => Array.from({ length: layer.heads }, (_, head) => ({ ...layer, place, head })));
  const firsts = [];
  manifest.layers.reduce((sum, layer, place) => ((firsts[place] = sum), sum + layer.heads), 0);
  const runs = await Promise.all(manifest.runs.map((run, place) => openRun(loader, run, place)));
  return new HeadNumbers(manifest, loader, heads, firsts, runs);
}

async function openRun(loader, run, place) {
  const names = ["mean", "error", "number", "examples", "types", "with_sink"];
  const arrays = await Promise.all(names.map((name) => loader.read(run[name])));
  return { ...run, place, ...Object.fromEntries(names.map((name, index) => [name, arrays[index]])) };
}

class HeadNumbers {
  constructor(manifest, loader, heads, firsts, runs) {
    this.manifest = manifest;
    this.loader = loader;
    this.heads = heads; // {site, layer, place, head}: `layer` as its path says, `place` from 0
    this.runs = runs;
    this.firsts = firsts; // the number of the first head of each layer
    this.layers = manifest.layers;
    this.quantities = manifest.quantities;
    this.typeNames = Object.keys(manifest.types);
    this.details = new Map();
    this.texts = new Map();
  }

  get isPair() {
    return this.runs.length > 1;
  }

  get hasTypes() {
    return this.runs.some((run) => run.types.some((type) => type !== NO_TYPE));
  }

  /** The number of a head by layer and head as they are counted on the page; -1 where there is none. */
  headAt(place, head) {
    const layer = this.layers[place];
    return layer && head >= 0 && head < layer.heads ? this.firsts[place] + head : -1;
  }

  quantity(key) {
    return this.quantities.findIndex((quantity) => quantity.key === key);
  }

  /** Mean, error, number and examples of a quantity of a head, in a run or in the difference of two. */
  estimate(quantity, head, run) {
    const at = quantity * this.heads.length + head;
    if (run !== DIFFERENCE) return { mean: this.runs[run].mean[at], error: this.runs[run].error[at], number: this.runs[run].number[at], examples: this.runs[run].examples[at] };
    const [first, second] = this.runs;
    return { mean: second.mean[at] - first.mean[at], error: Math.hypot(first.error[at], second.error[at]), number: NaN, examples: NaN };
  }

  /** Whether a difference is more than chance brings in any head; null where no error is known. */
  isClear(quantity, head) {
    const { mean, error } = this.estimate(quantity, head, DIFFERENCE);
    if (!Number.isFinite(mean) || !Number.isFinite(error)) return null;
    return Math.abs(mean) > this.manifest.clear * error;
  }

  /** The type of a head in one word, null where there is none. */
  type(head, run) {
    return this.typeNames[this.runs[run].types[head]] ?? null;
  }

  /** The type, and whether a sink was set aside to tell it. */
  typeLabel(head, run) {
    const type = this.type(head, run);
    return type && this.runs[run].with_sink[head] ? `${type}, with a sink` : type;
  }

  /** Whether a head has another type in the second run. */
  isChanged(head) {
    return this.isPair && this.type(head, 0) !== this.type(head, 1);
  }

  /** The details of the layer of a head in a run: chunks as arrays, with the place of the head in them. */
  async detail(head, run) {
    const { place, head: own } = this.heads[head];
    const key = `${run}/${place}`;
    if (!this.details.has(key)) this.details.set(key, this.readArrays(this.runs[run].sites[place]));
    return { ...(await this.details.get(key)), own };
  }

  /** The same structure with numbers in the place of chunks. */
  async readArrays(value) {
    if (value === null || typeof value !== "object") return value;
    if (typeof value.dtype === "string") return { shape: value.shape, data: await this.loader.read(value) };
    const entries = await Promise.all(Object.entries(value).map(async ([name, inner]) => [name, await this.readArrays(inner)]));
    return Array.isArray(value) ? entries.map(([, inner]) => inner) : Object.fromEntries(entries);
  }

  /** The documents that examples of a run are from. */
  documents(run) {
    if (!this.texts.has(run)) this.texts.set(run, this.readJson(this.runs[run].texts));
    return this.texts.get(run);
  }

  async readJson(chunk) {
    return JSON.parse(new TextDecoder().decode(await this.loader.read(chunk)));
  }
}

/** One row of an array whose first axis are heads; an array with one row for all of them has that one. */
export function rowOf({ shape, data }, head) {
  const size = shape.slice(1).reduce((product, length) => product * length, 1);
  const at = shape[0] === 1 ? 0 : head;
  return data.subarray(at * size, (at + 1) * size);
}
