// Maps of which a page holds the largest weights of each row: what is known of the others.

/** Numbers that are kept as codes on a scale of square roots. */
export function valuesOfCodes(codes, { unit, levels }) {
  return Float32Array.from(codes, (code) => valueOfCode(code, unit, levels));
}

function valueOfCode(code, unit, levels) {
  const share = code / levels;
  return share * Math.abs(share) * unit;
}

/** Calls back with each run of pairs that are not 0; `runs` has how many each row has, then their ends. */
export function eachRun(runs, queries, keys, call) {
  for (let row = 0, end = queries; row < queries; row += 1) {
    const count = runs ? runs[row] : 1;
    for (let i = 0; i < count; i += 1, end += 2) call(row, ...(runs ? [runs[end], runs[end + 1]] : [0, keys]));
  }
}

/**
 * A map of which the largest weights of each row are kept. Its data are colours: weights where they are kept, and
 * elsewhere the mean of the block, but no more than the least that is kept of the row.
 */
export async function partialMap(scene, form, size) {
  const [places, codes, runs, means, received] = await Promise.all([
    scene.loader.read(form.places),
    scene.loader.read(form.weights),
    form.runs ? scene.loader.read(form.runs) : null,
    scene.loader.read(form.means.weights),
    scene.loader.read(form.received.weights),
  ]);
  const known = new Largest(form, size, places, codes, runs, valuesOfCodes(means, form.means));
  return { ...size, data: known.colours(), known, received: valuesOfCodes(received, form.received) };
}

/** What is known of each weight: that it lies between two numbers, which are the same where it is kept. */
class Largest {
  constructor(form, { queries, keys }, places, codes, runs, means) {
    this.count = form.count;
    this.side = form.side;
    this.queries = queries;
    this.keys = keys;
    this.places = places;
    this.runs = runs;
    this.means = means;
    this.values = valuesOfCodes(codes, form);
    this.signed = form.signed;
    this.bounds = Float32Array.from({ length: queries }, (_, row) => this.bound(form, codes, row));
    this.starts = new Int32Array(queries + 1);
    if (runs) for (let row = 0; row < queries; row += 1) this.starts[row + 1] = this.starts[row] + 2 * runs[row];
  }

  /** What no weight of a row exceeds that is not kept. */
  bound(form, codes, row) {
    if (!this.count) return form.unit;
    const least = Math.abs(codes[(this.count - 1) * this.queries + row]);
    return least && valueOfCode(Math.min(least + 0.5, form.levels), form.unit, form.levels);
  }

  /** Fills the least and the most that the weights of a row may be. */
  row(query, low, high) {
    const bound = this.bounds[query];
    low.fill(0);
    high.fill(0);
    this.eachRunOf(query, (start, stop) => {
      high.fill(bound, start, stop);
      if (this.signed) low.fill(-bound, start, stop);
    });
    for (let rank = 0, at = query; rank < this.count; rank += 1, at += this.queries) {
      low[this.places[at]] = high[this.places[at]] = this.values[at];
    }
  }

  eachRunOf(query, call) {
    if (!this.runs) call(0, this.keys);
    else for (let end = this.starts[query]; end < this.starts[query + 1]; end += 2) call(this.runs[this.queries + end], this.runs[this.queries + end + 1]);
  }

  /** The least and the most that one weight may be. */
  pair(query, key) {
    for (let rank = 0, at = query; rank < this.count; rank += 1, at += this.queries) {
      if (this.places[at] === key) return [this.values[at], this.values[at]];
    }
    let isNothing = true;
    this.eachRunOf(query, (start, stop) => {
      if (key >= start && key < stop) isNothing = false;
    });
    const bound = isNothing ? 0 : this.bounds[query];
    return [this.signed ? -bound : 0, bound];
  }

  /** The mean of the block that a pair lies in. */
  mean(query, key) {
    const breadth = Math.ceil(this.keys / this.side);
    return { side: this.side, value: this.means[Math.floor(query / this.side) * breadth + Math.floor(key / this.side)] };
  }

  colours() {
    const { queries, keys, side, means } = this;
    const data = new Float32Array(queries * keys);
    const breadth = Math.ceil(keys / side);
    for (let row = 0; row < queries; row += 1) {
      const bound = this.bounds[row];
      const block = Math.floor(row / side) * breadth;
      this.eachRunOf(row, (start, stop) => {
        for (let key = start; key < stop; key += 1) data[row * keys + key] = Math.max(-bound, Math.min(bound, means[block + Math.floor(key / side)]));
      });
      for (let rank = 0, at = row; rank < this.count; rank += 1, at += queries) data[row * keys + this.places[at]] = this.values[at];
    }
    return data;
  }
}

/** What is known of the mean of several maps, some of which are kept in part. */
export function meanKnowledge(maps) {
  const [{ keys }, count] = [maps[0], maps.length];
  const [least, most] = [new Float32Array(keys), new Float32Array(keys)];
  const add = (target, values) => {
    for (let key = 0; key < keys; key += 1) target[key] += values[key] / count;
  };
  const rowOf = (map, query) => {
    if (map.known) return map.known.row(query, least, most);
    least.set(map.data.subarray(query * keys, (query + 1) * keys));
    return most.set(least);
  };
  const pairOf = (map, query, key) => map.known?.pair(query, key) ?? Array(2).fill(map.data[query * keys + key]);
  return {
    count: null,
    row(query, low, high) {
      for (const side of [low, high]) side.fill(0);
      for (const map of maps) {
        rowOf(map, query);
        add(low, least);
        add(high, most);
      }
    },
    pair(query, key) {
      const pairs = maps.map((map) => pairOf(map, query, key));
      return [0, 1].map((side) => pairs.reduce((sum, pair) => sum + pair[side], 0) / count);
    },
    mean: () => null,
  };
}
