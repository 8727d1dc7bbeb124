// A scene whose texts may change from one step to the next, as a translation's do: rows that stay are kept.

import { bytesOfBase64, floatsOfHalves } from "../data/chunks.js";
import { openScene } from "../data/scene.js";
import { combinedMaps, localLoader, localMap } from "./maps.js";

/** Takes drafts; `scene()` is the last one. */
export class Drafts {
  constructor(title) {
    this.title = title;
    this.manifest = null;
    this.maps = []; // of each site, of each head: weights row by row
  }

  take({ scene, known, rows }) {
    const previousMaps = this.maps;
    this.manifest = scene;
    this.maps = scene.sites.map((site, number) => {
      const halves = new Uint16Array(bytesOfBase64(rows[number]).buffer);
      const [keptSize, size] = [known * site.keys, (site.queries - known) * site.keys];
      return Array.from({ length: site.heads }, (_, head) => {
        const map = new Float32Array(site.queries * site.keys);
        if (keptSize) map.set(previousMaps[number][head].subarray(0, keptSize));
        map.set(floatsOfHalves(halves.subarray(head * size, (head + 1) * size)), keptSize);
        return map;
      });
    });
  }

  scene() {
    const { manifest, maps } = this;
    const sites = manifest.sites.map((site, number) => this.site(site, maps[number]));
    const parts = manifest.parts.map((part) => {
      const { queries, keys } = manifest.sites[part.sites[0]];
      return { ...part, maps: combinedMaps(queries, keys, () => part.sites.flatMap((number) => maps[number]), manifest.note) };
    });
    return openScene({ ...manifest, title: this.title, sites, parts }, localLoader);
  }

  site(site, maps) {
    const { manifest } = this;
    const peaks = maps.map((map) => map.reduce((peak, weight) => Math.max(peak, Math.abs(weight)), 0));
    return {
      ...site,
      types: null,
      peak: peaks,
      maps: maps.map((map) => ({ kind: "dense", exact: false, note: manifest.note, weights: localMap(site.queries, site.keys, () => map) })),
      thumbnails: null,
    };
  }
}
