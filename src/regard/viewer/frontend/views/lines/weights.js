// The weights of one token at a time, as they are asked for.

import { NEAR } from "../../data/numbers.js";

const MOST_CUT = 256; // rows and columns that stay in memory
const LINE_ENDS = { left: "row", right: "column" };

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
    if (this.frame.cut && this.cache.size > MOST_CUT) this.cache.clear();
    if (!this.cache.has(key)) this.cache.set(key, this.frame.cut ? this.frame.cut(LINE_ENDS[side], token) : this.ask(side, token, key));
    return this.cache.get(key);
  }

  /** The weights of a token if they are there. */
  cached(side, token) {
    return this.cache.get(`${side}${token}`) ?? null;
  }

  /** The weights of a token that none which is not known may exceed: the strongest are among them, if any. */
  certain(side, token) {
    const weights = this.of(side, token);
    if (!weights || !this.frame.partial) return weights;
    const highest = this.frame.highest(LINE_ENDS[side], token);
    return weights.map((weight) => (Math.abs(weight) + NEAR < highest ? NaN : weight));
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

/** A weight with a set number of digits after the point; what is too small for them says so, what is not known "–". */
export function weightText(weight, decimals) {
  if (Number.isNaN(weight)) return "–";
  if (weight === 0 || !Number.isFinite(weight)) return String(weight);
  const unit = 10 ** -decimals;
  return Math.abs(weight) < unit / 2 ? `<${unit.toFixed(decimals)}` : weight.toFixed(decimals);
}
