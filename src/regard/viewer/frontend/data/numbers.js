// Weights as text: short for reading, whole for telling two of them apart.

/** Within which a weight is told. */
export const NEAR = 1e-3;

/** What the numbers of a frame are. */
export const MEASURES = { weights: "weight", shares: "share without special tokens", norms: "weight × length of the value" };

/** A weight as people read it: three significant digits, no exponent above one in a hundred thousand. */
export function readableWeight(value) {
  if (Number.isNaN(value)) return "not stored";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size < 1e-5) return value.toExponential(1);
  if (size >= 1000) return value.toFixed(0);
  return String(Number(value.toPrecision(3)));
}

/** The fewest digits that are read back as the same 32-bit number: six are always kept by one, nine are always enough. */
export function shortestFloat(value) {
  const float = Math.fround(value);
  for (let digits = 6; digits < 9; digits += 1) {
    const rounded = Number(float.toPrecision(digits));
    if (Math.fround(rounded) === float) return String(rounded);
  }
  return String(Number(float.toPrecision(9)));
}

/**
 * A weight with every digit that a 32-bit number has; "≈" says that the page does not hold it exactly. One that it does
 * not hold lies between `low` and `high`.
 */
export function markedWeight({ value, exact, low = value, high = value }) {
  if (Number.isNaN(value)) return `not stored${low < high ? `: ${boundsText(low, high)}` : ""}`;
  return exact ? shortestFloat(value) : `≈ ${shortestFloat(value)}`;
}

/** A number of a frame and, where it is not the weight itself, what it is. */
export function measuredWeight({ measure }, weight) {
  return measure === MEASURES.weights ? markedWeight(weight) : `${markedWeight(weight)} · ${measure}`;
}

/** What a weight may be that is not known. */
function boundsText(low, high) {
  if (low > 0) return `from ${flooredWeight(low)} to ${raisedWeight(high)}`;
  return low < 0 ? `at most ±${raisedWeight(high)}` : `at most ${raisedWeight(high)}`;
}

const roundedBy = (round) => (value) => {
  const unit = 10 ** (Math.floor(Math.log10(value)) - 1);
  return readableWeight(round(value / unit) * unit);
};
const raisedWeight = roundedBy(Math.ceil);
const flooredWeight = roundedBy(Math.floor);
