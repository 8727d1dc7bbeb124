// The weights of one token at a time, as they are asked for.

/** Rows (side "left") and columns ("right") of a frame; `arrived()` and `failed(problem)` tell of those that come later. */
export class FrameWeights {
  constructor(frame, arrived, failed) {
    this.frame = frame;
    this.arrived = arrived;
    this.failed = failed;
    this.cache = new Map();
  }

  /** The weights of a token; null while they are on their way. */
  of(side, token) {
    const key = `${side}${token}`;
    if (!this.cache.has(key)) this.cache.set(key, this.frame.whole ? this.cut(side, token) : this.ask(side, token, key));
    return this.cache.get(key);
  }

  /** The weights of a token if they are there. */
  cached(side, token) {
    return this.cache.get(`${side}${token}`) ?? null;
  }

  cut(side, token) {
    const { whole, rows, columns } = this.frame;
    const breadth = columns.labels.length;
    if (side === "left") return whole.subarray(token * breadth, (token + 1) * breadth);
    return Float32Array.from(rows.labels, (_, row) => whole[row * breadth + token]);
  }

  ask(side, token, key) {
    const request = side === "left" ? this.frame.row(token) : this.frame.column(token);
    request.then(
      (weights) => {
        this.cache.set(key, weights);
        this.arrived();
      },
      (problem) => {
        this.cache.delete(key); // may be asked for again
        this.failed(problem);
      },
    );
    return null;
  }
}

/** A weight with a set number of digits after the point; what is too small for them says so. */
export function weightText(weight, decimals) {
  if (weight === 0 || !Number.isFinite(weight)) return String(weight);
  const unit = 10 ** -decimals;
  return Math.abs(weight) < unit / 2 ? `<${unit.toFixed(decimals)}` : weight.toFixed(decimals);
}
