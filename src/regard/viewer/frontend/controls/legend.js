// The colour scale with its numbers, and the line that says what is shown.

import { dividesRows } from "../data/frame.js";
import { isNormed } from "../data/norms.js";
import { MEASURES, readableWeight } from "../data/numbers.js";
import { layerName, layersName } from "../data/scene.js";
import { weightAtShare, weightColour } from "../drawing/colour.js";
import { make } from "../drawing/elements.js";

const MODE_PHRASES = { head: "head", mean: "mean of heads", max: "largest of heads", rollout: "rollout", relevance: "relevance" };
const BAR = { width: 160, height: 1 };

/** The legend: `show(peak, signed, colour, colours, labels, isCut)`, and `current()` for pictures. */
export function createLegend(host) {
  const bar = make("canvas", { class: "legend-bar", width: BAR.width, height: BAR.height, "aria-hidden": "true" });
  const numbers = make("div", { class: "legend-numbers" });
  const element = make("div", { class: "legend", role: "img", "aria-label": "Colour scale", "data-testid": "legend" }, bar, numbers);
  host.append(element);
  let scale = null;
  return {
    current: () => scale,
    show(peak, signed, colour, colours, labels = null, isCut = false) {
      const surface = bar.getContext("2d");
      const stops = [];
      for (let x = 0; x < BAR.width; x += 1) {
        const share = x / (BAR.width - 1);
        surface.fillStyle = weightColour(colours, weightOnBar(share, peak || 1, colour, signed), peak || 1, colour, signed);
        surface.fillRect(x, 0, 1, BAR.height);
        if (x % 10 === 0 || x === BAR.width - 1) stops.push(surface.fillStyle);
      }
      const texts = labels ?? (signed ? [-peak, 0, peak].map(readableWeight) : [0, 0.5, 1].map((share) => numberOnBar(share, peak, colour, isCut)));
      scale = { stops, texts };
      numbers.replaceChildren(...texts.map((text) => make("span", {}, text)));
      element.setAttribute("aria-label", `Colour scale from ${texts[0]} to ${texts[2]}, ${colour === "log" ? "logarithmic" : "linear"}`);
    },
  };
}

function numberOnBar(share, peak, colour, isCut) {
  const value = weightAtShare(share, peak, colour);
  if (share === 1 && isCut) return `≥ ${readableWeight(value)}`;
  return share === 0 && colour === "log" ? `≤ ${readableWeight(value)}` : readableWeight(value);
}

function weightOnBar(share, peak, colour, signed) {
  if (!signed) return weightAtShare(share, peak, colour);
  const side = Math.abs(2 * share - 1);
  return Math.sign(2 * share - 1) * weightAtShare(side, peak, colour);
}

/** What is shown, in one line. */
export function statusText(scene, state, frame) {
  const part = scene.parts[state.part];
  if (state.view === "map") return mapStatus(scene, part, state);
  const words = [];
  if (scene.parts.length > 1) words.push(part.label);
  const isWhole = state.layer === "all";
  words.push(isWhole ? `all ${layersName(scene, part)}s` : layerName(scene, state.part, state.layer).toLowerCase());
  if (state.mode !== "head") words.push(MODE_PHRASES[state.mode]);
  else words.push(`head ${state.head}`, ...headTypes(scene, part, state));
  if (!frame) return words.join(" · ");
  words.push(`${frame.rows.labels.length} × ${frame.columns.labels.length}${state.unit === "words" ? " words" : ""}`);
  if (frame.isRenormalised) words.push("rows renormalised without special tokens");
  if (frame.largest !== null) words.push(`largest ${frame.measure} ${readableWeight(frame.largest)}`);
  if (frame.note) words.push(frame.note.replace(/\.$/, "").replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase()));
  return words.join(" · ");
}

function headTypes(scene, part, state) {
  const type = scene.sites[part.sites[state.layer]]?.types?.[state.head];
  return type ? [type] : [];
}

function mapStatus(scene, part, state) {
  const normed = isNormed(scene, state);
  const renormalised = !normed && dividesRows(scene, state, scene.sites[part.sites[0]]);
  const measure = normed ? MEASURES.norms : renormalised ? MEASURES.shares : MEASURES.weights;
  const notes = [...(renormalised ? ["rows renormalised without special tokens"] : []), ...(state.colour === "log" ? ["logarithmic colours"] : [])];
  const heads = part.sites.reduce((sum, number) => sum + scene.sites[number].heads, 0);
  const counted = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
  return `${part.label} · ${counted(part.sites.length, layersName(scene, part))} · ${counted(heads, "head")} · ${["each coloured from 0 to its own largest " + measure, ...notes].join(" · ")}`;
}
