// Colour scales computed in OKLab: lightness runs evenly from the ground of the page to the strongest weight,
// so equal steps of weight look equal and the order survives every kind of colour blindness.

const SHADES = 256;
const LOG_RANGE = 1e-4;

// [lightness, chroma, hue in degrees], weakest first.
const LIGHT_STOPS = [[0.985, 0.004, 250], [0.93, 0.035, 205], [0.82, 0.085, 205], [0.66, 0.125, 235], [0.5, 0.17, 265], [0.36, 0.165, 283], [0.23, 0.1, 290]];
const DARK_STOPS = [[0.235, 0.014, 265], [0.33, 0.085, 283], [0.45, 0.155, 275], [0.6, 0.145, 245], [0.74, 0.12, 200], [0.87, 0.12, 165], [0.975, 0.075, 110]];
const LIGHT_NEGATIVE = [[0.975, 0.003, 80], [0.88, 0.06, 65], [0.7, 0.14, 50], [0.52, 0.16, 38], [0.34, 0.11, 32]];
const LIGHT_POSITIVE = [[0.975, 0.003, 250], [0.88, 0.05, 235], [0.7, 0.11, 245], [0.5, 0.16, 262], [0.33, 0.13, 272]];
const DARK_NEGATIVE = [[0.25, 0.012, 60], [0.42, 0.09, 42], [0.6, 0.15, 48], [0.78, 0.14, 65], [0.95, 0.06, 90]];
const DARK_POSITIVE = [[0.25, 0.012, 265], [0.42, 0.12, 272], [0.6, 0.14, 250], [0.78, 0.1, 225], [0.95, 0.04, 205]];

const INKS = {
  light: { surface: "#ffffff", ground: "#f7f8fa", ink: "#16181d", muted: "#5b6270", line: "#e3e6eb", accent: "#3f51d8", highlight: "#d9480f" },
  dark: { surface: "#16181d", ground: "#0f1115", ink: "#eceef2", muted: "#a0a7b4", line: "#2a2e37", accent: "#9aa8ff", highlight: "#ffb454" },
};

const paletteCache = new Map();

// Hues far apart in both themes, and in lightness alike: those of several heads.
const HEAD_COLOURS = {
  light: ["#3f51d8", "#c2410c", "#0f766e", "#a21caf", "#854d0e"],
  dark: ["#9aa8ff", "#ffa45c", "#5eead4", "#f0a3ff", "#fde047"],
};

