// The picture of one head on the map: as it is stored, or of the words and tokens that are shown.

import { frameOf, tileShape } from "../../data/frame.js";
import { isNormed } from "../../data/norms.js";
import { MOST_FOLLOWED, thumbnail } from "../../data/scene.js";

const MOST_EXACT = 64; // positions of which a thumbnail shows each pair

/** What the picture of a head depends on. */
export function pictureKey(scene, state) {
  return JSON.stringify([state.unit, state.special, state.colour, scene.steps ? state.step : null, state.measure]);
}

/** Weights and their largest, {data, height, width, peak, signed}; stored ones have sizes alone. */
export async function headPicture(scene, state, layer, head) {
  const number = scene.parts[state.part].sites[layer];
  const site = scene.sites[number];
  if (!isFollowed(scene, state, site)) return { ...(await thumbnail(scene, number, head)), peak: 255, signed: false };
  const frame = await headFrame(scene, state, layer, head);
  const level = frame.levels - 1;
  const data = await frame.tile(level, 0, 0);
  const [height, width] = tileShape(frame, level, 0, 0);
  return { data, height, width, peak: data.reduce((peak, weight) => Math.max(peak, Math.abs(weight)), 0), signed: frame.signed };
}

/** The frame of one head, as the map shows it. */
export function headFrame(scene, state, layer, head) {
  return frameOf(scene, { ...state, layer, head, mode: "head" });
}

/** The state that the picture of a head shows: a stored one has all tokens. */
export function pictureState(scene, state, site) {
  return isFollowed(scene, state, site) ? state : { ...state, unit: "pieces", special: "shown", step: null };
}

function isFollowed(scene, state, site) {
  const longest = Math.max(site.queries, site.keys);
  if (isNormed(scene, state)) return true;
  const isPlain = state.unit === "pieces" && state.special === "shown" && !(scene.steps && state.step !== null);
  if (isPlain) return state.colour === "log" && longest <= MOST_EXACT;
  return longest <= MOST_FOLLOWED;
}
