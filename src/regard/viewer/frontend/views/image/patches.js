// Where tokens lie on the picture, and the layer of colour over it.

import { scaleShare } from "../../drawing/colour.js";

/**
 * Which side of the frame lies over the picture and which one chooses, whether both are on it, and the grid of patches.
 * Null when neither queries nor keys of this site are patches of the picture.
 */
export function pictureSides(scene, state) {
  const part = scene.parts[state.part];
  const site = scene.sites[part.sites[state.layer === "all" ? 0 : state.layer]];
  const [query, key] = [gridOf(scene, site.query_sequence), gridOf(scene, site.key_sequence)];
  if (!query && !key) return null;
  const isOnPicture = Boolean(query && key && query.rows === key.rows && query.columns === key.columns);
  const chooses = isOnPicture ? state.direction : key ? "from" : "to";
  return { direction: chooses, isOnPicture, grid: key ?? query };
}

// A sequence may know its own grid. The patches may be a sequence of each side of a model, of the same tokens.
function gridOf(scene, sequence) {
  const { image } = scene;
  const own = image.grids?.find((grid) => grid.sequence === sequence);
  if (own) return own;
  const patches = scene.sequences[image.sequence].tokens;
  const { tokens } = scene.sequences[sequence];
  const isPatches = sequence === image.sequence || (tokens.length === patches.length && tokens.every((token, place) => token === patches[place]));
  return isPatches ? image : null;
}

/** The token of each patch (−1 for none), and the tokens that lie nowhere on the picture. */
export function patchTokens(image, axis) {
  const count = image.rows * image.columns;
  const tokens = new Int32Array(count).fill(-1);
  const elsewhere = [];
  axis.members.forEach((members, token) => {
    const patches = members.map((position) => position - image.first).filter((patch) => patch >= 0 && patch < count);
    for (const patch of patches) tokens[patch] = token;
    if (!patches.length) elsewhere.push(token);
  });
  return { tokens, elsewhere };
}

export function patchWeights(tokens, weights) {
  return Float32Array.from(tokens, (token) => (token < 0 ? 0 : weights[token]));
}

/** The mean of several rows of weights. */
export function meanWeights(rows) {
  if (rows.length === 1) return rows[0];
  return rows[0].map((_, place) => rows.reduce((sum, row) => sum + row[place], 0) / rows.length);
}

/** The colours of the patches, one pixel each. Strong patches are clearer, so that what is looked at stays visible. */
export function patchPixels(values, image, colours, scale) {
  const pixels = new ImageData(image.columns, image.rows);
  const table = scale.isSigned ? colours.diverging : colours.lut;
  values.forEach((value, patch) => {
    const share = scaleShare(Math.abs(value) || 0, scale.peak, scale.mode);
    const index = scale.isSigned ? Math.round(127.5 + (value < 0 ? -127.5 : 127.5) * share) : Math.round(255 * share);
    pixels.data.set([table[3 * index], table[3 * index + 1], table[3 * index + 2], 255 * scale.opacity * (1 - 0.35 * share)], 4 * patch);
  });
  return pixels;
}

export function paintPatches(surface, pixels, width, height, isSmooth) {
  const small = document.createElement("canvas");
  small.width = pixels.width;
  small.height = pixels.height;
  small.getContext("2d").putImageData(pixels, 0, 0);
  surface.clearRect(0, 0, width, height);
  surface.imageSmoothingEnabled = isSmooth;
  surface.imageSmoothingQuality = "high";
  surface.drawImage(small, 0, 0, width, height);
}

export function outlinePatch(surface, box, colour, width) {
  surface.lineWidth = width + 2;
  surface.strokeStyle = "rgba(0,0,0,0.65)";
  surface.strokeRect(box.x, box.y, box.width, box.height);
  surface.lineWidth = width;
  surface.strokeStyle = colour;
  surface.strokeRect(box.x, box.y, box.width, box.height);
}

export function crossThrough(surface, box, width, height) {
  surface.fillStyle = "rgba(255,255,255,0.55)";
  const [x, y] = [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
  surface.fillRect(0, y, box.x, 1);
  surface.fillRect(box.x + box.width, y, width, 1);
  surface.fillRect(x, 0, 1, box.y);
  surface.fillRect(x, box.y + box.height, 1, height);
}

export function patchBox(image, patch, width, height) {
  const [across, down] = [width / image.columns, height / image.rows];
  return { x: (patch % image.columns) * across, y: Math.floor(patch / image.columns) * down, width: across, height: down };
}

export function patchName(image, patch) {
  return `Patch row ${Math.floor(patch / image.columns) + 1}, column ${(patch % image.columns) + 1}`;
}