/** Which of the two themes "auto" means now. */
export function resolveTheme(theme) {
  if (theme === "light" || theme === "dark") return theme;
  return globalThis.matchMedia?.("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Colours of a theme: `lut` and `diverging` (256 × red, green, blue) and the inks of the page. */
export function palette(theme) {
  const name = resolveTheme(theme);
  if (!paletteCache.has(name)) paletteCache.set(name, buildPalette(name));
  return paletteCache.get(name);
}

function buildPalette(name) {
  const dark = name === "dark";
  const lut = rampOf(dark ? DARK_STOPS : LIGHT_STOPS, SHADES);
  const negative = rampOf(dark ? DARK_NEGATIVE : LIGHT_NEGATIVE, SHADES / 2);
  const positive = rampOf(dark ? DARK_POSITIVE : LIGHT_POSITIVE, SHADES / 2);
  const diverging = new Uint8Array(SHADES * 3);
  for (let index = 0; index < SHADES / 2; index += 1) {
    const mirrored = SHADES / 2 - 1 - index;
    diverging.set(negative.subarray(mirrored * 3, mirrored * 3 + 3), index * 3);
    diverging.set(positive.subarray(index * 3, index * 3 + 3), (SHADES / 2 + index) * 3);
  }
  return { theme: name, lut, diverging, heads: HEAD_COLOURS[name], ...INKS[name] };
}

function rampOf(stops, count) {
  const colours = new Uint8Array(count * 3);
  const first = stops[0][0];
  const range = stops[stops.length - 1][0] - first;
  for (let index = 0; index < count; index += 1) {
    const lightness = first + (range * index) / (count - 1);
    colours.set(redGreenBlue(colourAtLightness(stops, lightness)), index * 3);
  }
  return colours;
}

/** @returns {[number, number, number]} lightness, a, b */
function colourAtLightness(stops, lightness) {
  const rising = stops[stops.length - 1][0] > stops[0][0];
  let next = 1;
  while (next < stops.length - 1 && (rising ? stops[next][0] < lightness : stops[next][0] > lightness)) next += 1;
  const [before, after] = [okLab(stops[next - 1]), okLab(stops[next])];
  const share = (lightness - before[0]) / (after[0] - before[0]);
  const between = (axis) => before[axis] + (after[axis] - before[axis]) * share;
  return [between(0), between(1), between(2)];
}

function okLab([lightness, chroma, hue]) {
  const angle = (hue * Math.PI) / 180;
  return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
}

function redGreenBlue([lightness, a, b]) {
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short,
  ].map(gammaByte);
}

function gammaByte(linear) {
  const bounded = Math.min(1, Math.max(0, linear));
  const curved = bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055;
  return Math.round(curved * 255);
}

/** The share 0…1 of the colour scale at which a weight of at least zero stands. */
export function scaleShare(value, peak, mode) {
  if (!(value > 0) || !(peak > 0)) return 0;
  const share = Math.min(1, value / peak);
  if (mode !== "log") return share;
  return Math.max(0, 1 - Math.log(share) / Math.log(LOG_RANGE));
}

/** The weight that stands at a share of the colour scale: the inverse of `scaleShare`. */
export function weightAtShare(share, peak, mode) {
  return mode === "log" ? peak * LOG_RANGE ** (1 - share) : peak * share;
}

/** Index 0…255 into `lut`, or with `signed` into `diverging`, whose middle is zero. */
function shadeIndex(value, peak, mode, signed = false) {
  if (!signed) return Math.round(scaleShare(value, peak, mode) * (SHADES - 1));
  const half = Math.round(scaleShare(Math.abs(value), peak, mode) * (SHADES / 2 - 1));
  return value < 0 ? SHADES / 2 - 1 - half : SHADES / 2 + half;
}

/** The colour of a weight as a CSS text. */
export function weightColour(colours, value, peak, mode, signed = false) {
  const [red, green, blue] = weightBytes(colours, value, peak, mode, signed);
  return `rgb(${red} ${green} ${blue})`;
}

/** Black or white, whichever reads better on the colour of a weight (contrast at least 4.5). */
export function inkOnWeight(colours, value, peak, mode, signed = false) {
  const [red, green, blue] = weightBytes(colours, value, peak, mode, signed).map(linearByte);
  const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  return luminance > 0.179 ? "#000000" : "#ffffff";
}

function weightBytes(colours, value, peak, mode, signed) {
  const start = shadeIndex(value, peak, mode, signed) * 3;
  const table = signed ? colours.diverging : colours.lut;
  return [table[start], table[start + 1], table[start + 2]];
}

function linearByte(byte) {
  const curved = byte / 255;
  return curved <= 0.04045 ? curved / 12.92 : ((curved + 0.055) / 1.055) ** 2.4;
}

/** Paints weights into the pixels of an ImageData of the same number of cells. */
export function paintWeights(pixels, weights, peak, mode, signed, colours) {
  const packed = packedColours(signed ? colours.diverging : colours.lut);
  const target = new Uint32Array(pixels.data.buffer);
  if (mode !== "log" && !signed) {
    const factor = peak > 0 ? (SHADES - 1) / peak : 0;
    for (let index = 0; index < weights.length; index += 1) {
      const level = weights[index] * factor + 0.5;
      target[index] = packed[level >= SHADES ? SHADES - 1 : level > 0 ? level | 0 : 0];
    }
    return;
  }
  for (let index = 0; index < weights.length; index += 1) target[index] = packed[shadeIndex(weights[index], peak, mode, signed)];
}

const packedCache = new WeakMap();

function packedColours(table) {
  if (!packedCache.has(table)) {
    const packed = new Uint32Array(SHADES);
    const bytes = new Uint8ClampedArray(packed.buffer);
    for (let index = 0; index < SHADES; index += 1) bytes.set([table[index * 3], table[index * 3 + 1], table[index * 3 + 2], 255], index * 4);
    packedCache.set(table, packed);
  }
  return packedCache.get(table);
}
