// Numbers with their errors, as text.

import { readableWeight } from "../data/numbers.js";

/** A mean with the digits that its error leaves, and the error: "0.9231 ± 0.0042". */
export function withError(estimate, signed = false) {
  const { mean, error } = estimate;
  const sign = signed && mean > 0 ? "+" : "";
  if (!Number.isFinite(mean) || !Number.isFinite(error)) return sign + withoutError(estimate);
  return `${sign}${withoutError(estimate)} ± ${error === 0 ? "0" : error.toFixed(placesOf(error))}`;
}

/** A mean with the digits that its error leaves. */
export function withoutError({ mean, error }) {
  if (!Number.isFinite(mean)) return "–";
  const words = Number.isFinite(error) && error > 0 ? mean.toFixed(placesOf(error)) : readableWeight(mean);
  return words.replace("-", "−");
}

function placesOf(error) {
  return Math.min(7, Math.max(0, 1 - Math.floor(Math.log10(error))));
}

/** A number in a small cell, with as many digits as the largest one beside it needs. */
export function briefNumber(value, peak = 1) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  const places = size >= 9.95 ? 0 : size >= 0.995 ? 1 : Math.min(4, Math.max(2, 1 - Math.floor(Math.log10(peak))));
  const digits = size.toFixed(places).replace(/^0\./, ".");
  if (Number(digits) === 0) return "0";
  return (value < 0 ? "−" : "") + digits;
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = 100 * share;
  if (value > 0 && value < 0.05) return "< 0.1 %";
  return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
}

export function counted(count, name) {
  return `${count.toLocaleString("en-GB")} ${name}${count === 1 ? "" : "s"}`;
}
