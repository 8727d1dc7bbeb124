// A scene that grows while a model generates: rows are kept as they come, maps are made when asked.

import { bytesOfBase64, floatsOfHalves } from "../data/chunks.js";
import { openScene } from "../data/scene.js";
import { combinedMaps, localLoader, localMap } from "./maps.js";

const NOTE = "While the model generates, weights are 16-bit numbers: within 0.05 % of the exact ones, or 0.00000003 where they are below 0.00006.";

/** Takes the events of a generation; `scene()` is what there is so far. */
export class Growth {
  constructor(title) {
    this.title = title;
    this.tokens = [];
    this.special = [];
    this.sites = [];
    this.chosen = [];
    this.likely = []; // {token, likely} of each step
    this.prompt = 0;
  }

  take(event) {
    if (event.event === "begin") this.begin(event);
    else if (event.event === "sites") this.sites = event.sites.map((site) => ({ ...site, blocks: [], peaks: new Array(site.heads).fill(0) }));
    else if (event.event === "prompt") this.addBlock(this.sites[event.site], event.rows, event.shape[1], event.shape[2]);
    else if (event.event === "step") this.step(event);
  }

  begin({ tokens, special }) {
    this.tokens = [...tokens];
    this.special = [...special];
    this.prompt = tokens.length;
  }

  /** A step brings the row of the token that was fed, and the token that it chose. */
  step({ rows, keys, token, likely }) {
    if (rows) {
      this.tokens.push(this.chosen.at(-1));
      this.special.push(false);
      rows.forEach((text, site) => {
        this.check(this.sites[site], keys[site]);
        this.addBlock(this.sites[site], text, 1, keys[site]);
      });
    }
    this.chosen.push(token);
    this.likely.push({ token, likely });
  }

  /** A cache that forgets has fewer keys than tokens: which ones, nobody says. */
  check(site, keys) {
    const count = this.tokens.length;
    if (keys !== count) throw new Error(`${site.name} attended over ${keys} keys, expected the ${count} tokens so far: the map cannot grow.`);
  }

  addBlock(site, text, queries, keys) {
    const halves = new Uint16Array(bytesOfBase64(text).buffer);
    site.blocks.push({ halves, queries, keys });
    const size = queries * keys;
    for (let head = 0; head < site.heads; head += 1) {
      const weights = floatsOfHalves(halves.subarray(head * size, (head + 1) * size));
      for (const weight of weights) if (weight > site.peaks[head]) site.peaks[head] = weight;
    }
  }

  /** The scene of all rows so far. */
  scene() {
    const count = this.tokens.length;
    const manifest = {
      id: null,
      title: this.title,
      sequences: [{ name: null, tokens: [...this.tokens], words: null, special: [...this.special] }],
      sites: this.sites.map((site, number) => this.site(site, number, count)),
      parts: [{ name: "self", label: "self-attention", sites: this.sites.map((_, number) => number), maps: combinedMaps(count, count, () => this.maps(count), NOTE) }],
      steps: { prompt: this.prompt, sequence: 0 },
      image: null,
      start: "",
      note: NOTE,
    };
    return openScene(manifest, localLoader);
  }

  *maps(count) {
    for (const site of this.sites) for (let head = 0; head < site.heads; head += 1) yield denseMap(site, head, count);
  }

  site(site, number, count) {
    return {
      name: site.name,
      layer: number,
      attends: "self",
      heads: site.heads,
      queries: count,
      keys: count,
      query_sequence: 0,
      key_sequence: 0,
      kind: "distribution",
      types: null,
      peak: [...site.peaks],
      maps: site.peaks.map((_, head) => ({ kind: "dense", exact: false, note: NOTE, weights: localMap(count, count, () => denseMap(site, head, count)) })),
      thumbnails: null,
    };
  }
}

/** The first rows and columns of one head, row by row. */
function denseMap(site, head, count) {
  const data = new Float32Array(count * count);
  let row = 0;
  for (const { halves, queries, keys } of site.blocks) {
    const start = head * queries * keys;
    for (let query = 0; query < queries && row < count; query += 1, row += 1) {
      const weights = floatsOfHalves(halves.subarray(start + query * keys, start + query * keys + Math.min(keys, count)));
      data.set(weights, row * count);
    }
  }
  return data;
}
