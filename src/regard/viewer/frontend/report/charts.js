// Small charts of one head: how entropy is spread, where attention goes by distance, types by text.

import { make, makeSvg } from "../drawing/elements.js";
import { readableWeight } from "../data/numbers.js";
import { percent } from "./numbers.js";

const SIZE = { width: 400, height: 132, left: 40, right: 8, top: 8, bottom: 24 };
const LEAST_SHARE = 1e-6; // that is drawn
const PLOT = { width: SIZE.width - SIZE.left - SIZE.right, height: SIZE.height - SIZE.top - SIZE.bottom };

function chart(label, testId, ...children) {
  return makeSvg("svg", { class: "chart", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": label, "data-testid": testId }, ...children);
}

function text(x, y, words, anchor = "middle") {
  return makeSvg("text", { x, y, "text-anchor": anchor }, words);
}

const across = (share) => SIZE.left + share * PLOT.width;
const up = (share) => SIZE.top + (1 - share) * PLOT.height;

function axes(peak) {
  return [
    makeSvg("line", { class: "axis", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: up(0), y2: up(0) }),
    text(SIZE.left - 5, up(1) + 8, percent(peak), "end"),
    text(SIZE.left - 5, up(0), "0", "end"),
  ];
}

/** Counts in bins; `series` are {name, shares, quantiles}, the first filled, the second an outline. */
export function histogram(label, { low, width, at, error }, series, unit) {
  const ends = series.map(({ shares, quantiles }) => Math.max(lastUsed(shares), Math.ceil((quantiles.at(-1) - low) / width)));
  const count = Math.max(1, Math.min(series[0].shares.length, Math.max(...ends) + 1));
  const peak = Math.max(...series.flatMap(({ shares }) => [...shares]), 1e-9);
  const step = PLOT.width / count;
  const bars = [...series[0].shares.slice(0, count)].map((share, bin) =>
    makeSvg("rect", { class: "bar", x: across(0) + bin * step + 0.5, y: up(share / peak), width: Math.max(0.8, step - 1), height: up(0) - up(share / peak) }));
  const place = (value) => across(Math.min(1, (value - low) / (count * width)));
  const median = ({ quantiles }, number) => makeSvg("line", { class: `median median-${number}`, x1: place(quantiles[2]), x2: place(quantiles[2]), y1: up(1), y2: up(0) });
  const ticks = niceTicks(low, low + count * width).map((value) => text(place(value), SIZE.height - 8, readableWeight(value)));
  const outline = series[1] ? [makeSvg("path", { class: "outline", d: stepPath(series[1].shares.slice(0, count), peak, step) })] : [];
  const words = series.map(({ name, quantiles }) => `${name ? `${name}: ` : ""}median ${readableWeight(quantiles[2])}, ${percent(at[4] - at[0])} between ${readableWeight(quantiles[0])} and ${readableWeight(quantiles[4])}${unit}`);
  return make("figure", { class: "figure" }, chart(`${label}: ${words.join("; ")}`, "chart-bins", ...axes(peak), ...bars, ...outline, ...series.map(median), ...ticks),
    make("figcaption", {}, `${words.join("; ")}. Off by no more than ${readableWeight(error)}.`));
}

function lastUsed(shares) {
  let last = shares.length - 1;
  while (last > 0 && shares[last] === 0) last -= 1;
  return last;
}

function stepPath(shares, peak, step) {
  const corners = [...shares].map((share, bin) => `L${across(0) + bin * step} ${up(share / peak)}H${across(0) + (bin + 1) * step}`);
  return `M${across(0)} ${up(0)}${corners.join("")}V${up(0)}`;
}

function niceTicks(low, high) {
  const rough = (high - low) / 5;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((each) => each >= rough);
  const ticks = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1000; value += step) ticks.push(Number(value.toFixed(9)));
  return ticks;
}

/** Attention by distance, beside what even attention would give; `series` are {name, share, even, offset, width}. */
export function distanceProfile(series) {
  const places = series.map(({ offset, width, share, even }) => offset.map((at, index) => ({ at, share: share[index] / width[index], even: even[index] / width[index] })));
  const used = places.flat().filter(({ share, even }) => share > LEAST_SHARE || even > LEAST_SHARE);
  const [first, last] = [Math.min(...used.map(({ at }) => at), 0), Math.max(...used.map(({ at }) => at), 0)];
  const [low, high] = [bent(first), bent(last)];
  const peak = Math.max(...used.map(({ share, even }) => Math.max(share, even)), 1e-9);
  const x = (at) => across(high > low ? (bent(at) - low) / (high - low) : 0.5);
  const line = (points, value) => points.filter(({ at }) => at >= first && at <= last).map((point, index) => `${index ? "L" : "M"}${x(point.at).toFixed(1)} ${up(value(point) / peak).toFixed(1)}`).join("");
  const area = `${line(places[0], ({ share }) => share)}L${x(last)} ${up(0)}L${x(first)} ${up(0)}Z`;
  const ticks = [-1024, -256, -64, -16, -4, -1, 0, 1, 4, 16, 64, 256, 1024].filter((at) => at >= first && at <= last).map((at) => text(x(at), SIZE.height - 8, at > 0 ? `+${at}` : String(at).replace("-", "−")));
  const own = places.map((points) => points.reduce((best, point) => (point.share > best.share ? point : best)));
  const words = own.map(({ at, share }, number) => `${series[number].name ? `${series[number].name}: ` : ""}most at ${distanceName(at)}, ${percent(share)}`).join("; ");
  const second = places[1] ? [makeSvg("path", { class: "outline", d: line(places[1], ({ share }) => share) })] : [];
  return make("figure", { class: "figure" },
    chart(`Attention by distance: ${words}`, "chart-profile", ...axes(peak), makeSvg("path", { class: "area", d: area }), makeSvg("path", { class: "area-line", d: line(places[0], ({ share }) => share) }),
      makeSvg("path", { class: "even", d: line(places[0], ({ even }) => even) }), ...second, ...ticks),
    make("figcaption", {}, `${words}. Share of all attention at each distance; dashed: even attention to all tokens in sight.`));
}

/** Distances near zero apart, far ones closer together. */
function bent(at) {
  return Math.sign(at) * Math.log2(1 + Math.abs(at));
}

function distanceName(at) {
  if (Math.abs(at) < 0.5) return "the token itself";
  const size = Math.round(Math.abs(at));
  return `${size} ${size === 1 ? "token" : "tokens"} ${at < 0 ? "back" : "ahead"}`;
}

/** In how many texts a head is of which type; `series` are {name, shares}. */
export function typeShares(names, signs, series) {
  const shown = names.map((name, number) => ({ name, number, most: Math.max(...series.map(({ shares }) => shares[number])) }))
    .filter(({ most }) => most > 0).sort((one, other) => series[0].shares[other.number] - series[0].shares[one.number]);
  const rows = shown.map(({ name, number }) => make("tr", {}, make("th", { scope: "row" }, make("span", { class: "type-sign", "data-type": name, "aria-hidden": "true" }, signs[name]), name),
    ...series.flatMap(({ shares }, place) => [make("td", { class: "number" }, percent(shares[number])), make("td", { class: "share-cell" }, bar(shares[number], place))])));
  const head = series.length > 1 ? [make("thead", {}, make("tr", {}, make("th", {}, ""), ...series.map(({ name }) => make("th", { scope: "col", colspan: "2" }, name))))] : [];
  return make("table", { class: "type-shares", "data-testid": "type-shares" }, make("caption", { class: "unseen" }, "Share of texts in which the head is of each type"), ...head, make("tbody", {}, ...rows));
}

function bar(share, place) {
  const element = make("span", { class: `share-bar share-bar-${place}` });
  element.style.width = `${100 * share}%`;
  return element;
}
