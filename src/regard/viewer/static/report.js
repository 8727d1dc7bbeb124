"use strict";
(() => {
  // drawing/elements.js
  var SVG_NAMESPACE = "http://www.w3.org/2000/svg";
  var ICON_PATHS = {
    auto: "M8 1.75a6.25 6.25 0 1 0 0 12.5a6.25 6.25 0 1 0 0-12.5M8 1.75v12.5M8 4.5l4.9-.6M8 8h6.2M8 11.5l4.9.6",
    light: "M8 5a3 3 0 1 0 0 6a3 3 0 1 0 0-6M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8 13 13M3 13l1.2-1.2M11.8 4.2 13 3",
    dark: "M13.6 9.9A6 6 0 0 1 6.1 2.4a6 6 0 1 0 7.5 7.5z",
    link: "M6.6 9.4l2.8-2.8M7.2 4.6l1.5-1.5a2.9 2.9 0 0 1 4.2 4.2l-1.5 1.5M8.8 11.4l-1.5 1.5a2.9 2.9 0 0 1-4.2-4.2l1.5-1.5",
    help: "M8 1.75a6.25 6.25 0 1 0 0 12.5a6.25 6.25 0 1 0 0-12.5M6.2 6.3a1.9 1.9 0 1 1 2.6 1.8c-.6.25-.8.6-.8 1.2M8 11.4v.1",
    more: "M2 4.5h12M2 8h12M2 11.5h12M5 3v3M10.5 6.5v3M6.5 10v3",
    download: "M8 2v8M4.8 7 8 10.2 11.2 7M2.5 13.5h11",
    back: "M13 8H3.5M7.5 3.5 3 8l4.5 4.5",
    plus: "M8 3.5v9M3.5 8h9",
    minus: "M3.5 8h9",
    fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
    hide: "M1.5 8C3 5.2 5.3 3.8 8 3.8s5 1.4 6.5 4.2C13 10.8 10.7 12.2 8 12.2S3 10.8 1.5 8ZM6 8a2 2 0 1 0 4 0a2 2 0 1 0-4 0M2.5 13.5l11-11",
    play: "M4.5 2.8v10.4l8.6-5.2z",
    pause: "M5 3v10M11 3v10",
    next: "M3.5 3v10l6.5-5zM12.5 3v10"
  };
  function make(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === void 0 || value === false) continue;
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    node.append(...children);
    return node;
  }
  function makeSvg(tag, attributes = {}, ...children) {
    const node = document.createElementNS(SVG_NAMESPACE, tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== void 0) node.setAttribute(name, String(value));
    node.append(...children);
    return node;
  }
  function icon(name) {
    return makeSvg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, makeSvg("path", { d: ICON_PATHS[name] }));
  }

  // controls/fields.js
  function createSelect(testId, label, onChange) {
    const select = make("select", { "data-testid": testId, "aria-label": label, title: label, onchange: () => onChange(select.value) });
    let filledKey = "";
    return {
      element: make("div", { class: "field" }, select),
      select,
      fill(options, value) {
        const key = JSON.stringify(options);
        if (key !== filledKey) select.replaceChildren(...options.map(optionOf));
        filledKey = key;
        select.value = String(value);
      },
      show(isShown) {
        this.element.hidden = !isShown;
      },
      setProblem(problem) {
        select.disabled = problem !== null;
        select.title = problem ?? label;
      }
    };
  }
  function optionOf({ value, text: text2, problem }) {
    return make("option", { value, disabled: Boolean(problem), title: problem }, problem ? `${text2} (${problem})` : text2);
  }
  function createToggle(testId, label, [first, second], onFlip, prefix = "") {
    const parts = [first, second].map((text2) => make("span", { class: "segment" }, text2));
    const prefixes = prefix ? [make("span", { class: "toggle-prefix" }, prefix)] : [];
    const button = make("button", {
      type: "button",
      class: "toggle",
      role: "switch",
      "aria-label": label,
      "data-testid": testId,
      onclick: onFlip
    }, ...prefixes, make("span", { class: "segments" }, ...parts));
    return {
      element: button,
      set(isSecond, problem = null) {
        button.setAttribute("aria-checked", String(isSecond));
        parts[0].toggleAttribute("data-on", !isSecond);
        parts[1].toggleAttribute("data-on", isSecond);
        button.toggleAttribute("disabled", problem !== null);
        button.title = problem ?? label;
      }
    };
  }
  function createIconButton(testId, name, label, onPress) {
    return make("button", {
      type: "button",
      class: "icon-button",
      "data-testid": testId,
      "aria-label": label,
      title: label,
      onclick: onPress
    }, icon(name));
  }

  // drawing/colour.js
  var SHADES = 256;
  var LOG_RANGE = 1e-4;
  var LIGHT_STOPS = [[0.985, 4e-3, 250], [0.93, 0.035, 205], [0.82, 0.085, 205], [0.66, 0.125, 235], [0.5, 0.17, 265], [0.36, 0.165, 283], [0.23, 0.1, 290]];
  var DARK_STOPS = [[0.235, 0.014, 265], [0.33, 0.085, 283], [0.45, 0.155, 275], [0.6, 0.145, 245], [0.74, 0.12, 200], [0.87, 0.12, 165], [0.975, 0.075, 110]];
  var LIGHT_NEGATIVE = [[0.975, 3e-3, 80], [0.88, 0.06, 65], [0.7, 0.14, 50], [0.52, 0.16, 38], [0.34, 0.11, 32]];
  var LIGHT_POSITIVE = [[0.975, 3e-3, 250], [0.88, 0.05, 235], [0.7, 0.11, 245], [0.5, 0.16, 262], [0.33, 0.13, 272]];
  var DARK_NEGATIVE = [[0.25, 0.012, 60], [0.42, 0.09, 42], [0.6, 0.15, 48], [0.78, 0.14, 65], [0.95, 0.06, 90]];
  var DARK_POSITIVE = [[0.25, 0.012, 265], [0.42, 0.12, 272], [0.6, 0.14, 250], [0.78, 0.1, 225], [0.95, 0.04, 205]];
  var INKS = {
    light: { surface: "#ffffff", ground: "#f7f8fa", ink: "#16181d", muted: "#5b6270", line: "#e3e6eb", accent: "#3f51d8", highlight: "#d9480f" },
    dark: { surface: "#16181d", ground: "#0f1115", ink: "#eceef2", muted: "#a0a7b4", line: "#2a2e37", accent: "#9aa8ff", highlight: "#ffb454" }
  };
  var paletteCache = /* @__PURE__ */ new Map();
  var HEAD_COLOURS = {
    light: ["#3f51d8", "#c2410c", "#0f766e", "#a21caf", "#854d0e"],
    dark: ["#9aa8ff", "#ffa45c", "#5eead4", "#f0a3ff", "#fde047"]
  };
  function resolveTheme(theme) {
    if (theme === "light" || theme === "dark") return theme;
    return globalThis.matchMedia?.("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }
  function palette(theme) {
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
      const lightness = first + range * index / (count - 1);
      colours.set(redGreenBlue(colourAtLightness(stops, lightness)), index * 3);
    }
    return colours;
  }
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
    const angle = hue * Math.PI / 180;
    return [lightness, chroma * Math.cos(angle), chroma * Math.sin(angle)];
  }
  function redGreenBlue([lightness, a, b]) {
    const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
    return [
      4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
      -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
      -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short
    ].map(gammaByte);
  }
  function gammaByte(linear) {
    const bounded = Math.min(1, Math.max(0, linear));
    const curved = bounded <= 31308e-7 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055;
    return Math.round(curved * 255);
  }
  function scaleShare(value, peak, mode) {
    if (!(value > 0) || !(peak > 0)) return 0;
    const share = Math.min(1, value / peak);
    if (mode !== "log") return share;
    return Math.max(0, 1 - Math.log(share) / Math.log(LOG_RANGE));
  }
  function weightAtShare(share, peak, mode) {
    return mode === "log" ? peak * LOG_RANGE ** (1 - share) : peak * share;
  }
  function shadeIndex(value, peak, mode, signed2 = false) {
    if (!signed2) return Math.round(scaleShare(value, peak, mode) * (SHADES - 1));
    const half = Math.round(scaleShare(Math.abs(value), peak, mode) * (SHADES / 2 - 1));
    return value < 0 ? SHADES / 2 - 1 - half : SHADES / 2 + half;
  }
  function weightColour(colours, value, peak, mode, signed2 = false) {
    const [red, green, blue] = weightBytes(colours, value, peak, mode, signed2);
    return `rgb(${red} ${green} ${blue})`;
  }
  function inkOnWeight(colours, value, peak, mode, signed2 = false) {
    const [red, green, blue] = weightBytes(colours, value, peak, mode, signed2).map(linearByte);
    const luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    return luminance > 0.179 ? "#000000" : "#ffffff";
  }
  function weightBytes(colours, value, peak, mode, signed2) {
    const start = shadeIndex(value, peak, mode, signed2) * 3;
    const table = signed2 ? colours.diverging : colours.lut;
    return [table[start], table[start + 1], table[start + 2]];
  }
  function linearByte(byte) {
    const curved = byte / 255;
    return curved <= 0.04045 ? curved / 12.92 : ((curved + 0.055) / 1.055) ** 2.4;
  }
  function paintWeights(pixels, weights, peak, mode, signed2, colours) {
    const packed = packedColours(signed2 ? colours.diverging : colours.lut);
    const target = new Uint32Array(pixels.data.buffer);
    if (mode !== "log" && !signed2) {
      const factor = peak > 0 ? (SHADES - 1) / peak : 0;
      for (let index = 0; index < weights.length; index += 1) {
        const level = weights[index] * factor + 0.5;
        target[index] = packed[level >= SHADES ? SHADES - 1 : level > 0 ? level | 0 : 0];
      }
      return;
    }
    for (let index = 0; index < weights.length; index += 1) target[index] = packed[shadeIndex(weights[index], peak, mode, signed2)];
  }
  var packedCache = /* @__PURE__ */ new WeakMap();
  function packedColours(table) {
    if (!packedCache.has(table)) {
      const packed = new Uint32Array(SHADES);
      const bytes = new Uint8ClampedArray(packed.buffer);
      for (let index = 0; index < SHADES; index += 1) bytes.set([table[index * 3], table[index * 3 + 1], table[index * 3 + 2], 255], index * 4);
      packedCache.set(table, packed);
    }
    return packedCache.get(table);
  }

  // state/state.js
  var VIEWS = ["map", "matrix", "lines", "text", "image"];
  var MODES = ["head", "mean", "max", "rollout", "relevance"];
  var MOST_HEADS = 4;
  var CHOICES = {
    view: VIEWS,
    mode: MODES,
    unit: ["pieces", "words"],
    special: ["shown", "folded", "hidden"],
    colour: ["linear", "log"],
    theme: ["auto", "light", "dark"],
    direction: ["from", "to"],
    measure: ["weights", "norms"],
    sort: ["layer", "type", "entropy", "distance", "pair"]
  };
  var SHARED_KEYS = ["view", "part", "layer", "mode", "head", "unit", "special", "colour", "theme", "direction", "limit", "sort", "type", "pair", "heads", "measure"];
  function initialState() {
    return {
      view: "map",
      part: 0,
      layer: 0,
      mode: "head",
      head: 0,
      unit: "pieces",
      special: "shown",
      colour: "linear",
      theme: "auto",
      selected: [],
      pinned: false,
      hidden: [],
      direction: "from",
      limit: { kind: "top", value: 5 },
      step: null,
      zoom: null,
      sort: "layer",
      type: "",
      pair: [],
      heads: [],
      measure: "weights"
    };
  }
  function hasSpecial(scene) {
    return scene.sequences.some((sequence) => sequence.special.some(Boolean));
  }
  function hasWords(scene) {
    return scene.sequences.some((sequence) => sequence.words !== null && sequence.words !== void 0);
  }
  function unitName(state) {
    return state.unit === "words" ? "word" : "token";
  }
  function hasOneMap(scene) {
    const isThrough = scene.parts.some(({ maps }) => maps?.rollout || maps?.relevance);
    return scene.sites.length === 1 && scene.sites[0].heads === 1 && !isThrough;
  }
  function modeProblem(scene, state, mode) {
    const maps = scene.parts[state.part].maps ?? {};
    if (mode === "rollout" || mode === "relevance") return maps[mode] ? null : `no ${mode} map was stored for this part`;
    return null;
  }
  function settleState(scene, state, patch) {
    const next = { ...state };
    next.part = boundedInteger(next.part, scene.parts.length);
    const part = scene.parts[next.part];
    const maps = part.maps ?? {};
    settleMode(next, patch, maps);
    if (next.layer !== "all") next.layer = boundedInteger(next.layer, part.sites.length);
    const site = scene.sites[part.sites[next.layer === "all" ? 0 : next.layer]];
    next.head = boundedInteger(next.head, site ? site.heads : 1);
    if (next.unit === "words" && !hasWords(scene)) next.unit = "pieces";
    if (next.view === "image" && !scene.image) next.view = "matrix";
    next.heads = settledHeads(scene, part, next.heads);
    next.pair = settledPair(scene, site, next.pair);
    if (next.sort === "pair" && next.pair.length === 0) next.sort = "layer";
    if (!scene.steps) next.step = null;
    else if (next.step !== null) next.step = Math.max(next.step, leastStep(scene));
    return next;
  }
  function settledHeads(scene, part, heads) {
    const has = ([layer, head]) => layer < part.sites.length && head < scene.sites[part.sites[layer]].heads;
    return heads.filter((place) => has(headPlace(place)));
  }
  function headPlace(text2) {
    return text2.split(".").map(Number);
  }
  function settledPair(scene, site, pair) {
    const sequences = [site?.query_sequence, site?.key_sequence];
    const fits = (position, index) => position < (scene.sequences[sequences[index]]?.tokens.length ?? 0);
    return pair.length <= 2 && pair.every(fits) ? pair : [];
  }
  function leastStep(scene) {
    return scene.steps.prompt > 0 ? 0 : 1;
  }
  function settleMode(next, patch, maps) {
    if (next.mode === "rollout" || next.mode === "relevance") {
      const asksLayer = patch.layer !== void 0 && patch.layer !== "all" && patch.mode === void 0;
      if (maps[next.mode] && !asksLayer) next.layer = "all";
      else next.mode = "head";
    }
    if (next.layer !== "all" || maps[next.mode]) return;
    const stored = MODES.slice(1).find((mode) => maps[mode]);
    if (patch.mode !== void 0 || stored === void 0) next.layer = 0;
    else next.mode = stored;
  }
  function boundedInteger(value, count) {
    const number = Number.isInteger(value) ? value : 0;
    return Math.max(0, Math.min(count - 1, number));
  }

  // state/store.js
  function createStore(initial, settled) {
    let state = settled({ ...initial }, {});
    const listeners = /* @__PURE__ */ new Set();
    return {
      get: () => state,
      set(patch) {
        const next = settled({ ...state, ...patch }, patch);
        const changed = Object.keys(next).filter((key) => !sameValue(next[key], state[key]));
        if (changed.length === 0) return;
        state = next;
        for (const listener of [...listeners]) listener(state, changed);
      },
      subscribe(listener) {
        listeners.add(listener);
        return () => listeners.delete(listener);
      }
    };
  }
  function linkStores(first, second, keys) {
    let isFollowing = false;
    const follow = (target) => (state, changed) => {
      const shared = changed.filter((key) => keys.includes(key));
      if (isFollowing || shared.length === 0) return;
      isFollowing = true;
      try {
        target.set(Object.fromEntries(shared.map((key) => [key, state[key]])));
      } finally {
        isFollowing = false;
      }
    };
    const stops = [first.subscribe(follow(second)), second.subscribe(follow(first))];
    return () => stops.forEach((stop) => stop());
  }
  function sameValue(left, right) {
    if (left === right) return true;
    return typeof left === "object" && typeof right === "object" && JSON.stringify(left) === JSON.stringify(right);
  }

  // state/fragment.js
  var INPUT_KEYS = ["model", "text", "tokens", "trace"];
  var LONGEST_IN_LINK = 1e3;
  function fragmentOf(states, inputs = [], starts = []) {
    const fields = new URLSearchParams();
    inputs.forEach((input, index) => {
      for (const key of INPUT_KEYS) if (fitsLink(input?.[key])) fields.set(index === 0 ? key : `${key}.${index}`, String(input[key]));
    });
    states.forEach((state, index) => {
      const base = index === 0 ? initialState() : { ...initialState(), ...sharedPartOf(states[0]) };
      for (const [key, value] of Object.entries(state)) {
        const start = starts[index]?.[key] ?? value;
        if (!sameValue(value, base[key]) || !sameValue(value, start)) fields.set(index === 0 ? key : `${key}.${index}`, fieldText(key, value));
      }
    });
    return fields.toString().replace(/%2C/g, ",").replace(/%3A/g, ":");
  }
  function fitsLink(value) {
    return value !== void 0 && value !== null && String(value).length <= LONGEST_IN_LINK;
  }
  function isWholeInLink(input) {
    return input === null || !input.file && INPUT_KEYS.every((key) => input[key] === void 0 || fitsLink(input[key]));
  }
  function sharedPartOf(state) {
    return Object.fromEntries(SHARED_KEYS.map((key) => [key, state[key]]));
  }
  function fieldText(key, value) {
    if (key === "limit") return `${value.kind}:${value.value}`;
    if (key === "zoom") return value === null ? "" : value.map((edge) => Number(edge.toFixed(3))).join(",");
    if (Array.isArray(value)) return value.join(",");
    return value === null ? "" : String(value);
  }
  function patchOfFragment(fragment, index = 0) {
    const patch = {};
    const shared = new Set(SHARED_KEYS);
    for (const [name, text2] of new URLSearchParams(fragment.replace(/^#/, ""))) {
      const [key, owner] = name.split(".");
      const own = Number(owner ?? 0) === index;
      if (!own && !(owner === void 0 && shared.has(key))) continue;
      const value = fieldValue(key, text2);
      if (value !== void 0) patch[key] = value;
    }
    return patch;
  }
  function fieldValue(key, text2) {
    if (CHOICES[key]) return CHOICES[key].includes(text2) ? text2 : void 0;
    if (key === "layer" && text2 === "all") return "all";
    if (key === "step" && text2 === "") return null;
    if (["part", "layer", "head", "step"].includes(key)) return /^\d{1,9}$/.test(text2) ? Number(text2) : void 0;
    if (key === "heads") return /^(\d{1,5}\.\d{1,5}(,|$))*$/.test(text2) ? text2.split(",").filter(Boolean).slice(0, MOST_HEADS) : void 0;
    if (key === "type") return /^[a-z]*$/.test(text2) ? text2 : void 0;
    if (["selected", "hidden", "pair"].includes(key)) return text2 === "" ? [] : numbersOf(text2, Number.isInteger);
    if (key === "pinned") return text2 === "true";
    if (key === "zoom") return zoomValue(text2);
    if (key === "limit") return limitValue(text2);
    return void 0;
  }
  function numbersOf(text2, accepted) {
    const numbers = text2.split(",").map(Number);
    return numbers.every((number) => accepted(number) && number >= 0) ? numbers : void 0;
  }
  function zoomValue(text2) {
    if (text2 === "") return null;
    const edges = text2.split(",").map(Number);
    const valid = edges.length === 4 && edges.every(Number.isFinite) && edges[2] > edges[0] && edges[3] > edges[1];
    return valid ? edges : void 0;
  }
  function limitValue(text2) {
    const [kind, amount] = text2.split(":");
    const value = Number(amount);
    const valid = (kind === "top" || kind === "threshold") && Number.isFinite(value) && value >= 0;
    return valid ? { kind, value } : void 0;
  }
  function readFragment() {
    try {
      return globalThis.location.hash.slice(1);
    } catch {
      return "";
    }
  }
  var fragmentTimer = 0;
  function writeFragment(fragment, pause = 200) {
    clearTimeout(fragmentTimer);
    const before = readFragment();
    fragmentTimer = setTimeout(() => {
      if (readFragment() !== before) return;
      try {
        globalThis.history.replaceState(null, "", `#${fragment()}`);
      } catch {
      }
    }, pause);
  }
  function linkTo(fragment) {
    return `${pageAddress()}#${fragment}`;
  }
  function hasAddress() {
    return !/^(about:|$)/.test(pageAddress());
  }
  function pageAddress() {
    try {
      return globalThis.location.href.split("#")[0];
    } catch {
      return "";
    }
  }

  // data/head_types.js
  var WITH_SINK = ", with a sink";
  var HEAD_TYPES = {
    previous: "at least 40 % of the attention goes to the token just before",
    next: "at least 40 % of the attention goes to the token just after",
    self: "at least 40 % of the attention goes from a token to itself",
    induction: "at least 40 % goes to what followed earlier copies of the token, where tokens occur again",
    duplicate: "at least 40 % goes to earlier copies of the token, where tokens occur again",
    broad: "the attention is spread almost evenly over all tokens in sight",
    special: "at least 40 % goes to special tokens such as [CLS] or [SEP], less than half of that to the first token",
    sink: "one token receives at least 40 % of all attention, whoever looks",
    local: "at least 60 % of the attention stays within four tokens to either side",
    positional: "how far away a token is explains at least 60 % of the pattern",
    content: "few tokens are picked, and neither their distance nor one favourite explains which: it follows what they say",
    sharp: "few tokens are picked, where queries and keys are different texts and distance means nothing",
    mixed: "none of the other types"
  };
  function typeTitle(type) {
    if (!type) return null;
    const meaning = HEAD_TYPES[headType(type)];
    const beside = hasSink(type) ? `what does not go to special tokens or one favourite, which take at least 40 %: ${meaning}` : meaning;
    return meaning ? `${type}: ${beside}` : type;
  }
  function headType(label) {
    return label.replace(WITH_SINK, "");
  }
  function hasSink(label) {
    return label.endsWith(WITH_SINK);
  }

  // data/chunks.js
  var ARRAYS = { u8: Uint8Array, u16: Uint16Array, i16: Int16Array, i32: Int32Array, f32: Float32Array };
  function inlineLoader(first) {
    return {
      remote: null,
      async read(chunk) {
        const element = document.getElementById(`chunk-${first + chunk.id}`);
        if (!element) throw new Error(`the file has no chunk ${chunk.id}; was it cut short?`);
        return decodeNumbers(await inflateBytes(bytesOfBase64(element.textContent)), chunk);
      }
    };
  }
  function bytesOfBase64(text2) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text2);
    const binary = atob(text2);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < binary.length; i += 1) bytes[i] = binary.charCodeAt(i);
    return bytes;
  }
  async function inflateBytes(bytes) {
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }
  function decodeNumbers(planes, chunk) {
    if (chunk.dtype === "u8") return planes;
    const count = chunk.shape.reduce((product, size) => product * size, 1);
    if (chunk.dtype !== "rows") return new ARRAYS[chunk.dtype](joinedPlanes(planes, count));
    const numbers = new Int16Array(joinedPlanes(planes.subarray(0, 2 * count), count));
    const units = new Float32Array(joinedPlanes(planes.subarray(2 * count), chunk.shape[0]));
    const width = chunk.shape[1];
    return Float32Array.from(numbers, (number, i) => number * units[Math.floor(i / width)]);
  }
  function joinedPlanes(planes, count) {
    const width = planes.length / Math.max(1, count);
    const bytes = new Uint8Array(planes.length);
    for (let plane = 0; plane < width; plane += 1) {
      const start = plane * count;
      for (let i = 0, at = plane; i < count; i += 1, at += width) bytes[at] = planes[start + i];
    }
    return bytes.buffer;
  }

  // data/partial_map.js
  function valuesOfCodes(codes, { unit, levels }) {
    return Float32Array.from(codes, (code) => valueOfCode(code, unit, levels));
  }
  function valueOfCode(code, unit, levels) {
    const share = code / levels;
    return share * Math.abs(share) * unit;
  }
  function eachRun(runs, queries, keys, call) {
    for (let row = 0, end = queries; row < queries; row += 1) {
      const count = runs ? runs[row] : 1;
      for (let i = 0; i < count; i += 1, end += 2) call(row, ...runs ? [runs[end], runs[end + 1]] : [0, keys]);
    }
  }
  async function partialMap(scene, form, size) {
    const [places, codes, runs, means, received] = await Promise.all([
      scene.loader.read(form.places),
      scene.loader.read(form.weights),
      form.runs ? scene.loader.read(form.runs) : null,
      scene.loader.read(form.means.weights),
      scene.loader.read(form.received.weights)
    ]);
    const known = new Largest(form, size, places, codes, runs, valuesOfCodes(means, form.means));
    return { ...size, data: known.colours(), known, received: valuesOfCodes(received, form.received) };
  }
  var Largest = class {
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
  };
  function meanKnowledge(maps) {
    const [{ keys }, count] = [maps[0], maps.length];
    const [least, most] = [new Float32Array(keys), new Float32Array(keys)];
    const add = (target, values) => {
      for (let key = 0; key < keys; key += 1) target[key] += values[key] / count;
    };
    const rowOf2 = (map, query) => {
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
          rowOf2(map, query);
          add(low, least);
          add(high, most);
        }
      },
      pair(query, key) {
        const pairs = maps.map((map) => pairOf(map, query, key));
        return [0, 1].map((side) => pairs.reduce((sum, pair) => sum + pair[side], 0) / count);
      },
      mean: () => null
    };
  }

  // data/scene.js
  var MOST_FOLLOWED = 512;
  var THUMBNAIL_SIDE = 64;
  var CACHE_SIZE = 48 << 20;
  function openScene(manifest, loader) {
    const maps = boundedCache(CACHE_SIZE);
    const cached = (key, make2) => maps.get(key) ?? maps.set(key, make2());
    const scene = { ...manifest, loader };
    scene.headMap = (site, head) => cached(`${site}/${head}`, () => readHeadMap(scene, manifest.sites[site], head));
    scene.headRows = (site, head, queries) => readHeadRows(scene, manifest.sites[site], head, queries);
    scene.layerMap = (site) => cached(`${site}/mean`, () => meanOfHeads(scene, site));
    scene.partMap = (part, name) => cached(`part ${part}/${name}`, () => readPartMap(scene, part, name));
    return scene;
  }
  async function thumbnail(scene, site, head) {
    const chunk = scene.sites[site].thumbnails;
    if (!chunk) return pictureOfMap(await scene.headMap(site, head), scene.sites[site].peak[head]);
    const [, height, width] = chunk.shape;
    scene.thumbnails ??= /* @__PURE__ */ new Map();
    if (!scene.thumbnails.has(site)) scene.thumbnails.set(site, scene.loader.read(chunk));
    const thumbnails = await scene.thumbnails.get(site);
    return { data: thumbnails.subarray(head * height * width, (head + 1) * height * width), height, width };
  }
  function pictureOfMap({ data: weights, queries, keys }, peak) {
    const [height, width] = [Math.min(THUMBNAIL_SIDE, queries), Math.min(THUMBNAIL_SIDE, keys)];
    const [data, scale] = [new Uint8Array(height * width), 255 / (peak || 1)];
    for (let i = 0, at = 0; i < queries; i += 1) {
      const start = Math.floor(i * height / queries) * width;
      for (let j = 0; j < keys; j += 1, at += 1) {
        const pixel = start + Math.floor(j * width / keys);
        data[pixel] = Math.max(data[pixel], Math.round(Math.abs(weights[at]) * scale));
      }
    }
    return { data, height, width };
  }
  function boundedCache(capacity) {
    const entries = /* @__PURE__ */ new Map();
    let total = 0;
    const evict = (key) => {
      total -= entries.get(key)?.size ?? 0;
      entries.delete(key);
    };
    return {
      get(key) {
        const entry = entries.get(key);
        if (!entry) return void 0;
        entries.delete(key);
        entries.set(key, entry);
        return entry.promise;
      },
      set(key, promise) {
        const entry = { promise, size: 0 };
        entries.set(key, entry);
        promise.then(
          (map) => {
            if (entries.get(key) !== entry) return;
            entry.size = map.data?.length ?? 0;
            total += entry.size;
            for (const oldestKey of entries.keys()) {
              if (total <= capacity || oldestKey === key) break;
              evict(oldestKey);
            }
          },
          () => entries.get(key) === entry && evict(key)
          // a failure may be tried again
        );
        return promise;
      }
    };
  }
  async function readHeadMap(scene, site, head) {
    return readMap(scene, site.maps[head], site.queries, site.keys, site.peak[head]);
  }
  async function readHeadRows(scene, { maps, queries, keys }, head, rows) {
    const form = maps[head];
    if (form.kind !== "factors") return null;
    const data = await factorWeights(scene, form, queries, keys, rows);
    const weights = rows.map((_, index) => data.subarray(index * keys, (index + 1) * keys));
    if (form.top) {
      const [places, values] = await Promise.all([scene.loader.read(form.top.places), scene.loader.read(form.top.values)]);
      const count = form.top.places.shape[1];
      rows.forEach((row, index) => {
        for (let at = row * count; at < (row + 1) * count; at += 1) weights[index][places[at]] = values[at];
      });
    }
    return weights;
  }
  async function readPartMap(scene, part, name) {
    const { maps, sites } = scene.parts[part];
    const form = maps[name];
    if (!form) throw new Error(`there is no ${name} of ${scene.parts[part].label}`);
    const { queries, keys } = scene.sites[sites[0]];
    return readMap(scene, form, queries, keys, form.unit ?? null);
  }
  async function readMap(scene, form, queries, keys, largest) {
    const { note } = form;
    const size = { queries, keys, largest, note, exact: isExact(form), top: null, known: null };
    if (form.kind === "tiles") return { ...size, data: null };
    if (form.kind === "largest") return partialMap(scene, form, size);
    if (form.kind === "factors") {
      const map = { ...size, data: await factorWeights(scene, form, queries, keys) };
      if (form.top) map.top = await correctTop(scene, form.top, map);
      return map;
    }
    const numbers = await scene.loader.read(form.weights);
    return { ...size, data: form.kind === "dense" ? numbers : valuesOfCodes(numbers, form) };
  }
  async function meanOfHeads(scene, site) {
    const { heads, queries, keys, maps } = scene.sites[site];
    const isWhole = (form) => form.kind !== "tiles";
    const notes = new Set(maps.map((form) => form.note));
    const note = [...notes].join("; or ");
    const exact = maps.every(isExact);
    const size = { queries, keys, largest: null, note, exact, top: null, known: null };
    if (!maps.every(isWhole)) return { ...size, data: null };
    const data = new Float32Array(queries * keys);
    const parts = [];
    for (let head = 0; head < heads; head += 1) {
      const map = await scene.headMap(site, head);
      const weights = map.data;
      parts.push(map);
      for (let i = 0; i < data.length; i += 1) data[i] += weights[i] / heads;
    }
    const isPartial = parts.some((map) => map.known);
    return { ...size, data, known: isPartial ? meanKnowledge(parts) : null };
  }
  function isExact(form) {
    return form.kind === "tiles" || form.kind === "dense" && form.exact !== false;
  }
  async function factorWeights(scene, form, queries, keys, rows = null) {
    const [query, key, normaliser, runs] = await Promise.all([
      scene.loader.read(form.query),
      scene.loader.read(form.key),
      scene.loader.read(form.lse),
      form.runs ? scene.loader.read(form.runs) : null
    ]);
    const width = form.query.shape[1];
    const data = new Float32Array((rows ?? { length: queries }).length * keys);
    eachRun(runs, queries, keys, (row, start, stop) => {
      const place = rows ? rows.indexOf(row) : row;
      if (place < 0) return;
      const scaled = query.subarray(row * width, (row + 1) * width).map((part) => part * form.scale);
      fillRow(data, place * keys, scaled, key, width, start, stop, normaliser[row]);
    });
    return data;
  }
  function fillRow(data, base, query, key, width, start, stop, offset) {
    for (let column = start; column < stop; column += 1) {
      let score = 0;
      for (let i = 0, at = column * width; i < width; i += 1, at += 1) score += query[i] * key[at];
      data[base + column] = Math.exp(score - offset);
    }
  }
  async function correctTop(scene, top, map) {
    const [places, values] = await Promise.all([scene.loader.read(top.places), scene.loader.read(top.values)]);
    const count = top.places.shape[1];
    for (let row = 0, at = 0; row < map.queries; row += 1) {
      for (let i = 0; i < count; i += 1, at += 1) map.data[row * map.keys + places[at]] = values[at];
    }
    return { count, places };
  }
  function layerName(scene, part, index) {
    const site = scene.sites[scene.parts[part].sites[index]];
    if (site.label) return site.label;
    return site.layer === null || site.layer === void 0 ? `Site ${index}` : `Layer ${site.layer}`;
  }
  function layersName(scene, part) {
    return part.sites.every((number) => scene.sites[number].label) ? "site" : "layer";
  }

  // data/norms.js
  var WHOLE_FORMS = ["dense", "codes", "factors"];
  function hasNorms(scene, state) {
    return scene.parts[state.part].sites.every((number) => scene.sites[number].norms);
  }
  function normsProblem(scene, state) {
    if (!hasNorms(scene, state)) return "The values were not captured";
    const isMap = state.view === "map";
    if (state.layer === "all" && !isMap) return "Lengths of values are not comparable between layers: choose one layer";
    const numbers = scene.parts[state.part].sites;
    const sites = (isMap ? numbers : [numbers[state.layer]]).map((number) => scene.sites[number]);
    const longest = Math.max(...sites.map(({ queries, keys }) => Math.max(queries, keys)));
    if (isMap && longest > MOST_FOLLOWED) return `Pictures of more than ${MOST_FOLLOWED} tokens are of weights alone`;
    const forms = sites.flatMap(({ maps }) => isMap || state.mode !== "head" ? maps : [maps[state.head]]);
    return forms.every((form) => WHOLE_FORMS.includes(form?.kind)) ? null : "Not every weight is stored";
  }
  function isNormed(scene, state) {
    return state.measure === "norms" && normsProblem(scene, state) === null;
  }
  async function normedMap(scene, number, { mode, head }) {
    const { heads, queries, keys, norms } = scene.sites[number];
    const lengths = await scene.loader.read(norms);
    const members = mode === "head" ? [head] : Array.from({ length: heads }, (_, index) => index);
    const maps = await Promise.all(members.map((member) => scene.headMap(number, member)));
    const data = new Float32Array(queries * keys);
    maps.forEach((map, index) => {
      const start = members[index] * keys;
      for (let i = 0; i < data.length; i += 1) data[i] += map.data[i] * lengths[start + i % keys] / maps.length;
    });
    const note = [...new Set(maps.map((map) => map.note))].join("; or ");
    return { queries, keys, data, exact: maps.every((map) => map.exact), top: null, known: null, largest: null, note };
  }
  async function normedRow(scene, number, head, row) {
    const lengths = await scene.loader.read(scene.sites[number].norms);
    return row.map((weight, key) => weight * lengths[head * row.length + key]);
  }

  // data/numbers.js
  var NEAR = 1e-3;
  var MEASURES = { weights: "weight", shares: "share without special tokens", norms: "weight \xD7 length of the value" };
  function readableWeight(value) {
    if (Number.isNaN(value)) return "not stored";
    if (!Number.isFinite(value)) return String(value);
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size < 1e-5) return value.toExponential(1);
    if (size >= 1e3) return value.toFixed(0);
    return String(Number(value.toPrecision(3)));
  }
  function shortestFloat(value) {
    const float = Math.fround(value);
    for (let digits = 6; digits < 9; digits += 1) {
      const rounded = Number(float.toPrecision(digits));
      if (Math.fround(rounded) === float) return String(rounded);
    }
    return String(Number(float.toPrecision(9)));
  }
  function markedWeight({ value, exact, low = value, high = value }) {
    if (Number.isNaN(value)) return `not stored${low < high ? `: ${boundsText(low, high)}` : ""}`;
    return exact ? shortestFloat(value) : `\u2248 ${shortestFloat(value)}`;
  }
  function measuredWeight({ measure }, weight) {
    return measure === MEASURES.weights ? markedWeight(weight) : `${markedWeight(weight)} \xB7 ${measure}`;
  }
  function boundsText(low, high) {
    if (low > 0) return `from ${flooredWeight(low)} to ${raisedWeight(high)}`;
    return low < 0 ? `at most \xB1${raisedWeight(high)}` : `at most ${raisedWeight(high)}`;
  }
  var roundedBy = (round) => (value) => {
    const unit = 10 ** (Math.floor(Math.log10(value)) - 1);
    return readableWeight(round(value / unit) * unit);
  };
  var raisedWeight = roundedBy(Math.ceil);
  var flooredWeight = roundedBy(Math.floor);

  // data/frame.js
  var TILE = 256;
  var FOLDED_LABEL = "[special]";
  var ROW_CACHE_SIZE = 256;
  var SMALL_MAP = 64;
  var BRIGHT_SHARE = 0.99;
  async function frameOf(scene, state) {
    const part = scene.parts[state.part];
    const layer = state.layer === "all" ? 0 : state.layer;
    const siteNumber = part.sites[layer];
    const site = scene.sites[siteNumber];
    const isOverLayers = state.layer === "all" || ["rollout", "relevance"].includes(state.mode);
    const normed = isNormed(scene, state);
    const square = site.query_sequence === site.key_sequence;
    const shownCount = shownPositions(scene, state, site.query_sequence);
    const rows = axisOf(scene, state, site.query_sequence, shownCount);
    const columns = square ? rows : axisOf(scene, state, site.key_sequence, shownPositions(scene, state, site.key_sequence));
    const signed2 = site.kind === "signed";
    const isRenormalised = dividesRows(scene, state, site) && !normed;
    const measure = normed ? MEASURES.norms : isRenormalised ? MEASURES.shares : MEASURES.weights;
    const frame = { rows, columns, signed: signed2, isGate: site.kind === "gate", square, measure, isRenormalised, isNormed: normed };
    const isLargestOfHeads = state.mode === "max" && !isOverLayers;
    const map = isLargestOfHeads ? await largestOfHeads(frame, scene, state) : reducedMap(frame, await mapOf(scene, state, siteNumber, isOverLayers));
    if (isOverLayers && state.mode === "max" && map.data && !isSelection(frame)) {
      throw new Error("the largest over all layers is stored for single tokens: choose one layer, or show pieces with special tokens");
    }
    [frame.exact, frame.note] = [map.exact, map.note];
    if (map.data === null) return remoteFrame(frame, scene, state, map);
    return map.spans ? partialFrame(frame, map) : wholeFrame(frame, map);
  }
  function dividesRows(scene, state, site) {
    const hasSpecial2 = [site.query_sequence, site.key_sequence].some((number) => scene.sequences[number].special.some(Boolean));
    return state.special === "hidden" && hasSpecial2 && !["signed", "gate"].includes(site.kind);
  }
  async function headRow(scene, state, frame, layer, head, i) {
    const queries = frame.rows.members[i];
    const number = scene.parts[state.part].sites[layer];
    const stored = await scene.headRows(number, head, queries);
    if (stored) {
      const rows = frame.isNormed ? await Promise.all(stored.map((own2) => normedRow(scene, number, head, own2))) : stored;
      return spansOf(frame, knownRows((query) => rows[queries.indexOf(query)]), rows[0].length, false).row(i);
    }
    const own = { ...state, layer, head, mode: "head" };
    const map = await mapOf(scene, own, number, false);
    if (map.data === null) {
      const row = await remoteFrame({ ...frame }, scene, own, map).row(i);
      return { low: row, high: row };
    }
    const { keys, data } = map;
    return spansOf(frame, map.known ?? knownRows((query) => data.subarray(query * keys, (query + 1) * keys)), keys, false).row(i);
  }
  function knownRows(rowOf2) {
    return {
      row(query, low, high) {
        low.set(rowOf2(query));
        high.set(low);
      }
    };
  }
  function tileShape(frame, level, r, c) {
    const side = (count, place) => Math.min(TILE, Math.ceil(count / 2 ** level) - place * TILE);
    return [side(frame.rows.labels.length, r), side(frame.columns.labels.length, c)];
  }
  function scaleTop(frame, colour) {
    return colour === "linear" && !frame.signed ? frame.bright : frame.peak;
  }
  function stepCount(scene, partNumber) {
    const site = scene.sites[scene.parts[partNumber].sites[0]];
    if (scene.steps?.sequence !== site.query_sequence) return 0;
    return Math.max(0, site.queries - scene.steps.prompt);
  }
  function mapOf(scene, state, site, isOverLayers) {
    if (isOverLayers) {
      const name = ["rollout", "relevance"].includes(state.mode) ? state.mode : state.mode === "max" ? "max" : "mean";
      return scene.partMap(state.part, name);
    }
    if (isNormed(scene, state)) return normedMap(scene, site, state);
    return state.mode === "head" ? scene.headMap(site, state.head) : scene.layerMap(site);
  }
  function reducedMap(frame, map) {
    const { data, known } = map;
    if (data === null) return map;
    if (isPlainMap(frame, map)) return { received: null, ...map, spans: known && spansOf(frame, known, map.keys, true), count: known?.count ?? null, mean: known?.mean.bind(known) };
    const whole = mergedWeights(map, frame.rows, frame.columns);
    if (frame.isRenormalised) divideRows(whole, frame.columns.labels.length);
    const spans = known && spansOf(frame, known, map.keys, false);
    const note = map.exact ? map.note : `for pairs of tokens, ${map.note}`;
    return { ...map, data: whole, spans, note, top: null, largest: null, received: null, count: null, mean: () => null };
  }
  async function largestOfHeads(frame, scene, state) {
    const number = scene.parts[state.part].sites[state.layer];
    const { heads, maps, peak } = scene.sites[number];
    const isPartial = maps.some(({ kind }) => kind === "largest");
    const [notes, spans] = [/* @__PURE__ */ new Set(), []];
    const joined = { data: null, exact: true, top: null, received: null, count: null, mean: () => null };
    for (let head = 0; head < heads; head += 1) {
      const map = reducedMap(frame, await mapOf(scene, { ...state, mode: "head", head }, number, false));
      joined.largest = map.largest === null ? null : Math.max(...peak);
      if (map.data === null) return { ...map, largest: joined.largest };
      notes.add(map.note);
      joined.exact &&= map.exact;
      if (isPartial) spans.push(map.spans ?? spansOfWhole(frame, map.data));
      joined.data = joined.data ? largerOf(joined.data, map.data) : map.data.slice();
    }
    return { ...joined, note: [...notes].join("; or "), spans: isPartial ? largestSpans(spans) : null };
  }
  function largerOf(target, values) {
    for (let i = 0; i < target.length; i += 1) target[i] = Math.max(target[i], values[i]);
    return target;
  }
  function shownPositions(scene, state, sequence) {
    if (scene.steps?.sequence !== sequence || state.step === null || state.step === void 0) return null;
    return scene.steps.prompt + state.step;
  }
  function axisOf(scene, state, number, shownCount) {
    const prompt = scene.steps?.sequence === number && scene.steps.prompt || Infinity;
    const sequence = scene.sequences[number];
    const groups = groupsOf(sequence, state.unit === "words");
    const shownGroups = groups.filter((group) => shownCount === null || group.members.every((i) => i < shownCount));
    if (state.special === "shown") return axisOfGroups(shownGroups, prompt, sequence.name);
    const specialGroups = shownGroups.filter((group) => group.special);
    const otherGroups = shownGroups.filter((group) => !group.special);
    if (specialGroups.length && state.special === "folded") {
      otherGroups.push({ label: FOLDED_LABEL, special: true, members: specialGroups.flatMap((group) => group.members) });
    }
    return axisOfGroups(otherGroups, prompt, sequence.name);
  }
  function groupsOf(sequence, asWords) {
    const { tokens, words, special } = sequence;
    if (!asWords || !words) {
      return tokens.map((label, i) => ({ label, special: special[i], members: [i] }));
    }
    const groups = words.names.map((label) => ({ label, special: false, members: [] }));
    words.pieces.forEach((word, i) => word !== null && groups[word].members.push(i));
    for (const group of groups) group.special = group.members.length > 0 && group.members.every((i) => special[i]);
    return groups;
  }
  function axisOfGroups(groups, prompt, name) {
    return {
      name,
      labels: groups.map((group) => group.label),
      special: groups.map((group) => group.special),
      members: groups.map((group) => group.members),
      written: groups.map(({ members }) => members.length > 0 && members.every((position) => position >= prompt))
    };
  }
  function wholeFrame(frame, map) {
    const { rows, columns } = frame;
    const whole = map.data;
    paintFrom(frame, whole);
    const breadth = columns.labels.length;
    frame.whole = whole;
    frame.largest = frame.peak;
    frame.partial = null;
    frame.value = (i, j) => ({
      value: whole[i * breadth + j],
      exact: map.exact || isTopWeight(map.top, i, j)
    });
    frame.cut = (side, index) => side === "row" ? whole.subarray(index * breadth, (index + 1) * breadth) : Float32Array.from(rows.labels, (_, i) => whole[i * breadth + index]);
    frame.row = async (i) => whole.slice(i * breadth, (i + 1) * breadth);
    frame.column = async (j) => frame.cut("column", j);
    frame.highest = () => 0;
    frame.received = () => meanOfRows(whole, rows.labels.length, breadth);
    return frame;
  }
  function partialFrame(frame, map) {
    paintFrom(frame, map.data);
    const { spans } = map;
    frame.whole = null;
    frame.largest = map.largest;
    frame.partial = { count: map.count };
    frame.value = (i, j) => {
      const [low, high] = spans.pair(i, j);
      const value = knownWeight(low, high);
      return { value, exact: false, low, high, mean: Number.isNaN(value) ? map.mean(i, j) : null };
    };
    frame.cut = (side, index) => {
      const { low, high } = spans[side](index);
      return low.map((least, other) => knownWeight(least, high[other]));
    };
    frame.row = async (i) => frame.cut("row", i);
    frame.column = async (j) => frame.cut("column", j);
    frame.highest = (side, index) => {
      const { low, high } = spans[side](index);
      return high.reduce((most, value, other) => value > low[other] ? Math.max(most, value) : most, 0);
    };
    frame.received = () => map.received;
    return frame;
  }
  function knownWeight(low, high) {
    if (low === high) return low;
    return low > 0 && high - low <= NEAR ? (low + high) / 2 : NaN;
  }
  function spansOf(frame, known, keys, plain) {
    const { rows, columns } = frame;
    const [least, most] = [new Float32Array(keys), new Float32Array(keys)];
    const row = (i) => {
      if (i !== latest.index) [latest.index, latest.span] = [i, rowSpan(i)];
      return latest.span;
    };
    const latest = { index: null, span: null };
    const rowSpan = (i) => {
      const low = new Float32Array(columns.labels.length);
      const high = new Float32Array(columns.labels.length);
      if (plain) {
        known.row(i, low, high);
        return { low, high };
      }
      const { length } = rows.members[i];
      for (const query of rows.members[i]) {
        known.row(query, least, most);
        columns.members.forEach((members, j) => {
          for (const key of members) {
            low[j] += least[key] / length;
            high[j] += most[key] / length;
          }
        });
      }
      return frame.isRenormalised ? dividedSpan(low, high) : { low, high };
    };
    const pair = (i, j) => {
      if (plain) return known.pair(i, j);
      if (frame.isRenormalised) return [row(i).low[j], row(i).high[j]];
      const sums = [0, 0];
      for (const query of rows.members[i]) {
        for (const key of columns.members[j]) known.pair(query, key).forEach((end, side) => sums[side] += end / rows.members[i].length);
      }
      return sums;
    };
    const column = (j) => {
      const [low, high] = [new Float32Array(rows.labels.length), new Float32Array(rows.labels.length)];
      for (let i = 0; i < low.length; i += 1) [low[i], high[i]] = pair(i, j);
      return { low, high };
    };
    return { row, column, pair };
  }
  function spansOfWhole(frame, whole) {
    const breadth = frame.columns.labels.length;
    const both = (values) => ({ low: values, high: values });
    return {
      row: (i) => both(whole.subarray(i * breadth, (i + 1) * breadth)),
      column: (j) => both(Float32Array.from(frame.rows.labels, (_, i) => whole[i * breadth + j])),
      pair: (i, j) => [whole[i * breadth + j], whole[i * breadth + j]]
    };
  }
  function largestSpans(all) {
    const largest = (ends) => ends.slice(1).reduce(largerOf, ends[0].slice());
    const joined = (side) => (index) => {
      const spans = all.map((own) => own[side](index));
      return { low: largest(spans.map(({ low }) => low)), high: largest(spans.map(({ high }) => high)) };
    };
    return { row: joined("row"), column: joined("column"), pair: (i, j) => largest(all.map((own) => own.pair(i, j))) };
  }
  function dividedSpan(low, high) {
    const [least, most] = [low, high].map((ends) => ends.reduce((total, weight) => total + weight, 0));
    const share = (weight, others) => weight > 0 ? weight / (weight + others) : 0;
    return { low: low.map((weight, j) => share(weight, most - high[j])), high: high.map((weight, j) => share(weight, least - low[j])) };
  }
  function paintFrom(frame, whole) {
    const pyramid = [whole];
    frame.peak = largestWeight(whole);
    frame.levels = levelCount(frame);
    frame.bright = brightWeight(frame, pyramid);
    frame.tile = (level, r, c) => cutTile(pyramidLevel(pyramid, frame, level), frame, level, r, c);
  }
  function meanOfRows(whole, height, breadth) {
    const means = new Float32Array(breadth);
    for (let row = 0; row < height; row += 1) {
      for (let column = 0; column < breadth; column += 1) means[column] += whole[row * breadth + column];
    }
    return means.map((sum) => sum / height);
  }
  function isPlainMap({ rows, columns }, map) {
    return isPlain(rows, map.queries) && isPlain(columns, map.keys);
  }
  function isSelection({ rows, columns, isRenormalised }) {
    return !isRenormalised && [rows, columns].every((axis) => axis.members.every((members) => members.length <= 1));
  }
  function isPlain(axis, count) {
    return axis.members.length === count && axis.members.every((m, i) => m.length === 1 && m[0] === i);
  }
  function mergedWeights(map, rows, columns) {
    const breadth = columns.labels.length;
    const target = new Int32Array(map.keys).fill(-1);
    columns.members.forEach((members, j) => members.forEach((key) => target[key] = j));
    const whole = new Float32Array(rows.labels.length * breadth);
    const row = new Float64Array(breadth);
    rows.members.forEach((members, i) => {
      row.fill(0);
      for (const query of members) {
        const start = query * map.keys;
        for (let key = 0; key < map.keys; key += 1) {
          if (target[key] >= 0) row[target[key]] += map.data[start + key];
        }
      }
      for (let j = 0; j < breadth; j += 1) whole[i * breadth + j] = row[j] / Math.max(1, members.length);
    });
    return whole;
  }
  function divideRows(whole, breadth) {
    for (let start = 0; start < whole.length; start += breadth) {
      const row = whole.subarray(start, start + breadth);
      const sum = row.reduce((total, weight) => total + weight, 0);
      if (sum > 0) for (let j = 0; j < breadth; j += 1) row[j] /= sum;
    }
  }
  function isTopWeight(top, i, j) {
    if (!top) return false;
    return top.places.subarray(i * top.count, (i + 1) * top.count).includes(j);
  }
  function largestWeight(values) {
    let peak = 0;
    for (let i = 0; i < values.length; i += 1) peak = Math.max(peak, Math.abs(values[i]));
    return peak;
  }
  function levelCount(frame) {
    const longest = Math.max(frame.rows.labels.length, frame.columns.labels.length, 1);
    return 1 + Math.max(0, Math.ceil(Math.log2(longest / TILE)));
  }
  function brightWeight(frame, pyramid) {
    const longest = Math.max(frame.rows.labels.length, frame.columns.labels.length);
    if (longest <= SMALL_MAP) return frame.peak;
    const weights = pyramidLevel(pyramid, frame, frame.levels - 1).filter((weight) => weight > 0).sort();
    return weights.length ? weights[Math.floor(BRIGHT_SHARE * (weights.length - 1))] : frame.peak;
  }
  function pyramidLevel(pyramid, frame, level) {
    for (let l = pyramid.length; l <= level; l += 1) pyramid.push(halvedLevel(pyramid[l - 1], frame, l));
    return pyramid[level];
  }
  function halvedLevel(fine, frame, level) {
    const size = (count, l) => Math.ceil(count / 2 ** l);
    const [height, breadth] = [size(frame.rows.labels.length, level - 1), size(frame.columns.labels.length, level - 1)];
    const [rows, columns] = [size(frame.rows.labels.length, level), size(frame.columns.labels.length, level)];
    const coarse = new Float32Array(rows * columns);
    for (let i = 0; i < height; i += 1) {
      const start = (i >> 1) * columns;
      for (let j = 0, at = i * breadth; j < breadth; j += 1, at += 1) {
        const cell = start + (j >> 1);
        if (Math.abs(fine[at]) > Math.abs(coarse[cell])) coarse[cell] = fine[at];
      }
    }
    return coarse;
  }
  function cutTile(values, frame, level, r, c) {
    const [height, breadth] = tileShape(frame, level, r, c);
    const columns = Math.ceil(frame.columns.labels.length / 2 ** level);
    const tile = new Float32Array(height * breadth);
    for (let i = 0; i < height; i += 1) {
      const start = (r * TILE + i) * columns + c * TILE;
      tile.set(values.subarray(start, start + breadth), i * breadth);
    }
    return tile;
  }
  function remoteFrame(frame, scene, state, map) {
    const rowCache = /* @__PURE__ */ new Map();
    const parameters = new URLSearchParams({
      part: state.part,
      layer: state.layer,
      mode: state.mode,
      head: state.head,
      unit: state.unit,
      special: state.special
    });
    const request = (path, position) => {
      const query = new URLSearchParams(parameters);
      for (const [name, value] of Object.entries(position)) query.set(name, value);
      return scene.loader.remote.floats(`${path}?${query}`);
    };
    frame.whole = null;
    frame.partial = null;
    frame.largest = isPlainMap(frame, map) ? map.largest : null;
    frame.peak = frame.largest ?? 1;
    frame.bright = frame.peak;
    frame.levels = levelCount(frame);
    frame.row = (i) => {
      if (!rowCache.has(i)) {
        if (rowCache.size >= ROW_CACHE_SIZE) rowCache.clear();
        rowCache.set(i, request("row", { row: i }));
        rowCache.get(i).catch(() => rowCache.delete(i));
      }
      return rowCache.get(i);
    };
    frame.column = (j) => request("column", { column: j });
    frame.value = async (i, j) => ({ value: (await frame.row(i))[j], exact: true });
    frame.cut = null;
    frame.highest = () => 0;
    frame.received = () => null;
    frame.tile = (level, row, column) => request("tile", { level, row, column });
    return frame;
  }

  // page/keyboard.js
  var KEY_TABLE = [
    ["1 \u2013 4", "map, matrix, lines, text"],
    ["5", "image", (scene) => Boolean(scene.image)],
    ["[ ]", "layer before, layer after"],
    [", .", "head before, head after"],
    ["m", "single head, mean, largest, rollout, relevance"],
    ["\u2190 \u2191 \u2192 \u2193", "move in the view (with Shift: ten cells of the matrix)"],
    ["+ \u2212 0", "zoom in, zoom out, see everything"],
    ["Enter", "open a head, pin, choose a word"],
    ["Space", "add to what is chosen, or take away"],
    ["Escape", "unpin, clear, go back to the map"],
    ["h", "hide a word or token of the lines"],
    ["w", "words or pieces"],
    ["s", "special tokens shown, folded into one, hidden"],
    ["l", "linear or logarithmic colours"],
    ["d", "attends to, or attended by (lines, text, image)"],
    ["t", "light, dark, as the system"],
    ["g G", "one step of a generation on, back", (scene) => Boolean(scene.steps)],
    ["e", "to the export buttons"],
    ["?", "this help"]
  ];
  function listenToKeys(panes, page) {
    document.addEventListener("keydown", (event) => {
      if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
      if (document.querySelector("dialog[open]")) return;
      const pane = activePane(panes());
      if (!pane) return;
      const handled = viewKey(pane, event) || pageKey(pane, event, page);
      if (handled) event.preventDefault();
    });
  }
  function isTyping(target) {
    return target.closest?.("input, textarea, select, [contenteditable]") !== null && target.closest !== void 0;
  }
  function activePane(panes) {
    return panes.find((pane) => pane.element.contains(document.activeElement)) ?? panes[0];
  }
  function viewKey(pane, event) {
    const view = pane.view();
    const action = view?.keys?.[event.key];
    if (!action) return false;
    const target = document.activeElement;
    const host = pane.element.querySelector(".view-host");
    const isFree = target === document.body || target === null || host.contains(target);
    const isPlain2 = !["Enter", " "].includes(event.key) && !event.key.startsWith("Arrow");
    if (!isFree && !isPlain2) return false;
    if (["Enter", " "].includes(event.key) && target?.matches?.("button, [role=switch]")) return false;
    return action(event) !== false;
  }
  function pageKey(pane, event, page) {
    const action = PAGE_KEYS[event.key];
    if (!action) return false;
    return action(pane, pane.store.get(), page) !== false;
  }
  function flipSetting(key, ...values) {
    return (_pane, _state, page) => page.flip(key, values);
  }
  function flipDirection(pane, state) {
    if (!["lines", "text", "image"].includes(state.view)) return false;
    pane.store.set({ direction: state.direction === "from" ? "to" : "from" });
    return true;
  }
  function moveLayer(change) {
    return (pane, state) => {
      const from = state.layer === "all" ? change > 0 ? -1 : 0 : state.layer;
      pane.store.set({ layer: Math.max(0, from + change) });
    };
  }
  function moveHead(change) {
    return (pane, state) => {
      const layer = state.layer === "all" ? lastLayer(pane) : state.layer;
      pane.store.set({ head: Math.max(0, state.head + change), mode: "head", layer });
    };
  }
  function lastLayer(pane) {
    return pane.controls()?.lastLayer ?? 0;
  }
  function nextMode(pane, state) {
    if (state.view === "map") return false;
    const scene = pane.scene();
    const modes = MODES.filter((mode2) => modeProblem(scene, state, mode2) === null);
    const mode = modes[(modes.indexOf(state.mode) + 1) % modes.length];
    const maps = scene.parts[state.part].maps ?? {};
    pane.store.set(state.layer === "all" && !maps[mode] ? { mode, layer: lastLayer(pane) } : { mode });
    return true;
  }
  function nextTheme(_pane, _state, page) {
    page.nextTheme();
  }
  function moveStep(change) {
    return (pane, state) => {
      const count = stepCount(pane.scene(), state.part);
      if (!count || state.view === "map") return false;
      const step = Math.max(0, Math.min(count, (state.step ?? count) + change));
      pane.store.set({ step: step === count ? null : step });
      return true;
    };
  }
  function openView(index) {
    return (pane) => {
      if (VIEWS[index] === "image" && !pane.scene().image) return false;
      pane.store.set({ view: VIEWS[index] });
      return true;
    };
  }
  var PAGE_KEYS = {
    1: openView(0),
    2: openView(1),
    3: openView(2),
    4: openView(3),
    5: openView(4),
    "[": moveLayer(-1),
    "]": moveLayer(1),
    ",": moveHead(-1),
    ".": moveHead(1),
    m: nextMode,
    t: nextTheme,
    w: flipSetting("unit", "pieces", "words"),
    s: flipSetting("special", ...CHOICES.special),
    l: flipSetting("colour", "linear", "log"),
    d: flipDirection,
    g: moveStep(1),
    G: moveStep(-1),
    e: (pane) => pane.controls()?.focusExport(),
    "?": (_pane, _state, page) => page.openHelp(),
    Escape: (pane) => pane.store.set({ view: "map" })
  };

  // page/help.js
  function createHelp(host) {
    const notes = make("div", { class: "help-notes" });
    const body = make("tbody", {});
    const table = make("table", { class: "help-keys" }, body);
    const types = make(
      "dl",
      { class: "help-types", "data-testid": "help-types" },
      ...Object.entries(HEAD_TYPES).flatMap(([type, meaning]) => [make("dt", {}, type), make("dd", {}, meaning)])
    );
    const close = make("button", { type: "button", class: "text-button", "data-testid": "help-close", onclick: () => dialog.close() }, "Close");
    const dialog = make(
      "dialog",
      { class: "help", "aria-labelledby": "help-title", "data-testid": "help-dialog" },
      make("div", { class: "help-head" }, make("h2", { id: "help-title" }, "How to read this page"), close),
      make("p", {}, "Each row of a map is a query: its weights say which keys it attends to. Darker on light ground, or brighter on dark, is more."),
      make("h3", {}, "Numbers"),
      notes,
      make("h3", {}, "Keys"),
      table,
      make("h3", {}, "Types of heads"),
      types
    );
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    host.append(dialog);
    return {
      open(scenes) {
        notes.replaceChildren(...scenes.map((scene) => make("p", {}, scene.note)));
        const rows = KEY_TABLE.filter(([, , applies]) => !applies || scenes.some(applies));
        body.replaceChildren(...rows.map(([keys, meaning]) => make("tr", {}, make("th", { scope: "row" }, ...keyCaps(keys)), make("td", {}, meaning))));
        if (!dialog.open) dialog.showModal();
      }
    };
  }
  function keyCaps(keys) {
    return keys.split(" ").map((key) => key === "\u2013" ? make("span", {}, "\u2013") : make("kbd", {}, key));
  }

  // drawing/labels.js
  function visibleLabel(token) {
    const label = unmarked(token);
    if (label === "") return "\u2205";
    if (label.trim() !== "") return label;
    return label.replace(/\n/g, "\u21B5").replace(/\t/g, "\u21E5").replace(/[^\u21B5\u21E5]/g, "\u2423");
  }
  function unmarked(label) {
    if (/^[\u0120\u2581\u010A]+$/.test(label)) return label.replace(/[\u0120\u2581]/g, " ").replace(/\u010A/g, "\n");
    const plain = label.replace(/\u010A+$/, (ends) => "\u21B5".repeat(ends.length));
    return /^[\u0120\u2581]{2}/.test(plain) ? plain.replace(/^[\u0120\u2581]+/, (marks) => "\u2423".repeat(marks.length)) : plain.replace(/^[\u0120\u2581]/, "");
  }
  function withoutControls(text2) {
    return text2.replace(/[\u202A-\u202E\u2066-\u2069]/g, (control) => `\\u${control.charCodeAt(0).toString(16)}`);
  }
  function isolated(label) {
    return `\u2068${withoutControls(visibleLabel(label))}\u2069`;
  }
  function textWithLabels(text2) {
    return text2.split(/(\u2068[^\u2069]*\u2069)/).filter(Boolean).map((part) => part.startsWith("\u2068") ? make("bdi", {}, part.slice(1, -1)) : part);
  }
  function capitalised(text2) {
    return text2.charAt(0).toUpperCase() + text2.slice(1);
  }

  // controls/control_bar.js
  var SORT_NAMES = { layer: "By layer", type: "By type", entropy: "By entropy", distance: "By distance", pair: "By chosen words" };
  var SPECIAL_NAMES = { shown: "Special shown", folded: "Special folded", hidden: "Special hidden" };
  var MODE_NAMES = { head: "Single head", mean: "Mean of heads", max: "Largest of heads", rollout: "Rollout", relevance: "Relevance" };
  var NARROW_PAGE = "(max-width: 820px)";
  function createControlBar(host, context, actions, actionHost = null) {
    const bar2 = new ControlBar(context, actions, actionHost);
    host.append(bar2.element);
    return bar2;
  }
  var ControlBar = class {
    constructor(context, actions, actionHost) {
      this.context = context;
      this.buildSelects();
      this.buildToggles();
      this.buildLimit();
      this.steps = make("div", { class: "step-host" });
      const [chosen, drawer] = [this.group("chosen"), this.group("drawer")];
      this.more = createIconButton("controls-more", "more", "More controls", () => this.toggleDrawer());
      this.more.classList.add("more-button");
      this.more.setAttribute("aria-expanded", "false");
      chosen.append(this.part.element, this.layer.element, this.mode.element, this.head.element, this.sort.element, this.type.element, this.more);
      drawer.append(this.measure.element, this.unit.element, this.special.element, this.colour.element, this.direction.element, this.limit);
      this.drawer = drawer;
      this.placeExports(this.exportGroup(actions), actionHost);
      this.element = make("div", { class: "controls", role: "toolbar", "aria-label": "What is shown" }, chosen, drawer, this.steps);
    }
    group(name) {
      return make("div", { class: `controls-${name}` });
    }
    toggleDrawer() {
      const isOpen = this.drawer.toggleAttribute("data-open");
      this.more.setAttribute("aria-expanded", String(isOpen));
    }
    set(patch) {
      this.context.store.set(patch);
    }
    buildSelects() {
      this.part = createSelect("part-select", "Part of the model", (value) => this.set({ part: Number(value) }));
      this.layer = createSelect("layer-select", "Layer", (value) => this.set({ layer: value === "all" ? "all" : Number(value) }));
      this.mode = createSelect("mode-select", "One head, or several together", (value) => this.chooseMode(value));
      this.head = createSelect("head-select", "Head", (value) => this.set({ head: Number(value) }));
      this.sort = createSelect("sort-select", "Order of the heads", (value) => this.set({ sort: value }));
      this.type = createSelect("type-select", "Heads of one type", (value) => this.set({ type: value }));
      this.special = createSelect("special-select", "Special tokens such as [CLS]: shown, folded into one, or hidden and each row divided by what is left of it", (value) => this.context.setAll({ special: value }));
      this.lastLayer = 0;
    }
    /** A single head needs a layer: the one last looked at. */
    chooseMode(mode) {
      const { layer } = this.context.store.get();
      const maps = this.context.scene.parts[this.context.store.get().part].maps ?? {};
      this.set(layer === "all" && !maps[mode] ? { mode, layer: this.lastLayer } : { mode });
    }
    buildToggles() {
      const flip = (key, values) => () => this.context.flip(key, values);
      this.unit = createToggle("unit-toggle", "Pieces or words", ["Pieces", "Words"], flip("unit", ["pieces", "words"]));
      this.colour = createToggle("colour-toggle", "Linear or logarithmic colours", ["Linear", "Log"], flip("colour", ["linear", "log"]), "Colour");
      const meaning = "What a word attends to, or what attends to it";
      this.measure = createToggle("measure-toggle", "Weights, or weights times the length of the value that each key adds", ["Weights", "\xD7 value"], flip("measure", ["weights", "norms"]));
      this.direction = createToggle("direction-toggle", meaning, ["Attends to", "Attended by"], flip("direction", ["from", "to"]));
    }
    buildLimit() {
      const kind = make(
        "select",
        { "data-testid": "limit-kind", "aria-label": "Which lines are drawn", onchange: () => this.changeLimitKind(kind.value) },
        make("option", { value: "top" }, "Strongest"),
        make("option", { value: "threshold" }, "At least")
      );
      const value = make("input", {
        type: "number",
        "data-testid": "limit-value",
        onchange: () => this.changeLimitValue(value)
      });
      this.limitKind = kind;
      this.limitValue = value;
      this.limit = make("div", { class: "limit" }, kind, value);
    }
    changeLimitKind(kind) {
      this.set({ limit: kind === "top" ? { kind, value: 5 } : { kind, value: 0.05 } });
    }
    changeLimitValue(input) {
      const { kind } = this.context.store.get().limit;
      const number = Number(input.value);
      const isValid = input.value !== "" && Number.isFinite(number) && number >= 0;
      const value = kind === "top" ? Math.max(1, Math.round(number)) : number;
      if (isValid) this.set({ limit: { kind, value } });
      this.showLimit(this.context.store.get());
    }
    exportGroup(actions) {
      const button = (name, label, action) => make("button", {
        type: "button",
        class: "segment-button",
        "data-testid": `export-${name}`,
        title: label,
        "aria-label": label,
        onclick: action
      }, name.toUpperCase());
      const labels = { png: "Export the view as PNG", svg: "Export the view as SVG", csv: "Export the weights as CSV" };
      this.exportButtons = Object.entries(labels).map(([name, label]) => ({ label, element: button(name, label, () => actions.save(name)) }));
      const exports = make("div", { class: "export-group", role: "group", "aria-label": "Export" }, icon("download"), ...this.exportButtons.map(({ element }) => element));
      const link = hasAddress() ? [createIconButton("copy-link", "link", "Copy a link to this view", actions.copyLink)] : [];
      return make("div", { class: "controls-end" }, exports, ...link);
    }
    placeExports(exports, actionHost) {
      this.exports = exports;
      const narrow = globalThis.matchMedia?.(NARROW_PAGE);
      const place = () => actionHost && !narrow?.matches ? actionHost.prepend(exports) : this.drawer.append(exports);
      narrow?.addEventListener("change", place);
      this.stopPlacing = () => narrow?.removeEventListener("change", place);
      place();
    }
    /** Moves the keyboard to the export buttons. */
    focusExport() {
      const [{ element }] = this.exportButtons;
      if (!element.offsetParent) this.toggleDrawer();
      element.focus();
    }
    /** Of two columns, which one is exported. */
    nameExports() {
      const column = this.context.exported();
      for (const { label, element } of this.exportButtons) {
        element.title = column ? `${label}, of the ${column} column` : label;
        element.setAttribute("aria-label", element.title);
      }
    }
    update(state) {
      const { scene } = this.context;
      const part = scene.parts[state.part];
      const isWhole = state.layer === "all";
      if (!isWhole) this.lastLayer = state.layer;
      this.part.fill(scene.parts.map(({ label }, index) => ({ value: index, text: capitalised(label) })), state.part);
      this.part.show(scene.parts.length > 1);
      this.layer.fill(layerOptions(scene, state), state.layer);
      this.mode.fill(MODES.map((mode) => ({ value: mode, text: MODE_NAMES[mode], problem: modeProblem(scene, state, mode) })), state.mode);
      const site = scene.sites[part.sites[isWhole ? 0 : state.layer]];
      this.head.fill(headOptions(site), state.head);
      const isMapView = state.view === "map";
      const isSingleHead = state.mode === "head" && !isWhole;
      this.head.select.disabled = !isSingleHead;
      this.head.select.title = isSingleHead ? "Head" : "Several heads are shown together; choose \u201CSingle head\u201D to pick one";
      const hasChoice = [scene, ...this.context.scenes()].some((other) => !hasOneMap(other));
      for (const field of [this.layer, this.mode, this.head]) field.show(hasChoice && !isMapView);
      for (const field of [this.sort, this.type]) field.show(hasChoice && isMapView);
      this.sort.fill(sortOptions(scene, state), state.sort);
      this.type.fill(typeOptions(scene, part), state.type);
      this.showToggles(state);
      this.measure.set(isNormed(scene, state), normsProblem(scene, state));
      this.measure.element.hidden = !hasNorms(scene, state);
      this.direction.set(state.direction === "to");
      this.direction.element.hidden = state.view !== "text";
      this.limit.hidden = state.view !== "lines";
      this.showLimit(state);
    }
    /** What one of two panes can do is offered for both. */
    showToggles(state) {
      const scenes = [this.context.scene, ...this.context.scenes()];
      const states = [state, ...this.context.states()];
      const problem = (applies, text2) => scenes.some(applies) ? null : text2;
      this.unit.set(states.some((other) => other.unit === "words"), problem(hasWords, "It is not known which pieces make a word"));
      this.special.fill(CHOICES.special.map((value) => ({ value, text: SPECIAL_NAMES[value] })), state.special);
      this.special.setProblem(problem(hasSpecial, "There are no special tokens"));
      this.colour.set(state.colour === "log");
      this.nameExports();
    }
    showLimit(state) {
      const { kind, value } = state.limit;
      this.limitKind.value = kind;
      const bounds = kind === "top" ? { min: "1", step: "1" } : { min: "0", step: "0.01" };
      for (const [name, bound] of Object.entries(bounds)) this.limitValue.setAttribute(name, bound);
      this.limitValue.value = String(value);
      this.limitValue.setAttribute("aria-label", kind === "top" ? `How many lines a ${unitName(state)}` : "The smallest weight");
    }
    destroy() {
      this.stopPlacing();
      this.exports.remove();
      this.element.remove();
    }
  };
  function layerOptions(scene, state) {
    const part = scene.parts[state.part];
    const isStored = Object.keys(part.maps ?? {}).length > 0;
    const all = `all ${layersName(scene, part)}s`;
    const whole = { value: "all", text: capitalised(all), problem: isStored ? null : `no map over ${all} was stored` };
    return [whole, ...part.sites.map((_, index) => ({ value: index, text: layerName(scene, state.part, index), problem: null }))];
  }
  function headOptions(site) {
    return Array.from({ length: site?.heads ?? 0 }, (_, head) => {
      const type = site.types?.[head];
      return { value: head, text: type ? `Head ${head} \xB7 ${type}` : `Head ${head}`, problem: null };
    });
  }
  function sortOptions(scene, state) {
    const sites = scene.parts[state.part].sites.map((number) => scene.sites[number]);
    const problems = {
      type: sites.some((site) => site.types) ? null : "types are not known",
      entropy: sites.some((site) => site.entropy) ? null : "not known here",
      distance: sites.some((site) => site.distance) ? null : "queries and keys are different texts",
      pair: state.pair.length ? null : "choose words in the text"
    };
    return CHOICES.sort.map((value) => ({ value, text: SORT_NAMES[value], problem: problems[value] ?? null }));
  }
  function typeOptions(scene, part) {
    const counts = /* @__PURE__ */ new Map();
    for (const number of part.sites) for (const label of scene.sites[number].types ?? []) counts.set(headType(label), (counts.get(headType(label)) ?? 0) + 1);
    const types = [...counts].sort(([, a], [, b]) => b - a).map(([value, count]) => ({ value, text: `${capitalised(value)} (${count})` }));
    return [{ value: "", text: "All types" }, ...types];
  }

  // controls/legend.js
  var MODE_PHRASES = { head: "head", mean: "mean of heads", max: "largest of heads", rollout: "rollout", relevance: "relevance" };
  var BAR = { width: 160, height: 1 };
  function createLegend(host) {
    const bar2 = make("canvas", { class: "legend-bar", width: BAR.width, height: BAR.height, "aria-hidden": "true" });
    const numbers = make("div", { class: "legend-numbers" });
    const element = make("div", { class: "legend", role: "img", "aria-label": "Colour scale", "data-testid": "legend" }, bar2, numbers);
    host.append(element);
    let scale = null;
    return {
      current: () => scale,
      show(peak, signed2, colour, colours, labels = null, isCut = false) {
        const surface = bar2.getContext("2d");
        const stops = [];
        for (let x = 0; x < BAR.width; x += 1) {
          const share = x / (BAR.width - 1);
          surface.fillStyle = weightColour(colours, weightOnBar(share, peak || 1, colour, signed2), peak || 1, colour, signed2);
          surface.fillRect(x, 0, 1, BAR.height);
          if (x % 10 === 0 || x === BAR.width - 1) stops.push(surface.fillStyle);
        }
        const texts = labels ?? (signed2 ? [-peak, 0, peak].map(readableWeight) : [0, 0.5, 1].map((share) => numberOnBar(share, peak, colour, isCut)));
        scale = { stops, texts };
        numbers.replaceChildren(...texts.map((text2) => make("span", {}, text2)));
        element.setAttribute("aria-label", `Colour scale from ${texts[0]} to ${texts[2]}, ${colour === "log" ? "logarithmic" : "linear"}`);
      }
    };
  }
  function numberOnBar(share, peak, colour, isCut) {
    const value = weightAtShare(share, peak, colour);
    if (share === 1 && isCut) return `\u2265 ${readableWeight(value)}`;
    return share === 0 && colour === "log" ? `\u2264 ${readableWeight(value)}` : readableWeight(value);
  }
  function weightOnBar(share, peak, colour, signed2) {
    if (!signed2) return weightAtShare(share, peak, colour);
    const side = Math.abs(2 * share - 1);
    return Math.sign(2 * share - 1) * weightAtShare(side, peak, colour);
  }
  function statusText(scene, state, frame) {
    const part = scene.parts[state.part];
    if (state.view === "map") return mapStatus(scene, part, state);
    const words = [];
    if (scene.parts.length > 1) words.push(part.label);
    const isWhole = state.layer === "all";
    words.push(isWhole ? `all ${layersName(scene, part)}s` : layerName(scene, state.part, state.layer).toLowerCase());
    if (state.mode !== "head") words.push(MODE_PHRASES[state.mode]);
    else words.push(`head ${state.head}`, ...headTypes(scene, part, state));
    if (!frame) return words.join(" \xB7 ");
    words.push(`${frame.rows.labels.length} \xD7 ${frame.columns.labels.length}${state.unit === "words" ? " words" : ""}`);
    if (frame.isRenormalised) words.push("rows renormalised without special tokens");
    if (frame.largest !== null) words.push(`largest ${frame.measure} ${readableWeight(frame.largest)}`);
    if (frame.note) words.push(frame.note.replace(/\.$/, "").replace(/^[A-Z](?=[a-z])/, (letter) => letter.toLowerCase()));
    return words.join(" \xB7 ");
  }
  function headTypes(scene, part, state) {
    const type = scene.sites[part.sites[state.layer]]?.types?.[state.head];
    return type ? [type] : [];
  }
  function mapStatus(scene, part, state) {
    const normed = isNormed(scene, state);
    const renormalised = !normed && dividesRows(scene, state, scene.sites[part.sites[0]]);
    const measure = normed ? MEASURES.norms : renormalised ? MEASURES.shares : MEASURES.weights;
    const notes = [...renormalised ? ["rows renormalised without special tokens"] : [], ...state.colour === "log" ? ["logarithmic colours"] : []];
    const heads = part.sites.reduce((sum, number) => sum + scene.sites[number].heads, 0);
    const counted2 = (count, name) => `${count} ${name}${count === 1 ? "" : "s"}`;
    return `${part.label} \xB7 ${counted2(part.sites.length, layersName(scene, part))} \xB7 ${counted2(heads, "head")} \xB7 ${["each coloured from 0 to its own largest " + measure, ...notes].join(" \xB7 ")}`;
  }

  // data/features.js
  async function pairFeatures(scene, { part, layer, head }, query, key) {
    const site = scene.sites[scene.parts[part].sites[layer]];
    const form = site.maps[head];
    if (form.kind === "factors") return products(scene, form, query, key);
    if (site.features) {
      const group = Math.floor(head * site.features.groups / site.heads);
      return products(scene, site.features, head * site.queries + query, group * site.keys + key);
    }
    if (!scene.loader.remote) return null;
    return scene.loader.remote.floats(`features?${new URLSearchParams({ part, layer, head, mode: "head", row: query, column: key })}`);
  }
  async function products(scene, form, queryRow, keyRow) {
    const [queries, keys] = await Promise.all([scene.loader.read(form.query), scene.loader.read(form.key)]);
    const width = form.query.shape[1];
    return Float32Array.from({ length: width }, (_, feature) => queries[queryRow * width + feature] * keys[keyRow * width + feature] * form.scale);
  }

  // controls/pair_panel.js
  var MOST_BARS = 16;
  function createPairPanel(host, context) {
    const panel = new PairPanel(context);
    host.append(panel.element);
    return panel;
  }
  var PairPanel = class {
    constructor(context) {
      this.context = context;
      this.title = make("p", { class: "pair-title", "data-testid": "pair-title" });
      this.bars = make("ol", { class: "pair-bars", "data-testid": "pair-bars", tabindex: "0", "aria-label": "Features of query and key, the largest first", "data-scrolls": true });
      this.element = make("section", { class: "pair-panel", hidden: true, "aria-label": "Query \xB7 key of the chosen pair", "data-testid": "pair-panel" }, this.title, this.bars);
      this.shown = null;
    }
    hide() {
      this.shown = null;
      this.element.hidden = true;
    }
    async show(frame, state, row, column) {
      const [queries, keys] = [frame.rows.members[row], frame.columns.members[column]];
      const isPair = state.mode === "head" && state.layer !== "all" && queries.length === 1 && keys.length === 1;
      if (!isPair) return this.hide();
      const shown = this.shown = {};
      let [features, weight] = [null, null];
      try {
        weight = await frame.value(row, column);
        features = await pairFeatures(this.context.scene, state, queries[0], keys[0]);
      } catch {
        features = null;
      }
      if (shown !== this.shown) return void 0;
      if (!features) return this.hide();
      this.fill(features, frame.rows.labels[row], frame.columns.labels[column], weight.value === 0);
      return void 0;
    }
    fill(features, query, key, isNothing) {
      const score = features.reduce((total, product) => total + product, 0);
      const order = [...features.keys()].sort((a, b) => Math.abs(features[b]) - Math.abs(features[a]));
      const largest = Math.abs(features[order[0]]) || 1;
      const shown = order.slice(0, MOST_BARS);
      const rest = order.slice(MOST_BARS).reduce((total, feature) => total + features[feature], 0);
      const left = order.length > shown.length ? `, the other ${order.length - shown.length} together ${signed(rest)}` : "";
      const name = isNothing ? ", which is masked or far below others, would be" : ":";
      this.title.replaceChildren("Score of ", make("bdi", {}, visibleLabel(query)), " \u2192 ", make("bdi", {}, visibleLabel(key)), `${name} ${signed(score)}, the sum of query \xD7 key over ${features.length} features${left}`);
      this.bars.replaceChildren(...shown.map((feature) => barOf(feature, features[feature], largest)));
      this.element.hidden = false;
    }
  };
  function barOf(feature, product, largest) {
    const bar2 = make("span", { class: `pair-bar${product < 0 ? " is-negative" : ""}`, "aria-hidden": "true" });
    bar2.style.height = `${Math.max(2, Math.round(34 * Math.abs(product) / largest))}px`;
    return make("li", {}, make("span", { class: "pair-room", "aria-hidden": "true" }, bar2), make("span", { class: "pair-product" }, signed(product)), make("span", { class: "pair-feature" }, `f${feature}`));
  }
  function signed(value) {
    return `${value < 0 ? "\u2212" : "+"}${readableWeight(Math.abs(Number(value.toPrecision(2))))}`;
  }

  // controls/step_slider.js
  var STEP_PAUSE = 650;
  function createStepSlider(host, context) {
    const slider = new StepSlider(host, context);
    return { update: (_frame, state) => slider.update(state), destroy: () => slider.destroy() };
  }
  var StepSlider = class {
    constructor(host, context) {
      this.context = context;
      this.timer = null;
      this.reducedMotion = globalThis.matchMedia?.("(prefers-reduced-motion: reduce)");
      this.play = make("button", { type: "button", class: "slider-play", "data-testid": "step-play", onclick: () => this.press() });
      this.range = make("input", { type: "range", min: 0, step: 1, class: "slider-range", "aria-label": "Step of the generation", "data-testid": "step-slider" });
      this.range.addEventListener("input", () => this.choose(Number(this.range.value)));
      this.range.addEventListener("keydown", (event) => event.key.startsWith("Arrow") && this.stop());
      this.count = make("span", { class: "slider-count" });
      this.token = make("bdi", { class: "slider-token" });
      this.legend = make("span", { class: "slider-legend" }, "written by the model");
      this.element = make("div", { class: "slider", role: "group", "aria-label": "Generation" }, this.play, this.range, this.count, this.token, this.legend);
      host.append(this.element);
      this.update(context.store.get());
    }
    destroy() {
      this.stop();
      this.element.remove();
    }
    update(state) {
      const count = stepCount(this.context.scene, state.part);
      this.element.hidden = count === 0 || state.view === "map";
      if (count === 0) return this.stop();
      const step = Math.min(state.step ?? count, count);
      this.range.min = leastStep(this.context.scene);
      this.range.max = count;
      this.legend.hidden = this.context.scene.steps.prompt === 0;
      this.range.value = step;
      const token = this.tokenOf(state, step);
      this.count.textContent = step === 0 ? "the prompt" : `step ${step} of ${count}`;
      this.token.textContent = token ?? "";
      this.range.setAttribute("aria-valuetext", token === null ? "the prompt" : `step ${step} of ${count}, ${token}`);
      if (this.timer && step === count) this.stop();
      this.showButton();
    }
    // Each step adds one token; the last one in sight is the newest.
    tokenOf(state, step) {
      const { scene } = this.context;
      if (step === 0) return null;
      const site = scene.sites[scene.parts[state.part].sites[0]];
      const token = scene.sequences[site.query_sequence].tokens[scene.steps.prompt + step - 1];
      return token === void 0 ? null : visibleLabel(token);
    }
    choose(step) {
      const count = Number(this.range.max);
      this.context.store.set({ step: step >= count ? null : Math.max(Number(this.range.min), step) });
    }
    // With reduced motion asked for, nothing runs by itself: each press makes one step.
    press() {
      const isAtEnd = Number(this.range.value) >= Number(this.range.max);
      if (this.timer) return this.stop();
      if (this.reducedMotion?.matches) return this.choose(isAtEnd ? 0 : Number(this.range.value) + 1);
      if (isAtEnd) this.choose(0);
      this.timer = setInterval(() => this.choose(Number(this.range.value) + 1), STEP_PAUSE);
      return this.showButton();
    }
    stop() {
      clearInterval(this.timer);
      this.timer = null;
      this.showButton();
    }
    showButton() {
      const isStill = this.reducedMotion?.matches;
      const label = this.timer ? "Pause" : isStill ? "Next step" : "Play the generation";
      if (this.play.getAttribute("aria-label") === label) return;
      this.play.setAttribute("aria-label", label);
      this.play.title = `${label} (g one step on, G one back)`;
      this.play.replaceChildren(icon(this.timer ? "pause" : isStill ? "next" : "play"));
    }
  };

  // controls/tabs.js
  function createTabs(host, context, panelId) {
    const list = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
    const tabs = new Map(VIEWS.map((view, index) => [view, tabOf(context, view, index, panelId)]));
    list.append(...tabs.values());
    list.addEventListener("keydown", (event) => moveFocus(event, [...tabs.values()].filter((tab) => !tab.hidden)));
    host.append(list);
    return {
      update(state) {
        for (const [view, tab] of tabs) {
          tab.hidden = view === "image" && !context.scene.image;
          tab.setAttribute("aria-selected", String(view === state.view));
          tab.tabIndex = view === state.view ? 0 : -1;
        }
      },
      destroy: () => list.remove()
    };
  }
  function tabOf(context, view, index, panelId) {
    return make("button", {
      type: "button",
      class: "tab",
      role: "tab",
      "aria-controls": panelId,
      "data-testid": `view-tab-${view}`,
      title: `${capitalised(view)} (${index + 1})`,
      onclick: () => context.store.set({ view })
    }, capitalised(view));
  }
  function moveFocus(event, tabs) {
    const change = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!change) return;
    event.preventDefault();
    event.stopPropagation();
    const next = tabs[(tabs.indexOf(event.target) + change + tabs.length) % tabs.length];
    next.focus();
    next.click();
  }

  // export/svg.js
  var NOT_IN_XML = /[^\t\n\r\u{20}-\u{D7FF}\u{E000}-\u{FFFD}\u{10000}-\u{10FFFF}]/gu;
  var XML_ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;" };
  function svgEscape(text2) {
    return String(text2).replace(NOT_IN_XML, "").replace(/[&<>"']/g, (character) => XML_ESCAPES[character]);
  }
  function svgDocument(width, height, background, parts) {
    const [across2, down] = [Math.ceil(width), Math.ceil(height)];
    const font = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif"';
    const ground = `<rect width="100%" height="100%" fill="${background}"/>`;
    const size = `width="${across2}" height="${down}" viewBox="0 0 ${across2} ${down}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${font}>${ground}${parts.join("")}</svg>`;
  }
  function underlineAttribute(isWritten) {
    return isWritten ? ' text-decoration="underline"' : "";
  }

  // export/caption.js
  var CAPTION = { margin: 20, line: 17, letter: 6.3, least: 460 };
  var SCALE = { width: 160, height: 8, room: 44 };
  function captionedSvg(svg, title, text2, scale, colours) {
    const [, width, height] = svg.match(/width="(\d+)" height="(\d+)"/).map(Number);
    const across2 = Math.max(width, CAPTION.least);
    const lines = [title, ...wrappedLines(text2, (across2 - 2 * CAPTION.margin) / CAPTION.letter)];
    const top = height + CAPTION.margin + (scale ? SCALE.room : 0);
    const parts = [svg, scale ? scaleAsSvg(scale, height + CAPTION.margin, colours) : ""];
    lines.forEach((line, index) => {
      const look = index === 0 ? `font-weight="600" fill="${colours.ink}"` : `fill="${colours.muted}"`;
      parts.push(`<text x="${CAPTION.margin}" y="${top + index * CAPTION.line}" font-size="12" ${look}>${svgEscape(line)}</text>`);
    });
    return svgDocument(across2, top + lines.length * CAPTION.line + 4, colours.surface, parts);
  }
  function scaleAsSvg({ stops, texts }, y, colours) {
    const steps = stops.map((colour, index) => `<stop offset="${index / (stops.length - 1)}" stop-color="${colour}"/>`).join("");
    const gradient = `<defs><linearGradient id="regard-scale">${steps}</linearGradient></defs>`;
    const bar2 = `<rect x="${CAPTION.margin}" y="${y}" width="${SCALE.width}" height="${SCALE.height}" rx="3" fill="url(#regard-scale)"/>`;
    const anchors = ["start", "middle", "end"];
    const numbers = texts.map((number, index) => {
      const x = CAPTION.margin + SCALE.width * index / (texts.length - 1);
      return `<text x="${x}" y="${y + SCALE.height + 13}" font-size="11" text-anchor="${texts.length === 3 ? anchors[index] : anchors[2 * index]}" fill="${colours.muted}">${svgEscape(number)}</text>`;
    });
    return gradient + bar2 + numbers.join("");
  }
  function wrappedLines(text2, lineLength) {
    const lines = [];
    for (const word of text2.split(" ")) {
      const last = lines.at(-1);
      if (last === void 0 || last.length + word.length >= lineLength) lines.push(word);
      else lines[lines.length - 1] = `${last} ${word}`;
    }
    return lines;
  }

  // export/files.js
  var PNG_SCALE = 2;
  var ROWS_BETWEEN_PAUSES = 32;
  function exportName(state, scene, extension, measure = null) {
    const parts = ["regard"];
    const part = scene.parts[state.part];
    if (part && scene.parts.length > 1) parts.push(part.name);
    const isAllHeads = state.view === "map" && !extension.endsWith("csv");
    parts.push(...isAllHeads ? [] : weightsName(state, scene, part), ...measure ? [measure] : [], state.view);
    return `${parts.map(fileNamePart).filter(Boolean).join("-")}.${extension}`;
  }
  function weightsName(state, scene, part) {
    const whole = state.layer === "all" || state.mode === "rollout" || state.mode === "relevance";
    if (whole) return [state.mode];
    const site = scene.sites[part.sites[state.layer]];
    const layer = site?.label ?? `layer${site?.layer ?? state.layer}`;
    return [layer, state.mode === "head" ? `head${state.head}` : state.mode];
  }
  function fileNamePart(word) {
    return String(word).toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  }
  function downloadBlob(blob, name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 6e4);
  }
  function exportSvg(svg, state, scene) {
    downloadBlob(new Blob([svg], { type: "image/svg+xml" }), exportName(state, scene, "svg"));
  }
  async function exportPng(svg, state, scene) {
    downloadBlob(await rasterise(svg), exportName(state, scene, "png"));
  }
  async function rasterise(svg) {
    const picture = new Image();
    picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
    await picture.decode();
    const canvas = document.createElement("canvas");
    canvas.width = picture.width * PNG_SCALE;
    canvas.height = picture.height * PNG_SCALE;
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    return new Promise((resolve, reject) => {
      canvas.toBlob((blob) => blob ? resolve(blob) : reject(new Error("the picture is too large for a PNG")), "image/png");
    });
  }
  async function exportCsv(frame, state, scene, progress) {
    const rows = shownRows(frame, state);
    const keyFields = frame.columns.labels.map((label, column) => `${column},${csvField(label)}`);
    const measure = frame.measure.replace("\xD7", "times");
    const parts = [`query,query_token,key,key_token,${measure.replaceAll(" ", "_")}\r
`];
    for (const [done, row] of rows.entries()) {
      parts.push(csvRow(row, csvField(frame.rows.labels[row]), keyFields, await frame.row(row)));
      if (done % ROWS_BETWEEN_PAUSES === 0) {
        progress(done, rows.length);
        await new Promise((resume) => setTimeout(resume));
      }
    }
    progress(rows.length, rows.length);
    const extension = frame.partial ? "stored.csv" : "csv";
    downloadBlob(new Blob(parts, { type: "text/csv;charset=utf-8" }), exportName(state, scene, extension, measure === MEASURES.weights ? null : measure));
  }
  function csvRow(row, rowField, keyFields, weights) {
    let text2 = "";
    for (let column = 0; column < keyFields.length; column += 1) {
      if (!Number.isNaN(weights[column])) text2 += `${row},${rowField},${keyFields[column]},${shortestFloat(weights[column])}\r
`;
    }
    return text2;
  }
  function shownRows(frame, state) {
    const count = frame.rows.labels.length;
    const all = Array.from({ length: count }, (_, row) => row);
    if (state.view === "matrix" && state.zoom) {
      const [first, , last] = state.zoom;
      return all.filter((row) => row + 1 > first && row < last);
    }
    const isByRow = ["lines", "image"].includes(state.view) && state.direction === "from";
    const chosen = isByRow ? state.selected.filter((row) => row < count) : [];
    if (chosen.length) return [...chosen].sort((a, b) => a - b);
    return state.view === "lines" ? all.filter((row) => !state.hidden.includes(row)) : all;
  }
  function csvField(text2) {
    const safe = /^[=+\-@\t\r]/.test(text2) ? `'${text2}` : text2;
    return safe !== text2 || /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  }

  // drawing/canvas.js
  function fitCanvas(canvas, width, height) {
    if (canvas.width !== width) canvas.width = width;
    if (canvas.height !== height) canvas.height = height;
  }

  // views/image/elements.js
  function buildImage(image) {
    const picture = make("img", { class: "image-picture", alt: "", src: image.source, draggable: "false" });
    const canvas = make("canvas", { class: "image-canvas", tabindex: 0, role: "application", "aria-roledescription": "picture of patches", "data-testid": "image-canvas" });
    const frame = make("div", { class: "image-frame" }, picture, canvas);
    frame.style.aspectRatio = `${image.width} / ${image.height}`;
    frame.style.maxWidth = `min(100%, max(280px, calc((100cqh - 40px) * ${image.width / image.height})))`;
    const direction = imageSegments("What is shown", [["from", "Looks at"], ["to", "Is looked at by"]]);
    const grain = imageSegments("Colour layer", [["smooth", "Smooth"], ["blocks", "Blocks"]]);
    const opacity = make("input", { type: "range", min: 0, max: 100, value: 60, "data-testid": "image-opacity" });
    const strength = make("label", { class: "image-opacity" }, make("span", {}, "Opacity"), opacity);
    const tools = make("div", { class: "image-tools" }, direction.element, grain.element, strength);
    const title = make("p", { class: "image-title" });
    const facts = make("ul", { class: "image-facts" });
    const legend = buildLegend();
    const chipsLabel = make("p", { class: "image-chips-label" });
    const chips = make("div", { class: "image-chips", role: "group", "aria-label": "Tokens without a patch" });
    const panel = make("div", { class: "image-panel" }, title, legend.element, facts, tools, chipsLabel, chips);
    const message = make("p", { class: "image-message", hidden: true }, "Neither side of this attention is made of patches of the picture. Choose another part or layer.");
    const body = make("div", { class: "image-body" }, message, frame, panel);
    const root = make("div", { class: "image-view", role: "group", "aria-label": "Attention over the picture", "data-scrolls": true }, body);
    return { root, picture, canvas, frame, direction, grain, opacity, title, facts, legend, chipsLabel, chips, panel, message };
  }
  function imageSegments(label, choices) {
    const buttons = choices.map(([value, name]) => make("button", { type: "button", class: "image-tool", "data-value": value, "data-testid": `image-${value}`, "aria-pressed": "false" }, name));
    const element = make("div", { class: "image-segments", role: "group", "aria-label": label }, ...buttons);
    const show = (value) => buttons.forEach((button) => button.setAttribute("aria-pressed", button.dataset.value === value));
    const listen = (chosen) => buttons.forEach((button) => button.addEventListener("click", () => chosen(button.dataset.value)));
    return { element, show, listen };
  }
  function buildLegend() {
    const bar2 = make("canvas", { class: "image-legend-bar", width: 256, height: 1, "aria-hidden": "true" });
    const least = make("span", {}, "0");
    const most = make("span", {});
    const element = make("div", { class: "image-legend" }, least, bar2, most);
    return { element, bar: bar2, least, most };
  }
  function tokenChip(token, label, isChosen, hasTabStop) {
    const chip = make("button", { type: "button", class: "image-chip", "data-token": token, "data-testid": `image-token-${token}`, "aria-pressed": String(isChosen), tabindex: hasTabStop ? 0 : -1 });
    chip.append(make("bdi", {}, visibleLabel(label)));
    return chip;
  }

  // views/image/patches.js
  function pictureSides(scene, state) {
    const part = scene.parts[state.part];
    const site = scene.sites[part.sites[state.layer === "all" ? 0 : state.layer]];
    const [query, key] = [gridOf(scene, site.query_sequence), gridOf(scene, site.key_sequence)];
    if (!query && !key) return null;
    const isOnPicture = Boolean(query && key && query.rows === key.rows && query.columns === key.columns);
    const chooses = isOnPicture ? state.direction : key ? "from" : "to";
    return { direction: chooses, isOnPicture, grid: key ?? query };
  }
  function gridOf(scene, sequence) {
    const { image } = scene;
    const own = image.grids?.find((grid) => grid.sequence === sequence);
    if (own) return own;
    const patches = scene.sequences[image.sequence].tokens;
    const { tokens } = scene.sequences[sequence];
    const isPatches = sequence === image.sequence || tokens.length === patches.length && tokens.every((token, place) => token === patches[place]);
    return isPatches ? image : null;
  }
  function patchTokens(image, axis) {
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
  function patchWeights(tokens, weights) {
    return Float32Array.from(tokens, (token) => token < 0 ? 0 : weights[token]);
  }
  function meanWeights(rows) {
    if (rows.length === 1) return rows[0];
    return rows[0].map((_, place) => rows.reduce((sum, row) => sum + row[place], 0) / rows.length);
  }
  function patchPixels(values, image, colours, scale) {
    const pixels = new ImageData(image.columns, image.rows);
    const table = scale.isSigned ? colours.diverging : colours.lut;
    values.forEach((value, patch) => {
      const share = scaleShare(Math.abs(value) || 0, scale.peak, scale.mode);
      const index = scale.isSigned ? Math.round(127.5 + (value < 0 ? -127.5 : 127.5) * share) : Math.round(255 * share);
      pixels.data.set([table[3 * index], table[3 * index + 1], table[3 * index + 2], 255 * scale.opacity * (1 - 0.35 * share)], 4 * patch);
    });
    return pixels;
  }
  function paintPatches(surface, pixels, width, height, isSmooth) {
    const small = document.createElement("canvas");
    small.width = pixels.width;
    small.height = pixels.height;
    small.getContext("2d").putImageData(pixels, 0, 0);
    surface.clearRect(0, 0, width, height);
    surface.imageSmoothingEnabled = isSmooth;
    surface.imageSmoothingQuality = "high";
    surface.drawImage(small, 0, 0, width, height);
  }
  function outlinePatch(surface, box, colour, width) {
    surface.lineWidth = width + 2;
    surface.strokeStyle = "rgba(0,0,0,0.65)";
    surface.strokeRect(box.x, box.y, box.width, box.height);
    surface.lineWidth = width;
    surface.strokeStyle = colour;
    surface.strokeRect(box.x, box.y, box.width, box.height);
  }
  function crossThrough(surface, box, width, height) {
    surface.fillStyle = "rgba(255,255,255,0.55)";
    const [x, y] = [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2)];
    surface.fillRect(0, y, box.x, 1);
    surface.fillRect(box.x + box.width, y, width, 1);
    surface.fillRect(x, 0, 1, box.y);
    surface.fillRect(x, box.y + box.height, 1, height);
  }
  function patchBox(image, patch, width, height) {
    const [across2, down] = [width / image.columns, height / image.rows];
    return { x: patch % image.columns * across2, y: Math.floor(patch / image.columns) * down, width: across2, height: down };
  }
  function patchName(image, patch) {
    return `Patch row ${Math.floor(patch / image.columns) + 1}, column ${patch % image.columns + 1}`;
  }

  // views/image/image_view.js
  var PATCH_ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  function createImageView(host, context) {
    let view = new ImageView(host, context);
    const move = (key) => () => view.move(...PATCH_ARROWS[key]);
    const follow = (frame, state) => {
      if (context.scene.image !== view.image) {
        view.destroy();
        view = new ImageView(host, context);
      }
      return view.update(frame, state);
    };
    return {
      update: follow,
      picture: () => ({ svg: view.picture() }),
      resize: () => view.paint(),
      focus: () => view.parts.canvas.focus(),
      destroy: () => view.destroy(),
      keys: Object.fromEntries(Object.keys(PATCH_ARROWS).map((key) => [key, move(key)]))
    };
  }
  var ImageView = class {
    constructor(host, context) {
      this.context = context;
      this.image = context.scene.image;
      this.grid = this.image;
      this.parts = buildImage(this.image);
      this.isSmooth = false;
      this.cursor = null;
      this.listen();
      host.append(this.parts.root);
      this.observer = new ResizeObserver(() => this.paint());
      this.observer.observe(this.parts.frame);
    }
    destroy() {
      this.observer.disconnect();
      this.parts.root.remove();
    }
    listen() {
      const { canvas, chips, direction, grain, opacity } = this.parts;
      canvas.addEventListener("pointermove", (event) => this.point(this.patchAt(event), event));
      canvas.addEventListener("pointerleave", () => this.point(null));
      canvas.addEventListener("blur", () => this.point(null));
      canvas.addEventListener("click", (event) => this.choosePatch(this.patchAt(event), event.shiftKey || event.ctrlKey || event.metaKey));
      canvas.addEventListener("keydown", (event) => this.press(event));
      chips.addEventListener("click", (event) => this.clickChip(event));
      chips.addEventListener("keydown", (event) => this.pressChip(event));
      direction.listen((value) => this.context.store.set({ direction: value, selected: this.chosen }));
      grain.listen((value) => {
        this.isSmooth = value === "smooth";
        this.paint();
      });
      opacity.addEventListener("input", () => this.paint());
    }
    async update(frame, state) {
      this.frame = frame;
      this.state = state;
      this.sides = pictureSides(this.context.scene, state);
      const { message, frame: box, panel, direction } = this.parts;
      message.hidden = this.sides !== null;
      box.hidden = panel.hidden = this.sides === null;
      if (!this.sides) return;
      this.grid = this.sides.grid;
      const isFrom = this.sides.direction === "from";
      this.chosenAxis = isFrom ? frame.rows : frame.columns;
      this.patchAxis = isFrom ? frame.columns : frame.rows;
      this.patches = patchTokens(this.grid, this.patchAxis);
      this.chooserPatches = this.sides.isOnPicture ? patchTokens(this.grid, this.chosenAxis) : { tokens: [], elsewhere: [...this.chosenAxis.labels.keys()] };
      this.chosen = this.chosenTokens();
      direction.element.hidden = !this.sides.isOnPicture;
      direction.show(this.sides.direction);
      this.listChips();
      await this.load(frame, isFrom);
    }
    // Selected tokens are rows or columns, as the direction says; a token without a place, such as a class token, comes first.
    chosenTokens() {
      const { selected, direction } = this.state;
      const count = this.chosenAxis.labels.length;
      const chosen = direction === this.sides.direction ? selected.filter((token) => token < count) : [];
      if (chosen.length) return chosen;
      const middle = Math.floor(this.grid.rows / 2) * this.grid.columns + Math.floor(this.grid.columns / 2);
      return [this.chooserPatches.elsewhere[0] ?? this.chooserPatches.tokens[middle] ?? 0];
    }
    async load(frame, isFrom) {
      const { chosen } = this;
      const rows = await Promise.all(chosen.map((token) => isFrom ? frame.row(token) : frame.column(token)));
      if (frame !== this.frame || chosen !== this.chosen) return;
      this.weights = meanWeights(rows);
      this.values = patchWeights(this.patches.tokens, this.weights);
      this.peak = this.values.reduce((most, value) => Math.abs(value) > most ? Math.abs(value) : most, 0);
      this.paint();
      this.describe();
    }
    // A picture has its own ground, so the scale for dark pages serves on both: bright is strong.
    colours() {
      return palette("dark");
    }
    paint() {
      const { canvas, grain } = this.parts;
      if (!this.values || !canvas.clientWidth) return;
      const scale = window.devicePixelRatio || 1;
      const [width, height] = [canvas.clientWidth, canvas.clientHeight];
      fitCanvas(canvas, Math.round(width * scale), Math.round(height * scale));
      const surface = canvas.getContext("2d");
      surface.setTransform(scale, 0, 0, scale, 0, 0);
      this.paintLayer(surface, width, height, this.strength());
      this.parts.picture.style.filter = `saturate(${this.saturation()})`;
      const { highlight } = this.colours();
      for (const patch of this.chosenPatches()) outlinePatch(surface, patchBox(this.grid, patch, width, height), highlight, 2.5);
      if (this.cursor !== null) {
        const box = patchBox(this.grid, this.cursor, width, height);
        crossThrough(surface, box, width, height);
        outlinePatch(surface, box, "#ffffff", 1.5);
      }
      grain.show(this.isSmooth ? "smooth" : "blocks");
      this.paintLegend();
    }
    strength() {
      return Number(this.parts.opacity.value) / 100;
    }
    // The picture pales under the layer, so that its own colours are not taken for weights.
    saturation() {
      return (1 - 0.75 * this.strength()).toFixed(2);
    }
    paintLayer(surface, width, height, opacity) {
      const scale = { peak: this.peak, mode: this.state.colour, isSigned: this.frame.signed, opacity };
      paintPatches(surface, patchPixels(this.values, this.grid, this.colours(), scale), width, height, this.isSmooth);
    }
    paintLegend() {
      const { bar: bar2, least, most } = this.parts.legend;
      const table = this.frame.signed ? this.colours().diverging : this.colours().lut;
      const pixels = new ImageData(256, 1);
      for (let index = 0; index < 256; index += 1) pixels.data.set([table[3 * index], table[3 * index + 1], table[3 * index + 2], 255], 4 * index);
      bar2.getContext("2d").putImageData(pixels, 0, 0);
      const lowest = this.frame.signed ? -this.peak : this.state.colour === "log" ? this.peak * 1e-4 : 0;
      least.textContent = readableWeight(lowest);
      most.textContent = readableWeight(this.peak);
    }
    chosenPatches() {
      const chosen = new Set(this.chosen);
      return [...this.chooserPatches.tokens.keys()].filter((patch) => chosen.has(this.chooserPatches.tokens[patch]));
    }
    // What is shown, and the weight that lies on no patch: a picture alone would hide it.
    describe() {
      const { title, facts, canvas } = this.parts;
      const verb = this.frame.isGate ? "" : this.sides.direction === "from" ? " looks at" : " is looked at by";
      const name = this.chosen.length === 1 ? this.nameOf(this.chosen[0]) : `mean of ${this.chosen.length} ${unitName(this.state)}s`;
      title.replaceChildren(make("bdi", { class: "image-name" }, name), verb);
      const strongest2 = this.values.reduce((best, value, patch) => Math.abs(value) > Math.abs(this.values[best] || 0) ? patch : best, 0);
      const entries = [[patchName(this.grid, strongest2), this.values[strongest2], this.isStrongestKnown(strongest2) ? "strongest" : "strongest that is stored"]];
      for (const token of this.strongestElsewhere()) entries.push([visibleLabel(this.patchAxis.labels[token]), this.weights[token], "not on the picture"]);
      facts.replaceChildren(...entries.map(factLine));
      canvas.setAttribute("aria-label", `${name}${verb || " over"} the picture; strongest ${entries[0][0]}, ${readableWeight(entries[0][1])}. Arrow keys move the patch.`);
    }
    /** Whether no patch whose weight is not stored may have a larger one. */
    isStrongestKnown(patch) {
      if (!this.frame.partial) return true;
      const side = this.sides.direction === "from" ? "row" : "column";
      return this.chosen.length === 1 && Math.abs(this.values[patch]) >= this.frame.highest(side, this.chosen[0]);
    }
    strongestElsewhere() {
      const size = (token) => Math.abs(this.weights[token]) || 0;
      return [...this.patches.elsewhere].sort((a, b) => size(b) - size(a)).slice(0, 3);
    }
    nameOf(token) {
      const patch = this.chooserPatches.tokens.indexOf(token);
      return patch >= 0 ? patchName(this.grid, patch) : visibleLabel(this.chosenAxis.labels[token]);
    }
    listChips() {
      const { chips, chipsLabel } = this.parts;
      const { elsewhere } = this.chooserPatches;
      chipsLabel.textContent = this.sides.isOnPicture ? "Without a place on the picture" : `Choose the ${unitName(this.state)} ${this.sides.direction === "from" ? "that looks" : "looked at"}`;
      chipsLabel.hidden = chips.hidden = elsewhere.length === 0 || this.frame.isGate;
      const hadFocus = chips.contains(document.activeElement);
      const stop = elsewhere.find((token) => this.chosen.includes(token)) ?? elsewhere[0];
      chips.replaceChildren(...elsewhere.map((token) => tokenChip(token, this.chosenAxis.labels[token], this.chosen.includes(token), token === stop)));
      if (hadFocus) chips.querySelector('[tabindex="0"]')?.focus();
    }
    choose(token, isAdding = false) {
      const others = this.chosen.filter((other) => other !== token);
      const isTaken = others.length < this.chosen.length;
      const selected = isAdding && isTaken && others.length ? others : isAdding ? [...others, token] : [token];
      this.context.store.set({ selected: selected.sort((a, b) => a - b), direction: this.sides.direction });
    }
    choosePatch(patch, isAdding) {
      const token = this.chooserPatches.tokens[patch] ?? -1;
      if (token >= 0) this.choose(token, isAdding);
    }
    clickChip(event) {
      const chip = event.target.closest("[data-token]");
      if (chip) this.choose(Number(chip.dataset.token), event.shiftKey || event.ctrlKey || event.metaKey);
    }
    pressChip(event) {
      const distance = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }[event.key];
      const index = this.chooserPatches.elsewhere.indexOf(Number(event.target.dataset?.token));
      if (!distance || index < 0) return;
      const next = this.chooserPatches.elsewhere[index + distance];
      if (next !== void 0) this.choose(next);
      event.preventDefault();
      event.stopPropagation();
    }
    press(event) {
      if (!PATCH_ARROWS[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
      this.move(...PATCH_ARROWS[event.key]);
      event.preventDefault();
      event.stopPropagation();
    }
    // The keyboard moves the patch that looks; where patches do not choose, it moves the crosshair.
    move(down, across2) {
      const { rows, columns } = this.grid;
      const middle = Math.floor(rows / 2) * columns + Math.floor(columns / 2);
      const from = this.sides.isOnPicture ? this.chosenPatches()[0] : this.cursor;
      const patch = from === void 0 || from === null ? middle : neighbourPatch(from, down, across2, rows, columns);
      if (this.sides.isOnPicture) {
        this.choosePatch(patch, false);
        this.context.announce(patchName(this.grid, patch));
        return;
      }
      const box = patchBox(this.grid, patch, this.parts.canvas.clientWidth, this.parts.canvas.clientHeight);
      const corner = this.parts.canvas.getBoundingClientRect();
      this.point(patch, { clientX: corner.x + box.x + box.width, clientY: corner.y + box.y + box.height });
      this.context.announce(`${patchName(this.grid, patch)}, ${readableWeight(this.values[patch])}`);
    }
    patchAt(event) {
      const box = this.parts.canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - box.x) / box.width * this.grid.columns);
      const row = Math.floor((event.clientY - box.y) / box.height * this.grid.rows);
      const isInside = column >= 0 && row >= 0 && column < this.grid.columns && row < this.grid.rows;
      return isInside ? row * this.grid.columns + column : null;
    }
    async point(patch, event) {
      const isNew = patch !== this.cursor;
      this.cursor = patch;
      if (isNew) this.paint();
      if (patch === null || !this.values) return this.context.tooltip.hide();
      const weight = await this.exactWeight(patch);
      if (patch === this.cursor) this.context.tooltip.show(event.clientX, event.clientY, [patchName(this.grid, patch), { text: measuredWeight(this.frame, weight), kind: "number" }]);
    }
    exactWeight(patch) {
      const token = this.patches.tokens[patch];
      if (this.chosen.length > 1 || token < 0) return { value: this.values[patch], exact: this.frame.exact };
      return this.sides.direction === "from" ? this.frame.value(this.chosen[0], token) : this.frame.value(token, this.chosen[0]);
    }
    picture() {
      const colours = this.context.palette();
      const { canvas, title } = this.parts;
      const [width, height] = [canvas.clientWidth, canvas.clientHeight];
      this.cursor = null;
      this.paint();
      const place = `x="16" y="16" width="${width}" height="${height}" preserveAspectRatio="none"`;
      return svgDocument(width + 32, height + 60, colours.surface, [
        `<filter id="pale"><feColorMatrix type="saturate" values="${this.saturation()}"/></filter>`,
        `<image ${place} filter="url(#pale)" href="${svgEscape(this.image.source)}"/>`,
        `<image ${place} href="${canvas.toDataURL("image/png")}"/>`,
        `<text x="16" y="${height + 42}" font-size="14" fill="${colours.ink}">${svgEscape(title.textContent)}</text>`,
        `<text x="${width + 16}" y="${height + 42}" font-size="12" text-anchor="end" fill="${colours.muted}">largest ${svgEscape(readableWeight(this.peak))}</text>`
      ]);
    }
  };
  function neighbourPatch(patch, down, across2, rows, columns) {
    const row = Math.min(Math.max(Math.floor(patch / columns) + down, 0), rows - 1);
    const column = Math.min(Math.max(patch % columns + across2, 0), columns - 1);
    return row * columns + column;
  }
  function factLine([name, weight, note]) {
    const number = make("span", { class: "image-fact-weight" }, readableWeight(weight));
    return make("li", {}, make("bdi", {}, name), number, make("span", { class: "image-fact-note" }, note));
  }

  // views/lines/elements.js
  function buildLines() {
    const pin = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-pin", "aria-pressed": "false", title: "Keep the selected lines while the pointer moves (Enter)" }, "Pin");
    const clear = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-clear", title: "Select nothing (Escape)" }, "Clear");
    const hint = make("p", { class: "lines-hint" });
    const hiddenList = make("span", { class: "lines-chips" });
    const showAll = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-show-all" }, "Show all");
    const hidden = make("div", { class: "lines-hidden", "data-testid": "lines-hidden", hidden: true }, make("span", {}, "Hidden"), hiddenList, showAll);
    const captions = { left: make("span", { class: "lines-caption" }), right: make("span", { class: "lines-caption" }) };
    const roles = { left: make("span", { class: "lines-role" }), right: make("span", { class: "lines-role" }) };
    const heads = make("div", { class: "lines-heads" });
    const canvas = make("canvas", { class: "lines-canvas", "aria-hidden": "true" });
    const beyond = { above: beyondButton("above"), below: beyondButton("below") };
    const stage = make("div", { class: "lines-stage" }, beyond.above, beyond.below);
    const space = make("div", { class: "lines-space" }, stage);
    const scroller = make("div", { class: "lines-scroller" }, space);
    const compare = make("button", { type: "button", class: "lines-tool", "data-testid": "lines-compare", title: "Keep the lines of this head while another one is chosen" }, "Keep head");
    const headList = make("div", { class: "lines-heads-list", "data-testid": "lines-heads", role: "group", "aria-label": "Heads in colours", hidden: true });
    const bar2 = make("div", { class: "lines-bar" }, hint, compare, pin, clear);
    const root = make("div", { class: "lines-view", role: "group", "data-testid": "lines-view" }, bar2, headList, hidden, heads, scroller);
    return { root, hint, compare, headList, pin, clear, hidden, hiddenList, showAll, captions, roles, heads, canvas, stage, beyond, space, scroller };
  }
  function columnHead(role, caption) {
    return make("div", { class: "lines-head" }, role, caption);
  }
  function beyondButton(way) {
    return make("button", { type: "button", class: `lines-beyond lines-beyond-${way}`, "data-testid": `lines-${way}`, title: "Go to the strongest link out of sight", hidden: true });
  }
  function headChip(place, name, colour) {
    const mark = make("span", { class: "lines-head-mark", "aria-hidden": "true" });
    mark.style.background = colour;
    if (place === null) return make("span", { class: "lines-head-chip" }, mark, name);
    const cross = make("span", { "aria-hidden": "true" }, "\xD7");
    return make("button", { type: "button", class: "lines-head-chip", "data-drops": place, "aria-label": `Take away ${name}` }, mark, name, cross);
  }
  function hiddenChip({ number, label }) {
    const name = make("bdi", {}, visibleLabel(label));
    const cross = make("span", { "aria-hidden": "true" }, "\xD7");
    return make("button", { type: "button", class: "lines-chip", "data-shows": number, "aria-label": `Show ${visibleLabel(label)} again` }, name, cross);
  }

  // views/lines/links.js
  var MOST_LINES = 2e3;
  var MOST_WHILE_SCROLLING = 600;
  var LINE_LEVELS = 48;
  var ONE_PATH = 24;
  var SMALL_LIST = 64;
  function strongest(weights, limit, isHidden, most) {
    const count = limit.kind === "top" ? Math.min(limit.value, most) : most;
    const floor = limit.kind === "threshold" ? limit.value : 0;
    return count <= SMALL_LIST ? strongestFew(weights, floor, count, isHidden) : strongestMany(weights, floor, count, isHidden);
  }
  function strongestFew(weights, floor, count, isHidden) {
    const indices = [];
    for (let index = 0; index < weights.length; index += 1) {
      const size = Math.abs(weights[index]);
      if (!(size > 0) || size < floor || isHidden[index]) continue;
      if (indices.length === count && size <= Math.abs(weights[indices[count - 1]])) continue;
      let place = indices.length === count ? count - 1 : indices.length;
      while (place > 0 && Math.abs(weights[indices[place - 1]]) < size) {
        indices[place] = indices[place - 1];
        place -= 1;
      }
      if (count > 0) indices[place] = index;
    }
    return indices;
  }
  function strongestMany(weights, floor, count, isHidden) {
    const indices = [];
    for (let index = 0; index < weights.length; index += 1) {
      const size = Math.abs(weights[index]);
      if (size > 0 && size >= floor && !isHidden[index]) indices.push(index);
    }
    return indices.sort((a, b) => Math.abs(weights[b]) - Math.abs(weights[a])).slice(0, count);
  }
  function allLinks(rows, rowWeights, limit, isHidden) {
    const from = [];
    const to = [];
    const weight = [];
    for (const row of rows) {
      const weights = rowWeights(row);
      if (!weights) continue;
      for (const column of strongest(weights, limit, isHidden, SMALL_LIST)) {
        from.push(row);
        to.push(column);
        weight.push(weights[column]);
      }
    }
    return { from, to, weight };
  }
  function linksAt(links, rows, columns) {
    links.byRow ??= indicesByEnd(links.from);
    links.byColumn ??= indicesByEnd(links.to);
    const matches = /* @__PURE__ */ new Set();
    for (const row of rows) for (const index of links.byRow.get(row) ?? []) matches.add(index);
    for (const column of columns) for (const index of links.byColumn.get(column) ?? []) matches.add(index);
    const indices = [...matches];
    const pick = (values) => indices.map((index) => values[index]);
    return { from: pick(links.from), to: pick(links.to), weight: pick(links.weight) };
  }
  function indicesByEnd(ends) {
    const indices = /* @__PURE__ */ new Map();
    ends.forEach((end, index) => indices.has(end) ? indices.get(end).push(index) : indices.set(end, [index]));
    return indices;
  }
  function placedLinks(links, geometry, peak, colourMode, most = MOST_LINES) {
    const placed = [];
    const { height } = geometry;
    for (let index = 0; index < links.from.length; index += 1) {
      const start = geometry.leftMiddle(links.from[index]);
      const end = geometry.rightMiddle(links.to[index]);
      if (start === null || end === null || isOutside(start, height) && isOutside(end, height)) continue;
      const weight = links.weight[index];
      const strength = scaleShare(Math.abs(weight), peak, colourMode);
      const thickness = scaleShare(Math.abs(weight), peak, "linear");
      placed.push({ start: squeezedEnd(start, height), end: squeezedEnd(end, height), strength, thickness, isNegative: weight < 0 });
    }
    placed.sort((a, b) => a.strength - b.strength);
    return { lines: placed.slice(-most), leftOut: Math.max(0, placed.length - MOST_LINES) };
  }
  function isOutside(middle, height) {
    return middle < 0 || middle > height;
  }
  function squeezedEnd(middle, height) {
    const reach = height * 0.7;
    if (middle < 0) return -reach * (1 - Math.exp(middle / reach));
    if (middle > height) return height + reach * (1 - Math.exp((height - middle) / reach));
    return middle;
  }
  function lineStyle(palette2, { strength, thickness, isNegative }, isSigned, only) {
    const table = isSigned ? palette2.diverging : palette2.lut;
    const reach = 0.42 + 0.58 * strength ** 0.7;
    const index = isSigned ? Math.round(127.5 + (isNegative ? -127.5 : 127.5) * reach) : Math.round(255 * reach);
    const colour = only ?? `rgb(${table[3 * index]},${table[3 * index + 1]},${table[3 * index + 2]})`;
    return { colour, opacity: 0.14 + 0.8 * strength ** 0.6, width: 0.8 + 3.6 * thickness };
  }
  function linesByStyle(lines) {
    const groups = [];
    for (const line of lines) {
      const level = (share) => Math.round(share * LINE_LEVELS);
      const look = `${level(line.strength)} ${level(line.thickness)} ${line.isNegative}`;
      const last = groups.at(-1);
      if (last?.look === look && last.lines.length < ONE_PATH) last.lines.push(line);
      else groups.push({ look, lines: [line] });
    }
    return groups;
  }
  function drawLines(surface, lines, geometry, palette2, isSigned, only = null) {
    const { left, right } = geometry;
    const middle = (left + right) / 2;
    for (const group of linesByStyle(lines)) {
      const style = lineStyle(palette2, group.lines[0], isSigned, only);
      surface.strokeStyle = style.colour;
      surface.globalAlpha = style.opacity;
      surface.lineWidth = style.width;
      surface.beginPath();
      for (const { start, end } of group.lines) {
        surface.moveTo(left, start);
        surface.bezierCurveTo(middle, start, middle, end, right, end);
      }
      surface.stroke();
    }
    surface.globalAlpha = 1;
  }
  function fadeEdges(surface, width, height, above, below) {
    const depth = Math.min(56, height / 4);
    surface.globalCompositeOperation = "destination-out";
    if (above) fadeEdge(surface, width, 0, depth);
    if (below) fadeEdge(surface, width, height, height - depth);
    surface.globalCompositeOperation = "source-over";
  }
  function fadeEdge(surface, width, edge, inner) {
    const fade = surface.createLinearGradient(0, edge, 0, inner);
    fade.addColorStop(0, "rgba(0,0,0,1)");
    fade.addColorStop(1, "rgba(0,0,0,0)");
    surface.fillStyle = fade;
    surface.fillRect(0, Math.min(edge, inner), width, Math.abs(edge - inner));
  }
  function linkPaths(lines, geometry, palette2, isSigned, only = null) {
    const { left, right } = geometry;
    const middle = ((left + right) / 2).toFixed(1);
    return lines.map((line) => {
      const { start, end } = line;
      const style = lineStyle(palette2, line, isSigned, only);
      const path = `M${left} ${start.toFixed(1)}C${middle} ${start.toFixed(1)} ${middle} ${end.toFixed(1)} ${right} ${end.toFixed(1)}`;
      const stroke = `stroke="${style.colour}" stroke-opacity="${style.opacity.toFixed(3)}" stroke-width="${style.width.toFixed(2)}"`;
      return `<path d="${path}" fill="none" stroke-linecap="round" ${stroke}/>`;
    });
  }

  // views/lines/input.js
  var OTHER_SIDE = { left: "right", right: "left" };
  var TOKENS_A_PAGE = 10;
  function listenToLines(view) {
    const { root, stage, scroller, pin, clear, showAll } = view.parts;
    scroller.addEventListener("scroll", () => view.scrolled(), { passive: true });
    stage.addEventListener("pointerover", (event) => hoverToken(view, event));
    stage.addEventListener("pointerleave", () => leaveTokens(view));
    stage.addEventListener("focusin", (event) => focusToken(view, event));
    stage.addEventListener("focusout", () => view.setHover(null));
    root.addEventListener("click", (event) => clickInside(view, event));
    root.addEventListener("keydown", (event) => pressLinesKey(view, event));
    pin.addEventListener("click", () => view.pin());
    clear.addEventListener("click", () => view.clear());
    for (const button of Object.values(view.parts.beyond)) button.addEventListener("click", () => view.reveal(button.goal));
    view.parts.compare.addEventListener("click", () => view.keepHead());
    view.parts.headList.addEventListener("click", (event) => {
      const place = event.target.closest?.("[data-drops]")?.dataset.drops;
      if (place) view.dropHead(place);
    });
    showAll.addEventListener("click", () => view.context.store.set({ hidden: [] }));
  }
  function tokenAt(element) {
    const button = element.closest?.(".lines-item")?.querySelector(".lines-token");
    return button ? { side: button.dataset.side, token: Number(button.dataset.token) } : null;
  }
  function hoverToken(view, event) {
    if (event.pointerType === "touch") return;
    const hover = tokenAt(event.target);
    view.setHover(hover);
    if (hover) showExactWeight(view, hover, event);
    else view.context.tooltip.hide();
  }
  function leaveTokens(view) {
    view.setHover(null);
    view.context.tooltip.hide();
  }
  async function showExactWeight(view, hover, event) {
    const active = view.active();
    view.context.tooltip.hide();
    if (active?.tokens.length !== 1 || hover.side !== OTHER_SIDE[active.side]) return;
    const [row, column] = active.side === "left" ? [active.tokens[0], hover.token] : [hover.token, active.tokens[0]];
    const weight = await view.frame.value(row, column);
    if (view.hover?.token !== hover.token || view.hover.side !== hover.side) return;
    const names = `${isolated(view.frame.rows.labels[row])} \u2192 ${isolated(view.frame.columns.labels[column])}`;
    view.context.tooltip.show(event.clientX, event.clientY, [names, { text: measuredWeight(view.frame, weight), kind: "number" }]);
  }
  function focusToken(view, event) {
    const token = tokenAt(event.target);
    if (!token || !event.target.matches(".lines-token")) return;
    view.focus = token;
    if (event.target.matches(":focus-visible")) view.setHover(token);
  }
  function clickInside(view, event) {
    const shows = event.target.closest("[data-shows]");
    if (shows) view.unhide(Number(shows.dataset.shows));
    const token = tokenAt(event.target);
    if (!token) return;
    if (event.target.closest(".lines-eye")) view.hide(token.side, token.token);
    else view.select(token.side, token.token);
  }
  function linesKeys(view) {
    return {
      ArrowUp: () => stepToken(view, -1),
      ArrowDown: () => stepToken(view, 1),
      PageUp: () => stepToken(view, -TOKENS_A_PAGE),
      PageDown: () => stepToken(view, TOKENS_A_PAGE),
      Home: () => stepToken(view, -Infinity),
      End: () => stepToken(view, Infinity),
      ArrowLeft: () => changeTokenSide(view, view.sideAt("left")),
      ArrowRight: () => changeTokenSide(view, view.sideAt("right")),
      Enter: () => pinFocused(view),
      " ": () => selectPointed(view),
      Escape: () => undoSelection(view),
      h: () => hidePointed(view)
    };
  }
  function pressLinesKey(view, event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches(".lines-token")) return;
    const action = linesKeys(view)[event.key];
    if (!action || action() === false) return;
    event.preventDefault();
    event.stopPropagation();
  }
  function stepToken(view, distance) {
    const { side, token } = view.focus;
    const { shown, slots } = view.columns[side];
    const slot = Math.min(Math.max(slots[token] + distance, 0), shown.length - 1);
    if (shown.length) arriveAtToken(view, { side, token: shown[slot] });
  }
  function changeTokenSide(view, side) {
    if (side === view.focus.side) return;
    const height = view.columns[view.focus.side].middle(view.focus.token, view.offset(view.focus.side)) ?? 0;
    const { shown } = view.columns[side];
    const slot = view.columns[side].slotAt(height + view.offset(side));
    if (shown.length) arriveAtToken(view, { side, token: shown[Math.min(Math.max(slot, 0), shown.length - 1)] });
  }
  function arriveAtToken(view, target) {
    view.moveFocus(target);
    view.hover = view.focus;
    view.renderNow();
    view.context.announce(sentenceOf(view, view.focus));
  }
  function sentenceOf(view, { side, token }) {
    const other = view.axis(OTHER_SIDE[side]).labels;
    const weights = view.weights.of(side, token);
    const role = view.axis(side).name ?? (side === "left" ? "Query" : "Key");
    const name = `${role} ${visibleLabel(view.axis(side).labels[token])}`;
    if (!weights?.length) return name;
    const [best] = strongest(weights, { kind: "top", value: 1 }, [], Infinity);
    if (best === void 0) return name;
    if (Number.isNaN(view.weights.certain(side, token)[best])) return `${name}, strongest not stored`;
    return `${name}, strongest ${visibleLabel(other[best])} ${readableWeight(weights[best])}`;
  }
  function pointedToken(view) {
    return view.hover ?? (view.parts.stage.contains(document.activeElement) ? view.focus : null);
  }
  function hidePointed(view) {
    const pointed = pointedToken(view);
    if (pointed) view.hide(pointed.side, pointed.token);
    return pointed !== null;
  }
  function undoSelection(view) {
    const { pinned, selected } = view.context.store.get();
    if (pinned) view.context.store.set({ pinned: false });
    else if (selected.length) view.clear();
    return pinned || selected.length > 0;
  }
  function selectPointed(view) {
    const pointed = pointedToken(view);
    if (pointed) view.select(pointed.side, pointed.token);
    return pointed !== null;
  }
  function pinFocused(view) {
    const pointed = pointedToken(view);
    if (!pointed) return false;
    const { side, token } = pointed;
    const isSelected = side === view.selectedSide() && view.state.selected.includes(token);
    if (!isSelected) view.select(side, token);
    view.context.store.set({ pinned: isSelected ? !view.state.pinned : true });
    return true;
  }

  // views/lines/weights.js
  var MOST_CUT = 256;
  var LINE_ENDS = { left: "row", right: "column" };
  var FrameWeights = class {
    constructor(frame, arrived, failed) {
      this.frame = frame;
      this.arrived = arrived;
      this.failed = failed;
      this.cache = /* @__PURE__ */ new Map();
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
      return weights.map((weight) => Math.abs(weight) + NEAR < highest ? NaN : weight);
    }
    ask(side, token, key) {
      const request = side === "left" ? this.frame.row(token) : this.frame.column(token);
      request.then(
        (weights) => {
          this.cache.set(key, weights);
          this.arrived();
        },
        (problem) => {
          this.cache.delete(key);
          this.failed(problem);
        }
      );
      return null;
    }
  };
  function weightText(weight, decimals) {
    if (Number.isNaN(weight)) return "\u2013";
    if (weight === 0 || !Number.isFinite(weight)) return String(weight);
    const unit = 10 ** -decimals;
    return Math.abs(weight) < unit / 2 ? `<${unit.toFixed(decimals)}` : weight.toFixed(decimals);
  }

  // views/lines/svg.js
  var WHOLE_UNTIL = 200;
  var LINES_EDGE = 16;
  var NUMBERS_WIDTH = 56;
  function linesSvg(view) {
    const { left, right } = view.columns;
    const isWhole = Math.max(left.shown.length, right.shown.length) <= WHOLE_UNTIL;
    const height = isWhole ? Math.max(left.height, right.height) : view.parts.scroller.clientHeight;
    const offsets = isWhole ? { left: 0, right: 0 } : { left: view.offset("left"), right: view.offset("right") };
    const active = view.active();
    const [beside, between] = [left.element.clientWidth, view.parts.canvas.clientWidth];
    const colours = view.context.palette();
    const paths = view.sources().flatMap(({ weights, peak, colour, shift }) => {
      const geometry = view.geometry(height, offsets, shift);
      const { lines } = placedLinks(view.linksOf(active, offsets, height, weights), geometry, peak, view.state.colour);
      return linkPaths(lines, geometry, colours, view.frame.signed, colour);
    });
    const parts = [
      `<clipPath id="sight"><rect x="0" y="0" width="${between}" height="${height}"/></clipPath>`,
      `<g transform="translate(${LINES_EDGE + beside} ${LINES_EDGE})" clip-path="url(#sight)">`,
      ...paths,
      "</g>",
      ...["left", "right"].flatMap((side) => sideAsSvg(view, side, offsets[side], height, active, colours))
    ];
    return svgDocument(2 * (LINES_EDGE + beside) + between, height + 2 * LINES_EDGE, colours.surface, parts);
  }
  function sideAsSvg(view, side, offset, height, active, colours) {
    const sideWeights = view.sideWeights(active);
    const weights = sideWeights?.side === side ? sideWeights.weights : null;
    const column = view.columns[side];
    const isLeft = column.place === "left";
    const [away, anchor] = isLeft ? [-1, "end"] : [1, "start"];
    const inner = LINES_EDGE + column.element.clientWidth + (isLeft ? 0 : view.parts.canvas.clientWidth) + 10 * away;
    return column.inSight(offset, height).flatMap((token) => {
      const y = (column.middle(token, offset) + LINES_EDGE + 4.5).toFixed(1);
      const isChosen = active?.side === side && active.tokens.includes(token);
      const ink = active && !isChosen && !weights ? colours.muted : colours.ink;
      const style = `font-size="13"${isChosen ? ' font-weight="700"' : ""}${underlineAttribute(column.axis.written[token])}`;
      const words = [`<text x="${inner}" y="${y}" text-anchor="${anchor}" ${style} fill="${ink}">${svgEscape(shortenedLabel(visibleLabel(column.axis.labels[token])))}</text>`];
      if (!weights) return words;
      const outer = inner + away * (column.element.clientWidth - NUMBERS_WIDTH / 2);
      return [...words, `<text x="${outer}" y="${y}" text-anchor="middle" font-size="11" fill="${colours.muted}">${svgEscape(weightText(weights[token], sideWeights.decimals))}</text>`];
    });
  }
  function shortenedLabel(label) {
    const letters = [...label];
    return letters.length > 24 ? `${letters.slice(0, 23).join("")}\u2026` : label;
  }

  // views/lines/token_column.js
  var BEYOND_SIGHT = 6;
  var COLUMN_MARGIN = 8;
  var TokenColumn = class {
    constructor(side) {
      this.side = side;
      this.strip = make("div", { class: "lines-strip", role: "list" });
      this.element = make("div", {}, this.strip);
      this.items = /* @__PURE__ */ new Map();
      this.spare = [];
      this.setTokens({ labels: [], special: [], written: [] }, new Uint8Array(0), 24);
    }
    // On the left of the window or on its right, whichever side of the links it is.
    standAt(place) {
      for (const token of [...this.items.keys()]) this.release(token);
      this.spare = [];
      this.place = place;
      this.element.className = `lines-column lines-column-${place}`;
    }
    // Hidden tokens take no room: shown[slot] is a token, slots[token] its slot or -1.
    setTokens(axis, isHidden, rowHeight) {
      this.axis = axis;
      this.rowHeight = rowHeight;
      this.shown = [];
      this.slots = new Int32Array(axis.labels.length).fill(-1);
      for (let token = 0; token < axis.labels.length; token += 1) {
        if (isHidden[token]) continue;
        this.slots[token] = this.shown.length;
        this.shown.push(token);
      }
      for (const token of [...this.items.keys()]) this.release(token);
    }
    get height() {
      return this.shown.length * this.rowHeight + 2 * COLUMN_MARGIN;
    }
    top(slot) {
      return COLUMN_MARGIN + slot * this.rowHeight;
    }
    // Where the middle of a token is when the strip is moved up by offset; null for a token that is hidden.
    middle(token, offset) {
      const slot = this.slots[token] ?? -1;
      return slot < 0 ? null : this.top(slot + 0.5) - offset;
    }
    slotAt(distance) {
      return Math.floor((distance - COLUMN_MARGIN) / this.rowHeight);
    }
    inSight(offset, height, beyond = 0) {
      const first = Math.max(0, this.slotAt(offset) - beyond);
      return this.shown.slice(first, this.slotAt(offset + height) + 1 + beyond);
    }
    // The token of the keyboard stays in the document wherever it is: removing it would lose the focus.
    render(offset, height, focused, decorate) {
      const tokens = new Set(this.inSight(offset, height, BEYOND_SIGHT));
      if (focused !== null && this.slots[focused] >= 0) tokens.add(focused);
      for (const token of [...this.items.keys()]) if (!tokens.has(token)) this.release(token);
      for (const token of tokens) if (!this.items.has(token)) this.put(token);
      for (const [token, item] of this.items) decorate(token, item);
      this.strip.style.height = `${this.height}px`;
      this.strip.style.transform = `translateY(${-offset}px)`;
    }
    release(token) {
      const item = this.items.get(token);
      item.element.remove();
      this.items.delete(token);
      this.spare.push(item);
    }
    put(token) {
      const item = this.spare.pop() ?? makeTokenItem(this.side, this.place);
      const label = this.axis.labels[token];
      const slot = this.slots[token];
      item.element.style.top = `${this.top(slot)}px`;
      item.element.style.height = `${this.rowHeight}px`;
      item.element.setAttribute("aria-posinset", slot + 1);
      item.element.setAttribute("aria-setsize", this.shown.length);
      item.button.dataset.token = token;
      item.button.dataset.testid = `lines-${this.side === "left" ? "row" : "column"}-${token}`;
      item.button.classList.toggle("is-special", Boolean(this.axis.special[token]));
      item.button.classList.toggle("is-written", Boolean(this.axis.written[token]));
      item.name.textContent = visibleLabel(label);
      item.button.title = label;
      item.eye.dataset.hides = token;
      item.eye.setAttribute("aria-label", `Hide ${visibleLabel(label)}`);
      this.items.set(token, item);
      this.insert(slot, item.element);
    }
    // In reading order, for people who hear the page.
    insert(slot, element) {
      element.dataset.slot = slot;
      let next = null;
      let previous = this.strip.lastElementChild;
      while (previous && Number(previous.dataset.slot) > slot) {
        next = previous;
        previous = previous.previousElementSibling;
      }
      this.strip.insertBefore(element, next);
    }
  };
  function makeTokenItem(side, place) {
    const name = make("bdi", { class: "lines-name" });
    const weight = make("span", { class: "lines-weight" });
    const button = make("button", { type: "button", class: "lines-token", "data-side": side });
    const eye = make("button", { type: "button", class: "lines-eye", tabindex: -1, "data-side": side, title: "Hide (h)" }, icon("hide"));
    button.append(...place === "left" ? [weight, name] : [name, weight]);
    const element = make("div", { class: "lines-item", role: "listitem" });
    element.append(...place === "left" ? [eye, button] : [button, eye]);
    return { element, button, name, weight, eye };
  }

  // views/lines/lines_view.js
  var HEAD_SHIFT = 5;
  var ROOMY_COUNT = 24;
  var SCROLL_REST = 120;
  var NARROW_COLUMN = 180;
  var LINE_SIDES = ["left", "right"];
  var CANNOT_HOVER = globalThis.matchMedia?.("(hover: none)").matches;
  var SIDE_ROLES = { left: "that look", right: "looked at" };
  function createLinesView(host, context) {
    const view = new LinesView(host, context);
    return {
      update: (frame, state) => view.update(frame, state),
      picture: () => ({ svg: linesSvg(view) }),
      resize: () => view.schedule(),
      focus: () => view.moveFocus(view.focus),
      destroy: () => view.destroy(),
      keys: linesKeys(view)
    };
  }
  var LinesView = class {
    constructor(host, context) {
      this.context = context;
      this.parts = buildLines();
      this.columns = { left: new TokenColumn("left"), right: new TokenColumn("right") };
      this.isMirrored = null;
      this.kept = [];
      this.colour = null;
      this.hover = null;
      this.focus = { side: "left", token: 0 };
      listenToLines(this);
      host.append(this.parts.root);
      this.observer = new ResizeObserver(() => this.schedule());
      this.observer.observe(this.parts.scroller);
    }
    destroy() {
      this.observer.disconnect();
      cancelAnimationFrame(this.due);
      clearTimeout(this.rest);
      this.parts.root.remove();
    }
    update(frame, state) {
      const isFirst = !this.frame;
      const isNewFrame = frame !== this.frame;
      const isNewLayout = isNewFrame || state.hidden !== this.state?.hidden;
      if (isNewFrame) this.weights = this.weightsOfFrame(frame);
      if (isNewLayout || state.limit !== this.state?.limit) this.overview = null;
      const { theme } = this.context.palette();
      const isOtherHeads = isNewFrame || state.heads !== this.state?.heads || theme !== this.theme;
      this.theme = theme;
      this.frame = frame;
      this.state = state;
      if (isOtherHeads) this.keepHeads();
      if (isNewLayout) this.layOut();
      if (isFirst) this.isArriving = state.selected.length > 0;
      this.schedule();
    }
    weightsOfFrame(frame) {
      const isShown = () => frame === this.frame;
      return new FrameWeights(frame, () => isShown() && this.schedule(), (problem) => isShown() && this.context.fail(problem));
    }
    /** The heads that are kept, beside the one that is chosen: their frames come later. */
    keepHeads() {
      const { frame, state, context } = this;
      const chosen = `${state.layer}.${state.head}`;
      const isHead = state.mode === "head" && state.layer !== "all";
      const places = state.heads.filter((place) => !(isHead && place === chosen));
      const name = (layer, head) => `${layerName(context.scene, state.part, layer)}, head ${head}`;
      const { heads: colours } = context.palette();
      const colourOf = (place) => colours[(state.heads.includes(place) ? state.heads.indexOf(place) + 1 : 0) % colours.length];
      this.colour = state.heads.length ? colourOf(chosen) : null;
      this.kept = places.map((place) => ({ place, colour: colourOf(place), frame: null, weights: null }));
      const chips = this.kept.map(({ place, colour }) => headChip(place, name(...headPlace(place)), colour));
      const current = isHead ? name(state.layer, state.head) : "All heads shown together";
      this.parts.headList.replaceChildren(...state.heads.length ? [headChip(state.heads.includes(chosen) && isHead ? chosen : null, current, this.colour)] : [], ...chips);
      this.parts.headList.hidden = state.heads.length === 0;
      const { sites } = context.scene.parts[state.part];
      this.parts.compare.hidden = sites.reduce((sum, number) => sum + context.scene.sites[number].heads, 0) === 1;
      this.parts.compare.disabled = !isHead || state.heads.includes(chosen) || state.heads.length >= MOST_HEADS;
      for (const kept of this.kept) this.loadKept(kept, frame);
    }
    async loadKept(kept, frame) {
      const [layer, head] = headPlace(kept.place);
      try {
        const own = await frameOf(this.context.scene, { ...this.state, layer, head, mode: "head" });
        if (frame !== this.frame || !this.kept.includes(kept)) return;
        kept.frame = own;
        kept.weights = new FrameWeights(own, () => this.schedule(), (problem) => this.context.fail(problem));
        this.schedule();
      } catch (problem) {
        if (this.kept.includes(kept)) this.context.fail(problem);
      }
    }
    /** What lines are drawn from: the chosen map, then the heads that are kept; all on one scale. */
    sources() {
      const kept = this.kept.filter(({ weights }) => weights);
      const peak = Math.max(this.frame.peak, ...kept.map(({ frame }) => frame.peak));
      const heads = [{ weights: this.weights, colour: this.colour }, ...kept.map(({ weights, colour }) => ({ weights, colour }))];
      return heads.map((head, index) => ({ ...head, peak, shift: HEAD_SHIFT * (index - (heads.length - 1) / 2) }));
    }
    keepHead() {
      const { layer, head, heads } = this.context.store.get();
      this.context.store.set({ heads: [...heads, `${layer}.${head}`] });
    }
    dropHead(place) {
      this.context.store.set({ heads: this.context.store.get().heads.filter((other) => other !== place) });
    }
    layOut() {
      const { frame, state } = this;
      const rows = frame.rows.labels.length;
      const columns = frame.columns.labels.length;
      this.isHidden = { left: new Uint8Array(rows), right: new Uint8Array(columns) };
      for (const number of state.hidden) this.markHidden(number, rows);
      this.wantsFocus ||= this.parts.stage.contains(document.activeElement);
      this.arrange();
      const rowHeight = Math.max(rows, columns) <= ROOMY_COUNT ? 32 : 26;
      this.columns.left.setTokens(frame.rows, this.isHidden.left, rowHeight);
      this.columns.right.setTokens(frame.columns, this.isHidden.right, rowHeight);
      if (this.hover && !this.isShown(this.hover.side, this.hover.token)) this.hover = null;
      this.focus = this.nearestShown(this.focus);
      this.listHidden();
    }
    // Named texts stand in the order they are read in, what is looked at first.
    arrange() {
      const { parts, columns, frame } = this;
      const names = { left: frame.rows.name ?? "Queries", right: frame.columns.name ?? "Keys" };
      for (const side of LINE_SIDES) {
        parts.roles[side].textContent = names[side];
        columns[side].strip.setAttribute("aria-label", names[side]);
      }
      parts.root.setAttribute("aria-label", `Lines between ${names.left} and ${names.right}`);
      const isMirrored = !frame.square && Boolean(frame.columns.name);
      if (isMirrored === this.isMirrored) return;
      this.isMirrored = isMirrored;
      const [first, second] = LINE_SIDES.map((place) => this.sideAt(place));
      columns[first].standAt("left");
      columns[second].standAt("right");
      parts.stage.append(columns[first].element, parts.canvas, columns[second].element);
      parts.heads.replaceChildren(...[first, second].map((side) => columnHead(parts.roles[side], parts.captions[side])));
    }
    /** The side of the links that stands at a place of the window. */
    sideAt(place) {
      return this.isMirrored ? OTHER_SIDE[place] : place;
    }
    nearestShown({ side, token }) {
      const { shown } = this.columns[side];
      return { side, token: shown.find((other) => other >= token) ?? shown.at(-1) ?? 0 };
    }
    // A token of a sequence that looks at itself is hidden on both sides. Otherwise keys are numbered after the queries.
    markHidden(number, rows) {
      if (this.frame.square || number < rows) this.isHidden.left[number] = 1;
      if (this.frame.square) this.isHidden.right[number] = 1;
      else if (number >= rows) this.isHidden.right[number - rows] = 1;
    }
    hiddenNumber(side, token) {
      return side === "left" || this.frame.square ? token : token + this.frame.rows.labels.length;
    }
    listHidden() {
      const { frame, state } = this;
      const rows = frame.rows.labels.length;
      const chips = state.hidden.map((number) => {
        const label = number < rows ? frame.rows.labels[number] : frame.columns.labels[number - rows];
        return { number, label: label ?? String(number) };
      });
      this.parts.hidden.hidden = chips.length === 0;
      this.parts.hiddenList.replaceChildren(...chips.map(hiddenChip));
    }
    // What the lines belong to: the token under the pointer or the keyboard, else what was selected, else nothing.
    active() {
      const { selected, pinned } = this.state;
      if (this.hover && !(pinned && selected.length)) return { side: this.hover.side, tokens: [this.hover.token] };
      const side = this.selectedSide();
      const tokens = selected.filter((token) => this.isShown(side, token));
      return tokens.length ? { side, tokens } : null;
    }
    selectedSide() {
      return this.state.direction === "to" ? "right" : "left";
    }
    isShown(side, token) {
      return this.columns[side].slots[token] >= 0;
    }
    // All links, or of what is active; those with no end in the window may be missing.
    linksOf(active, offsets, height, source = this.weights) {
      if (!active) return this.overviewLinks(offsets, height, source);
      const links = { from: [], to: [], weight: [] };
      for (const token of active.tokens) this.addLinks(links, active.side, token, source);
      return links;
    }
    addLinks(links, side, token, source) {
      const weights = this.linkWeights(side, token, source);
      if (!weights) return;
      for (const other of strongest(weights, this.state.limit, this.isHidden[OTHER_SIDE[side]], Infinity)) {
        links.from.push(side === "left" ? token : other);
        links.to.push(side === "left" ? other : token);
        links.weight.push(weights[other]);
      }
    }
    /** Weights that may have lines: of the strongest, those that are so for certain. */
    linkWeights(side, token, source = this.weights) {
      return this.state.limit.kind === "top" ? source.certain(side, token) : source.of(side, token);
    }
    overviewLinks(offsets, height, source) {
      const { left, right } = this.columns;
      const rows = left.inSight(offsets.left, height);
      const weights = (row) => this.isScrolling ? source.cached("left", row) : this.linkWeights("left", row, source);
      if (!this.frame.cut || source !== this.weights) {
        return allLinks(rows, weights, this.state.limit, this.isHidden.right);
      }
      this.overview ??= allLinks(left.shown, (row) => this.linkWeights("left", row), this.state.limit, this.isHidden.right);
      return linksAt(this.overview, rows, right.inSight(offsets.right, height));
    }
    // Rows that a server makes are asked for once the scrolling rests.
    scrolled() {
      this.isScrolling = true;
      clearTimeout(this.rest);
      this.rest = setTimeout(() => {
        this.isScrolling = false;
        this.schedule();
      }, SCROLL_REST);
      this.schedule();
    }
    schedule() {
      this.due ??= requestAnimationFrame(() => this.renderNow());
    }
    renderNow() {
      if (this.due) cancelAnimationFrame(this.due);
      this.due = null;
      if (this.frame && this.parts.root.isConnected) this.render();
    }
    // Columns of unequal length scroll in proportion, so that both reach their ends together.
    offset(side) {
      const { scroller } = this.parts;
      const range = scroller.scrollHeight - scroller.clientHeight;
      const own = Math.max(0, this.columns[side].height - scroller.clientHeight);
      return range > 0 ? Math.round(own * scroller.scrollTop / range) : 0;
    }
    render() {
      const { parts, columns } = this;
      parts.space.style.height = `${Math.max(columns.left.height, columns.right.height)}px`;
      const height = parts.scroller.clientHeight;
      parts.stage.style.height = `${height}px`;
      if (this.isArriving) this.reveal({ side: this.selectedSide(), token: this.state.selected[0] });
      this.isArriving = false;
      const active = this.active();
      const sideWeights = this.sideWeights(active);
      const offsets = { left: this.offset("left"), right: this.offset("right") };
      for (const side of LINE_SIDES) {
        const focused = this.focus.side === side ? this.focus.token : null;
        columns[side].render(offsets[side], height, focused, (token, item) => this.decorate(side, token, item, active, sideWeights));
      }
      this.draw(active, offsets, height);
      this.caption(active, sideWeights);
      this.pointBeyond(active, offsets, height);
      if (this.wantsFocus) columns[this.focus.side].items.get(this.focus.token)?.button.focus({ preventScroll: true });
      this.wantsFocus = false;
    }
    geometry(height, offsets, shift = 0) {
      const { left, right } = this.columns;
      const width = this.parts.canvas.clientWidth;
      return {
        left: this.isMirrored ? width : 0,
        right: this.isMirrored ? 0 : width,
        height,
        leftMiddle: (row) => shifted(left.middle(row, offsets.left), shift),
        rightMiddle: (column) => shifted(right.middle(column, offsets.right), shift)
      };
    }
    draw(active, offsets, height) {
      const { canvas } = this.parts;
      const scale = window.devicePixelRatio || 1;
      const width = canvas.clientWidth;
      fitCanvas(canvas, Math.round(width * scale), Math.round(height * scale));
      const surface = canvas.getContext("2d");
      surface.setTransform(scale, 0, 0, scale, 0, 0);
      surface.clearRect(0, 0, width, height);
      const most = this.isScrolling ? MOST_WHILE_SCROLLING : void 0;
      this.leftOut = 0;
      for (const { weights, peak, colour, shift } of this.sources()) {
        const geometry = this.geometry(height, offsets, shift);
        const placed = placedLinks(this.linksOf(active, offsets, height, weights), geometry, peak, this.state.colour, most);
        drawLines(surface, placed.lines, geometry, this.context.palette(), this.frame.signed, colour);
        this.leftOut += placed.leftOut;
      }
      const longest = Math.max(this.columns.left.height - offsets.left, this.columns.right.height - offsets.right);
      fadeEdges(surface, width, height, Math.max(offsets.left, offsets.right) > 1, longest > height + 1);
    }
    // The weights shown beside the tokens of the other side: of one token, or the mean of several.
    sideWeights(active) {
      if (!active?.tokens.length) return null;
      const rows = active.tokens.map((token) => this.weights.of(active.side, token));
      if (rows.some((row) => !row)) return null;
      const mean = (_, place) => rows.reduce((sum, row) => sum + row[place], 0) / rows.length;
      const weights = rows.length === 1 ? rows[0] : rows[0].map(mean);
      return { side: OTHER_SIDE[active.side], weights, decimals: this.decimalsOf(weights) };
    }
    decorate(side, token, item, active, sideWeights) {
      const isChosen = active?.side === side && active.tokens.includes(token);
      const isSelected = this.selectedSide() === side && this.state.selected.includes(token);
      const weight = sideWeights?.side === side ? sideWeights.weights[token] : null;
      const share = weight === null || Number.isNaN(weight) ? 0 : scaleShare(Math.abs(weight), this.frame.peak, this.state.colour);
      item.button.setAttribute("aria-pressed", isSelected);
      item.button.tabIndex = this.focus.side === side && this.focus.token === token ? 0 : -1;
      item.element.classList.toggle("is-chosen", isChosen);
      item.element.classList.toggle("is-selected", isSelected);
      item.element.classList.toggle("is-dim", active !== null && !isChosen && share < 0.01);
      item.weight.textContent = weight === null ? "" : weightText(weight, sideWeights.decimals);
      item.element.style.setProperty("--share", share.toFixed(3));
    }
    // Where the strongest link out of sight leads, above and below: a press goes there.
    pointBeyond(active, offsets, height) {
      const side = active ? OTHER_SIDE[active.side] : "right";
      const beyond = active ? this.tokensBeyond(active, side, offsets, height) : { above: [], below: [] };
      for (const [way, tokens] of Object.entries(beyond)) {
        const button = this.parts.beyond[way];
        button.hidden = tokens.length === 0;
        button.classList.toggle("is-left", this.columns[side].place === "left");
        if (!tokens.length) continue;
        button.goal = { side, token: tokens[0] };
        const label = make("bdi", {}, visibleLabel(this.axis(side).labels[tokens[0]]));
        button.replaceChildren(way === "above" ? "\u2191 " : "\u2193 ", label, tokens.length > 1 ? ` and ${tokens.length - 1} more` : "");
      }
    }
    tokensBeyond(active, side, offsets, height) {
      const links = this.linksOf(active, offsets, height);
      const ends = side === "right" ? links.to : links.from;
      const order = [...ends.keys()].sort((a, b) => Math.abs(links.weight[b]) - Math.abs(links.weight[a]));
      const tokens = [...new Set(order.map((index) => ends[index]))];
      const middle = (token) => this.columns[side].middle(token, offsets[side]);
      return { above: tokens.filter((token) => middle(token) < 0), below: tokens.filter((token) => middle(token) > height) };
    }
    // Digits after the point that tell the largest weight to three places, one fewer where there is little room.
    decimalsOf(weights) {
      const largest = weights.reduce((most, weight) => Math.abs(weight) > most ? Math.abs(weight) : most, 0);
      const places = largest > 0 ? 2 - Math.floor(Math.log10(largest)) : 3;
      const isNarrow = this.columns.left.element.clientWidth < NARROW_COLUMN;
      return Math.min(Math.max(places, 3), 8) - (isNarrow ? 1 : 0);
    }
    caption(active, sideWeights) {
      const { parts, state, frame } = this;
      const count = active?.tokens.length ?? 0;
      const axis = active?.side === "right" ? frame.columns : frame.rows;
      const subject = count === 1 ? [`${frame.measure} of \u201C`, make("bdi", {}, visibleLabel(axis.labels[active.tokens[0]])), "\u201D"] : [`${frame.measure}, mean of ${count} ${unitName(state)}s`];
      for (const side of LINE_SIDES) parts.captions[side].replaceChildren(...sideWeights?.side === side ? subject : [`${unitName(state)}s ${SIDE_ROLES[side]}`]);
      parts.pin.disabled = parts.clear.disabled = state.selected.length === 0;
      parts.pin.setAttribute("aria-pressed", state.pinned && state.selected.length > 0);
      parts.hint.textContent = this.hint(state);
    }
    hint(state) {
      if (this.leftOut) return `${this.leftOut.toLocaleString()} weaker lines are left out.`;
      if (this.frame.partial && state.selected.length) return `${state.selected.length} selected. ${this.storedHint()}`;
      if (!state.selected.length) return CANNOT_HOVER ? `Tap ${unitName(state)}s to select their lines.` : `Hover a ${unitName(state)} for its lines. Click to select, h to hide.`;
      const pinned = state.pinned ? ", pinned" : "";
      return `${state.selected.length} selected${pinned}.`;
    }
    /** Which weights a page holds that does not hold all: others have no line and no number. */
    storedHint() {
      const { count } = this.frame.partial;
      return count ? `Stored are the ${count} largest weights of each row.` : "Stored are the largest weights of each row.";
    }
    select(side, token) {
      const { context } = this;
      const { selected: kept } = context.store.get();
      const selected = kept.join() === context.suggested?.join() ? [] : kept;
      context.suggested = null;
      const isOther = side !== this.selectedSide();
      const others = isOther ? [] : selected.filter((other) => other !== token);
      const selection = others.length === selected.length || isOther ? [...others, token] : others;
      const patch = { selected: selection.sort((a, b) => a - b), direction: side === "right" ? "to" : "from" };
      this.context.store.set(selection.length ? patch : { ...patch, pinned: false });
    }
    pin() {
      const { selected, pinned } = this.context.store.get();
      if (selected.length) this.context.store.set({ pinned: !pinned });
    }
    clear() {
      this.context.store.set({ selected: [], pinned: false });
    }
    hide(side, token) {
      const number = this.hiddenNumber(side, token);
      const isOwn = this.frame.square || side === this.selectedSide();
      const selected = isOwn ? this.state.selected.filter((other) => other !== token) : this.state.selected;
      this.context.store.set({ hidden: [...this.state.hidden, number].sort((a, b) => a - b), selected });
      this.context.announce(`${visibleLabel(this.axis(side).labels[token])} hidden`);
    }
    unhide(number) {
      this.context.store.set({ hidden: this.state.hidden.filter((other) => other !== number) });
    }
    setHover(hover) {
      this.hover = hover;
      this.schedule();
    }
    // Moves the keyboard to a token, into sight if need be.
    moveFocus({ side, token }) {
      this.focus = this.nearestShown({ side, token });
      this.reveal(this.focus);
      this.wantsFocus = true;
      this.schedule();
    }
    reveal({ side, token }) {
      const { scroller } = this.parts;
      const column = this.columns[side];
      const height = scroller.clientHeight;
      const own = column.height - height;
      if (own <= 0) return;
      const top = column.top(column.slots[token]);
      const margin = Math.min(2 * column.rowHeight, height / 4);
      const lowest = top + column.rowHeight + margin - height;
      const offset = Math.min(Math.max(this.offset(side), lowest), Math.max(0, top - margin));
      scroller.scrollTop = offset * (scroller.scrollHeight - height) / own;
    }
    axis(side) {
      return side === "left" ? this.frame.rows : this.frame.columns;
    }
  };
  function shifted(middle, shift) {
    return middle === null ? null : middle + shift;
  }

  // views/map/arrangement.js
  var [LEAST_IN_ROW, MOST_IN_ROW] = [6, 12];
  function arrangedHeads(scene, state, ranking) {
    const sites = scene.parts[state.part].sites.map((number) => scene.sites[number]);
    const rows = sites.map((site, layer) => {
      const heads2 = Array.from({ length: site.heads }, (_, head) => ({ layer, head, value: "" }));
      return { name: layerName(scene, state.part, layer), title: site.name, heads: heads2.filter(({ head }) => isOfType(site, head, state.type)) };
    });
    if (state.sort === "layer" || state.sort === "pair" && !ranking) return rows.filter((row) => row.heads.length);
    const heads = rows.flatMap((row) => row.heads);
    const size = Math.min(MOST_IN_ROW, Math.max(LEAST_IN_ROW, ...sites.map((site) => site.heads)));
    if (state.sort === "type") return rowsByType(sites, heads).flatMap(({ name, heads: members }) => cutRows(members, size, name, ""));
    const ordered = state.sort === "pair" ? rankedHeads(heads, ranking) : headsByFigure(sites, heads, state.sort);
    return cutRows(ordered, size, null, null);
  }
  function cutRows(heads, size, first, others) {
    const count = Math.ceil(heads.length / size);
    return Array.from({ length: count }, (_, row) => ({ name: row ? others : first, title: null, heads: heads.slice(row * size, (row + 1) * size) }));
  }
  function isOfType(site, head, type) {
    return !type || headType(site.types?.[head] ?? "") === type;
  }
  function rowsByType(sites, heads) {
    const rows = /* @__PURE__ */ new Map();
    for (const place of heads) {
      const type = headType(sites[place.layer].types?.[place.head] ?? "");
      rows.set(type, [...rows.get(type) ?? [], place]);
    }
    return [...rows].sort(([, a], [, b]) => b.length - a.length).map(([type, members]) => ({ name: capitalised(type), heads: members }));
  }
  function headsByFigure(sites, heads, figure) {
    const number = ({ layer, head }) => sites[layer][figure]?.[head] ?? NaN;
    const values = heads.filter((place) => !Number.isNaN(number(place)));
    return values.sort((a, b) => number(a) - number(b)).map((place) => ({ ...place, value: readableWeight(number(place)) }));
  }
  function rankedHeads(heads, ranking) {
    const shown = new Set(heads.map(({ layer, head }) => `${layer}-${head}`));
    return ranking.filter(({ layer, head }) => shown.has(`${layer}-${head}`)).map(({ layer, head, weight, isNormed: isNormed2, partner }) => {
      return { layer, head, value: weight === null ? "not stored" : pairText(weight, isNormed2), partner };
    });
  }
  function pairText(weight, isNormed2) {
    if (isNormed2) return readableWeight(weight);
    const share = 100 * weight;
    return share > 0 && share < 1 ? "<1 %" : `${share.toFixed(0)} %`;
  }

  // views/map/head_picture.js
  var MOST_EXACT = 64;
  function pictureKey(scene, state) {
    return JSON.stringify([state.unit, state.special, state.colour, scene.steps ? state.step : null, state.measure]);
  }
  async function headPicture(scene, state, layer, head) {
    const number = scene.parts[state.part].sites[layer];
    const site = scene.sites[number];
    if (!isFollowed(scene, state, site)) return { ...await thumbnail(scene, number, head), peak: 255, signed: false };
    const frame = await headFrame(scene, state, layer, head);
    const level = frame.levels - 1;
    const data = await frame.tile(level, 0, 0);
    const [height, width] = tileShape(frame, level, 0, 0);
    return { data, height, width, peak: data.reduce((peak, weight) => Math.max(peak, Math.abs(weight)), 0), signed: frame.signed };
  }
  function headFrame(scene, state, layer, head) {
    return frameOf(scene, { ...state, layer, head, mode: "head" });
  }
  function pictureState(scene, state, site) {
    return isFollowed(scene, state, site) ? state : { ...state, unit: "pieces", special: "shown", step: null };
  }
  function isFollowed(scene, state, site) {
    const longest = Math.max(site.queries, site.keys);
    if (isNormed(scene, state)) return true;
    const isPlain2 = state.unit === "pieces" && state.special === "shown" && !(scene.steps && state.step !== null);
    if (isPlain2) return state.colour === "log" && longest <= MOST_EXACT;
    return longest <= MOST_FOLLOWED;
  }

  // views/map/heads_grid.js
  var MOST_IN_RAIL_ROW = 9;
  function createHeadsGrid(host, context, kind, choose) {
    const grid = make("div", { class: `heads heads-${kind}`, role: "grid" });
    host.append(grid);
    const cells = /* @__PURE__ */ new Map();
    const watcher = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) drawCell(cells.get(entry.target.getAttribute("data-place")));
    }, { root: null, rootMargin: "200px" });
    const model = { context, kind, choose, grid, cells, watcher, state: null, shape: "", key: "", scene: null, current: "", firstPicture: null };
    grid.addEventListener("keydown", (event) => moveInGrid(model, event));
    return {
      grid,
      cells,
      /** The rows of the grid. */
      rows: () => model.rows,
      /** Follows the state; resolves when the first thumbnails are drawn. */
      async update(state, ranking = null) {
        const { scene } = context;
        model.state = kind === "rail" ? { ...initialState(), part: state.part } : state;
        grid.setAttribute("aria-label", `Heads by ${model.state.sort === "pair" ? "chosen words" : model.state.sort}`);
        model.rows = arrangedHeads(scene, model.state, ranking);
        const shape = gridShape(scene, model.state.part, model.rows);
        const key = pictureKey(scene, model.state);
        if (model.shape !== shape) fillGrid(model);
        else if (model.scene !== scene || model.key !== key) renewCells(model);
        [model.shape, model.key, model.scene] = [shape, key, scene];
        markCurrent(model, state);
        recolour(model);
        return firstDrawn(model);
      },
      focus: () => currentButton(model)?.focus(),
      destroy() {
        watcher.disconnect();
        grid.remove();
      }
    };
  }
  function gridShape(scene, part, rows) {
    const types = scene.parts[part].sites.map((number) => scene.sites[number].types);
    return JSON.stringify([part, rows, types]);
  }
  function renewCells(model) {
    model.watcher.disconnect();
    for (const cell of model.cells.values()) {
      cell.isRequested = false;
      model.watcher.observe(cell.button);
    }
  }
  function fillGrid(model) {
    const { kind, cells, watcher, rows } = model;
    const hadFocus = model.grid.contains(document.activeElement) ? document.activeElement.getAttribute("data-place") : null;
    watcher.disconnect();
    cells.clear();
    model.grid.setAttribute("aria-rowcount", String(rows.length));
    model.grid.replaceChildren(...rows.map((row, index) => gridRow(model, row, index)));
    model.grid.style.setProperty(`--${kind}-columns`, String(kind === "rail" ? railColumns(rows) : mostHeads(rows)));
    model.grid.toggleAttribute("data-flow", rows.every((row) => row.name === null));
    for (const cell of cells.values()) watcher.observe(cell.button);
    if (hadFocus) (cells.get(hadFocus) ?? cells.values().next().value)?.button.focus();
  }
  function mostHeads(rows) {
    return Math.max(1, ...rows.map((row) => row.heads.length));
  }
  function railColumns(rows) {
    const most = mostHeads(rows);
    if (most <= MOST_IN_RAIL_ROW) return Math.max(4, most);
    return [8, 6, 7, 5].find((columns) => most % columns === 0) ?? 8;
  }
  function gridRow(model, row, index) {
    const heads = row.heads.map((place, column) => headCell(model, place, index, column));
    const label = row.name === null ? [] : [make("div", { class: "heads-layer", role: "rowheader", title: row.title }, row.name)];
    return make("div", { class: "heads-row", role: "row" }, ...label, make("div", { class: "heads-cells", role: "presentation" }, ...heads));
  }
  function headCell(model, { layer, head, value, partner }, row, column) {
    const { scene } = model.context;
    const { part, sort } = model.state;
    const site = scene.sites[scene.parts[part].sites[layer]];
    const type = site.types?.[head] ?? "";
    const name = layerName(scene, part, layer);
    const canvas = make("canvas", { class: "thumb-picture", width: 1, height: 1, "aria-hidden": "true" });
    const place = `${layer}-${head}`;
    const button = make("button", {
      type: "button",
      class: "thumb",
      tabindex: "-1",
      "data-place": place,
      "data-testid": `${model.kind === "map" ? "thumb" : "rail"}-${place}`,
      "aria-label": `${name}, head ${head} ${type}`.trim(),
      title: model.kind === "rail" ? `head ${head}${type ? ` \xB7 ${typeTitle(type)}` : ""}` : null,
      onclick: () => model.choose(layer, head)
    }, canvas);
    const number = sort === "layer" ? `${head}` : `${site.label ?? site.layer ?? layer}\xB7${head}`;
    if (model.kind === "map") {
      const title = typeTitle(type);
      const captions = [
        make("span", { class: "thumb-head" }, number),
        make("span", { class: "thumb-value" }, value.replace(" %", "%")),
        ...partner ? [make("span", { class: "thumb-partner" }, "\u2192 ", make("bdi", {}, visibleLabel(partner)))] : [],
        ...type ? [make("span", { class: "thumb-type", title }, headType(type))] : [],
        ...hasSink(type) ? [make("span", { class: "thumb-type", title }, "+ sink")] : []
      ];
      button.append(...captions.flatMap((caption) => [" ", caption]));
      const text2 = withoutControls(captions.map((caption) => caption.textContent).filter(Boolean).join(" "));
      button.setAttribute("aria-label", sort === "layer" ? `${name}, head ${text2}` : `${name}, head ${head}: ${text2}`);
    }
    model.cells.set(place, { model, site, layer, head, number, note: value || headType(type), row, column, button, canvas, data: null, painted: null, isRequested: false });
    return make("div", { role: "gridcell", class: "heads-cell" }, button);
  }
  function drawCell(cell) {
    if (!cell || cell.isRequested) return;
    cell.isRequested = true;
    const { model } = cell;
    const { state } = model;
    const pending = headPicture(model.context.scene, state, cell.layer, cell.head).then((data) => {
      if (model.state !== state && pictureKey(model.context.scene, model.state) !== pictureKey(model.context.scene, state)) return;
      cell.data = data;
      cell.painted = null;
      paintCell(cell);
    });
    pending.catch((problem) => {
      cell.button.title = `This thumbnail cannot be drawn: ${problem.message}`;
      cell.button.classList.add("thumb-broken");
    });
    model.firstPicture ??= pending.catch(() => void 0);
  }
  function paintCell(cell) {
    const { context, state } = cell.model;
    const colours = context.palette();
    const look = `${colours.theme} ${state.colour}`;
    if (!cell.data || cell.painted === look) return;
    cell.painted = look;
    const { data, height, width, peak, signed: signed2 } = cell.data;
    if (height === 0 || width === 0) return;
    cell.canvas.width = width;
    cell.canvas.height = height;
    const pixels = new ImageData(width, height);
    paintWeights(pixels, data, peak, state.colour, signed2, colours);
    cell.canvas.getContext("2d").putImageData(pixels, 0, 0);
    cell.canvas.classList.toggle("pixelated", width <= 40 && height <= 40);
  }
  function recolour(model) {
    for (const cell of model.cells.values()) paintCell(cell);
  }
  function firstDrawn(model) {
    if (model.cells.size === 0) return Promise.resolve();
    drawCell(model.cells.get(model.current) ?? model.cells.values().next().value);
    return model.firstPicture;
  }
  function markCurrent(model, state) {
    const selectedPlace = `${state.layer === "all" ? 0 : state.layer}-${state.head}`;
    const isSingleHead = state.mode === "head" && state.layer !== "all";
    const isMoved = selectedPlace !== model.current;
    model.current = model.cells.has(selectedPlace) ? selectedPlace : model.cells.keys().next().value ?? "";
    for (const [place, cell] of model.cells) {
      const active = place === model.current;
      cell.button.tabIndex = active ? 0 : -1;
      cell.button.toggleAttribute("data-current", active && isSingleHead);
      if (active && isSingleHead) cell.button.setAttribute("aria-current", "true");
      else cell.button.removeAttribute("aria-current");
      cell.button.toggleAttribute("data-together", !isSingleHead && (state.layer === "all" || cell.layer === state.layer));
    }
    if (isMoved && model.state.sort === "layer") keepInSight(model);
  }
  function keepInSight(model) {
    const button = currentButton(model);
    const scroller = model.grid.closest("[data-scrolls]");
    if (!button || !scroller || !button.offsetParent) return;
    const [box, frame] = [button.getBoundingClientRect(), scroller.getBoundingClientRect()];
    if (box.top < frame.top) scroller.scrollTop -= frame.top - box.top + 24;
    if (box.bottom > frame.bottom) scroller.scrollTop += box.bottom - frame.bottom + 24;
  }
  function currentButton(model) {
    return model.cells.get(model.current)?.button;
  }
  var GRID_STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  function moveInGrid(model, event) {
    const step = GRID_STEPS[event.key];
    const from = model.cells.get(event.target.dataset?.place);
    if (!step || !from || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    const row = [...model.cells.values()].filter((cell) => cell.row === from.row + step[0]);
    const target = row[Math.min(from.column + step[1], step[1] === 0 ? row.length - 1 : Infinity)];
    if (!target) return;
    from.button.tabIndex = -1;
    target.button.tabIndex = 0;
    target.button.focus();
  }

  // data/ranking.js
  async function rankedByPair(scene, state, frame) {
    const [query, key] = state.pair;
    const i = indexOfPosition(frame.rows, query);
    const keys = key === void 0 ? otherWords(frame, i) : [indexOfPosition(frame.columns, key)];
    const matches = [];
    for (const [layer, number] of scene.parts[state.part].sites.entries()) {
      const heads = Array.from({ length: scene.sites[number].heads }, (_, head) => head);
      const rows = await Promise.all(heads.map((head) => headRow(scene, state, frame, layer, head, i)));
      heads.forEach((head) => {
        const { best, weight, most } = strongestOf(rows[head], keys);
        const partner = key === void 0 && weight ? frame.columns.labels[best] : null;
        matches.push({ layer, head, weight, most, isNormed: frame.isNormed, partner });
      });
    }
    return matches.sort((a, b) => (b.weight ?? -1) - (a.weight ?? -1));
  }
  function otherWords({ square, columns }, i) {
    return columns.labels.map((_, j) => j).filter((j) => !(square && j === i) && !columns.special[j]);
  }
  function strongestOf({ low, high }, keys) {
    if (!keys.length) return { best: -1, weight: 0, most: 0 };
    const best = keys.reduce((strongest2, j) => low[j] > low[strongest2] ? j : strongest2);
    const isClear = keys.every((j) => j === best || high[j] <= low[best]);
    const weight = isClear ? knownWeight(low[best], high[best]) : NaN;
    const most = keys.reduce((largest, j) => Math.max(largest, high[j]), -Infinity);
    return { best, weight: Number.isNaN(weight) ? null : weight, most };
  }
  function indexOfPosition(axis, position) {
    return axis.members.findIndex((members) => members.includes(position));
  }

  // views/map/sentence.js
  var STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };
  function createSentence(host, context) {
    const sentence = new Sentence(context);
    host.append(sentence.element);
    return sentence;
  }
  var Sentence = class {
    constructor(context) {
      this.context = context;
      this.frame = null;
      this.state = null;
      this.finding = make("p", { class: "map-finding", "data-testid": "map-finding" });
      this.clear = make("button", { type: "button", class: "lines-tool", "data-testid": "map-clear", onclick: () => this.choose([]) }, "Clear");
      this.texts = make("div", { class: "map-texts" });
      this.element = make("section", { class: "map-sentence", "aria-label": "Text" }, this.texts, make("div", { class: "map-finding-row" }, this.finding, this.clear));
      this.shape = "";
      this.texts.addEventListener("click", (event) => this.press(event.target.closest("button")));
      this.texts.addEventListener("keydown", (event) => this.move(event));
    }
    /** Words that can be chosen: those of the queries, and where they are another text those of the keys. */
    show(frame, state) {
      [this.frame, this.state] = [frame, state];
      const shape = JSON.stringify([frame.square, frame.rows.labels, frame.columns.labels]);
      if (shape !== this.shape) this.fill(frame);
      this.shape = shape;
      const [query, key] = state.pair;
      this.mark("query", query, frame.square ? key : void 0);
      if (!frame.square) this.mark("key", void 0, key);
      this.clear.hidden = state.pair.length === 0;
    }
    fill(frame) {
      const sides = frame.square ? [["query", frame.rows]] : [["query", frame.rows], ["key", frame.columns]];
      const hadFocus = this.texts.contains(document.activeElement);
      this.texts.replaceChildren(...sides.map(([side, axis]) => textOf(side, axis, frame.square)));
      if (hadFocus) this.texts.querySelector("button")?.focus();
    }
    mark(side, query, key) {
      const axis = side === "query" ? this.frame.rows : this.frame.columns;
      const chosen = { query: query === void 0 ? -1 : indexOfPosition(axis, query), key: key === void 0 ? -1 : indexOfPosition(axis, key) };
      const buttons = [...this.texts.querySelectorAll(`[data-side=${side}] button`)];
      const isWaiting = side === "key" && this.state.pair.length === 0;
      buttons.forEach((button, index) => {
        const role = index === chosen.query ? "query" : index === chosen.key ? "key" : null;
        button.setAttribute("aria-pressed", String(role !== null));
        button.toggleAttribute("data-query", role === "query");
        button.toggleAttribute("data-key", role === "key");
        button.disabled = isWaiting;
      });
      const stop = buttons.find((button) => button.tabIndex === 0) ?? buttons[0];
      buttons.forEach((button) => {
        button.tabIndex = button === stop ? 0 : -1;
      });
    }
    press(button) {
      if (!button) return;
      const side = button.closest("[data-side]").dataset.side;
      const axis = side === "query" ? this.frame.rows : this.frame.columns;
      const [position] = axis.members[Number(button.dataset.index)];
      const [query, key] = this.state.pair;
      if (side === "key") return this.choose(key === position ? [query] : [query, position]);
      if (query === position) return this.choose([]);
      const isSecond = this.frame.square && query !== void 0 && key === void 0;
      return this.choose(isSecond ? [query, position] : [position]);
    }
    choose(pair) {
      this.context.store.set(pair.length ? { pair, sort: "pair" } : { pair });
    }
    move(event) {
      const step = STEPS[event.key];
      if (!step || event.ctrlKey || event.metaKey || event.altKey) return;
      const buttons = [...event.target.closest("[data-side]").querySelectorAll("button")];
      const next = buttons[buttons.indexOf(event.target) + step];
      event.preventDefault();
      event.stopPropagation();
      if (!next) return;
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
    /** The strongest head in words, or what can be done; without a ranking a chosen word is not shown. */
    tell(ranking, nameOf) {
      this.finding.replaceChildren(...this.sentences(ranking, nameOf));
      if (ranking) this.context.announce(withoutControls(this.finding.textContent));
    }
    sentences(ranking, nameOf) {
      const { state, frame } = this;
      const [query, key] = state.pair;
      const unit = unitName(state);
      if (query === void 0) {
        const keys = frame.square ? `then another for what it gives that ${unit}` : `then one of the other text for what it gives that`;
        return [`Choose a ${unit} to see which heads attend from it most clearly, ${keys}.`];
      }
      const hidden = this.hiddenToken();
      if (hidden !== null) return ["\u201C", bdi(hidden), "\u201D is not shown."];
      const [from, to] = [frame.rows.labels[indexOfPosition(frame.rows, query)], key === void 0 ? null : frame.columns.labels[indexOfPosition(frame.columns, key)]];
      const [best] = ranking;
      const open = ranking.filter(({ weight }) => weight === null);
      if (best.weight === null && to === null) return ["The largest weight from \u201C", bdi(from), `\u201D to another ${unit} is not stored in any head.`];
      if (best.weight === null) return ["What \u201C", bdi(from), "\u201D gives \u201C", bdi(to), "\u201D is not stored in any head."];
      if (best.weight === 0 && to === null && !open.length) return ["No head attends from \u201C", bdi(from), `\u201D to another ${unit}.`];
      const isLess = open.every(({ most }) => most <= best.weight);
      const note = open.length ? ` In ${open.length} head${open.length === 1 ? "" : "s"} this is not stored${isLess ? "" : ", and may be more"}.` : "";
      const share = frame.isRenormalised ? ", of its row renormalised without special tokens" : "";
      const partner = to ?? best.partner;
      const pair = partner === null ? [bdi(from), ` \u2192 no other ${unit}`] : [bdi(from), " \u2192 ", bdi(partner), ` ${pairText(best.weight, frame.isNormed)}${frame.isNormed ? ` as ${frame.measure}` : ""}`];
      return [...pair, ` in ${nameOf(best)}${share}.${note}`];
    }
    /** The first of the chosen tokens that is not shown; null where both are. */
    hiddenToken() {
      const { state, frame } = this;
      const { scene } = this.context;
      const site = scene.sites[scene.parts[state.part].sites[0]];
      const sides = [[frame.rows, site.query_sequence], [frame.columns, site.key_sequence]];
      const index = state.pair.findIndex((position, side) => indexOfPosition(sides[side][0], position) < 0);
      return index < 0 ? null : scene.sequences[sides[index][1]].tokens[state.pair[index]];
    }
  };
  function bdi(label) {
    return make("bdi", {}, visibleLabel(label));
  }
  function textOf(side, axis, isOnly) {
    const name = axis.name ?? (isOnly ? null : side === "query" ? "Queries" : "Keys");
    const words = axis.labels.map((label, index) => make("button", {
      type: "button",
      class: `map-word${axis.special[index] ? " is-special" : ""}${axis.written[index] ? " is-written" : ""}`,
      "data-index": index,
      "data-testid": `map-${side}-${index}`,
      "aria-pressed": "false",
      tabindex: "-1"
    }, make("bdi", {}, visibleLabel(label))));
    const box = make("div", { class: "map-words", role: "group", "data-side": side, "data-scrolls": true, "aria-label": name ?? "Words" }, ...words);
    return name === null ? box : make("div", { class: "map-text" }, make("span", { class: "map-text-name" }, name), box);
  }

  // views/map/map_view.js
  var PICTURE = { side: 96, gap: 16, left: 84, top: 16, caption: 34 };
  function createMapView(host, context) {
    const view = new MapView(host, context);
    const moveToGrid = () => view.heads.focus();
    return {
      update: (_frame, state) => view.update(state),
      picture: () => ({ svg: mapPicture(context, view.heads) }),
      resize() {
      },
      focus: moveToGrid,
      keys: { ArrowLeft: moveToGrid, ArrowRight: moveToGrid, ArrowUp: moveToGrid, ArrowDown: moveToGrid, Escape: () => view.clear() },
      destroy: () => view.destroy()
    };
  }
  var MapView = class {
    constructor(host, context) {
      this.context = context;
      this.box = make("div", { class: "map-view" });
      this.scroller = make("div", { class: "scroller", "data-scrolls": true }, this.box);
      host.append(this.scroller);
      this.sentence = createSentence(this.box, context);
      this.heads = createHeadsGrid(this.box, context, "map", (layer, head) => this.open(layer, head));
      this.heads.grid.addEventListener("pointermove", (event) => this.point(event));
      this.heads.grid.addEventListener("pointerleave", () => this.leave());
      this.pointed = "";
    }
    destroy() {
      this.leave();
      this.heads.destroy();
      this.scroller.remove();
    }
    async update(state) {
      const { scene } = this.context;
      this.state = state;
      const frame = await headFrame(scene, state, 0, 0);
      if (this.state !== state) return;
      this.sentence.show(frame, state);
      const ranking = state.pair.length && this.sentence.hiddenToken() === null ? await this.rank(scene, state, frame) : null;
      if (this.state !== state) return;
      this.sentence.tell(ranking, ({ layer, head }) => `${layerName(scene, state.part, layer).toLowerCase()} head ${head}`);
      await this.heads.update(state, ranking);
    }
    /** The heads by what the chosen words give; asked for again where something that it depends on has changed. */
    rank(scene, state, frame) {
      const key = JSON.stringify([state.part, state.unit, state.special, state.step, state.pair, state.measure]);
      if (this.ranked?.scene !== scene || this.ranked.key !== key) this.ranked = { scene, key, ranking: rankedByPair(scene, state, frame) };
      return this.ranked.ranking;
    }
    open(layer, head) {
      const { scene, store, take, announce } = this.context;
      const opened = { layer, head, mode: "head", view: "matrix" };
      const [query] = store.get().pair;
      const row = query === void 0 ? -1 : indexOfPosition(this.sentence.frame.rows, query);
      if (row < 0) store.set(opened);
      else take({ ...opened, selected: [row], direction: "from", hidden: [], zoom: null });
      announce(`${layerName(scene, store.get().part, layer)}, head ${head}, opened as a matrix`);
    }
    clear() {
      if (this.context.store.get().pair.length === 0) return false;
      this.sentence.choose([]);
      return true;
    }
    // The pair under the pointer, read from the frame of that head and not from its picture.
    async point(event) {
      const canvas = event.target.closest(".thumb")?.querySelector(".thumb-picture");
      const cell = canvas && this.heads.cells.get(canvas.parentElement.dataset.place);
      const box = canvas?.getBoundingClientRect();
      const [x, y] = box ? [(event.clientX - box.x) / box.width, (event.clientY - box.y) / box.height] : [-1, -1];
      if (!cell || x < 0 || y < 0 || x >= 1 || y >= 1) return this.leave();
      const here = `${cell.layer}-${cell.head} ${event.clientX} ${event.clientY}`;
      this.pointed = here;
      const frame = await this.frameUnder(cell);
      const [i, j] = [Math.floor(y * frame.rows.labels.length), Math.floor(x * frame.columns.labels.length)];
      const weight = await frame.value(i, j);
      if (this.pointed !== here) return void 0;
      const { part } = this.state;
      return this.context.tooltip.show(event.clientX, event.clientY, [
        `${isolated(frame.rows.labels[i])} \u2192 ${isolated(frame.columns.labels[j])}`,
        { text: measuredWeight(frame, weight), kind: "number" },
        { text: `${layerName(this.context.scene, part, cell.layer)} \xB7 head ${cell.head}`, kind: "muted" }
      ]);
    }
    /** The frame of the head under the pointer; that of another is not kept, as it may be large. */
    frameUnder(cell) {
      const [{ scene }, { state, hovered }] = [this.context, this];
      if (hovered?.cell !== cell || hovered.state !== state || hovered.scene !== scene) {
        this.hovered = { cell, state, scene, frame: headFrame(scene, pictureState(scene, state, cell.site), cell.layer, cell.head) };
      }
      return this.hovered.frame;
    }
    leave() {
      this.pointed = "";
      this.context.tooltip.hide();
    }
  };
  function mapPicture(context, heads) {
    const { side, gap, left, top, caption } = PICTURE;
    const colours = context.palette();
    const cells = [...heads.cells.values()];
    const columns = Math.max(...cells.map((cell) => cell.column)) + 1;
    const rows = heads.rows();
    const parts = [];
    rows.forEach((row, index) => {
      const y = top + index * (side + caption + gap) + side / 2;
      if (row.name !== null) parts.push(`<text x="16" y="${y}" font-size="13" fill="${colours.ink}">${svgEscape(row.name)}</text>`);
    });
    for (const cell of cells) parts.push(...cellPicture(cell, colours));
    return svgDocument(left + columns * (side + gap), top + rows.length * (side + caption + gap), colours.surface, parts);
  }
  function cellPicture(cell, colours) {
    const { side, gap, left, top, caption } = PICTURE;
    const x = left + cell.column * (side + gap);
    const y = top + cell.row * (side + caption + gap);
    const source = cell.data ? cell.canvas.toDataURL("image/png") : null;
    const place = `x="${x}" y="${y}" width="${side}" height="${side}"`;
    const rendering = cell.canvas.classList.contains("pixelated") ? "pixelated" : "auto";
    const image = source ? `<image ${place} preserveAspectRatio="none" image-rendering="${rendering}" href="${source}"/>` : `<rect ${place} fill="${colours.line}"/>`;
    const [number, note] = [cell.number, cell.note].map(svgEscape);
    return [
      image,
      `<text x="${x}" y="${y + side + 14}" font-size="11" fill="${colours.ink}">${number}</text>`,
      `<text x="${x + side}" y="${y + side + 14}" font-size="11" text-anchor="end" fill="${colours.muted}">${note}</text>`
    ];
  }

  // views/matrix/camera.js
  var LARGEST_FITTED_CELL = 66;
  var LARGEST_ZOOMED_CELL = 72;
  var LARGEST_STRETCH = 3;
  function fittedScale(rows, columns, plot) {
    const wide = Math.min(plot.width / columns, LARGEST_FITTED_CELL);
    const high = Math.min(plot.height / rows, LARGEST_FITTED_CELL);
    const ratio = Math.max(wide / high, high / wide);
    if (ratio <= LARGEST_STRETCH) return { scaleX: Math.min(wide, high), scaleY: Math.min(wide, high) };
    return { scaleX: wide, scaleY: high };
  }
  function cameraOn(window2, rows, columns, plot) {
    const fitted = fittedScale(rows, columns, plot);
    if (!window2) return boundedCamera({ left: 0, top: 0, ...fitted }, rows, columns, plot);
    const [row0, column0, row1, column1] = window2;
    const requested = Math.min(plot.width / (column1 - column0) / fitted.scaleX, plot.height / (row1 - row0) / fitted.scaleY);
    const factor = Math.min(largestZoom(fitted), Math.max(1, requested));
    const hasAllRows = row0 <= 0 && row1 >= rows;
    const wide = Math.min(LARGEST_ZOOMED_CELL, plot.width / (column1 - column0));
    const scaleX = hasAllRows ? Math.max(wide, fitted.scaleX) : fitted.scaleX * factor;
    const camera = { left: column0, top: row0, scaleX, scaleY: fitted.scaleY * factor };
    return boundedCamera(camera, rows, columns, plot);
  }
  function pannedCamera(camera, deltaX, deltaY, rows, columns, plot) {
    const moved = { ...camera, left: camera.left - deltaX / camera.scaleX, top: camera.top - deltaY / camera.scaleY };
    return boundedCamera(moved, rows, columns, plot);
  }
  function zoomedCamera(camera, factor, x, y, rows, columns, plot) {
    const fitted = fittedScale(rows, columns, plot);
    const current = camera.scaleX / fitted.scaleX;
    const step = Math.min(largestZoom(fitted), Math.max(1, current * factor)) / current;
    const column = camera.left + (x - plot.x) / camera.scaleX;
    const row = camera.top + (y - plot.y) / camera.scaleY;
    const [scaleX, scaleY] = [camera.scaleX * step, Math.max(fitted.scaleY, camera.scaleY * step)];
    return boundedCamera({ left: column - (x - plot.x) / scaleX, top: row - (y - plot.y) / scaleY, scaleX, scaleY }, rows, columns, plot);
  }
  function cameraWithCell(camera, row, column, rows, columns, plot) {
    const [across2, down] = [plot.width / camera.scaleX, plot.height / camera.scaleY];
    const left = Math.min(column, Math.max(camera.left, column + 1 - across2));
    const top = Math.min(row, Math.max(camera.top, row + 1 - down));
    return boundedCamera({ ...camera, left, top }, rows, columns, plot);
  }
  function windowOf(camera, rows, columns, plot) {
    const fitted = fittedScale(rows, columns, plot);
    if (camera.scaleX <= fitted.scaleX * 1.0001) return null;
    const [column0, row0] = [Math.max(0, camera.left), Math.max(0, camera.top)];
    const column1 = Math.min(columns, camera.left + plot.width / camera.scaleX);
    const row1 = Math.min(rows, camera.top + plot.height / camera.scaleY);
    return [row0, column0, row1, column1];
  }
  function coveredArea(camera, rows, columns, plot) {
    const x0 = Math.max(plot.x, plot.x - camera.left * camera.scaleX);
    const y0 = Math.max(plot.y, plot.y - camera.top * camera.scaleY);
    const x1 = Math.min(plot.x + plot.width, plot.x + (columns - camera.left) * camera.scaleX);
    const y1 = Math.min(plot.y + plot.height, plot.y + (rows - camera.top) * camera.scaleY);
    return { x: x0, y: y0, width: Math.max(0, x1 - x0), height: Math.max(0, y1 - y0) };
  }
  function largestZoom(fitted) {
    return Math.max(1, LARGEST_ZOOMED_CELL / Math.min(fitted.scaleX, fitted.scaleY));
  }
  function boundedCamera(camera, rows, columns, plot) {
    const across2 = plot.width / camera.scaleX;
    const down = plot.height / camera.scaleY;
    const left = across2 >= columns ? (columns - across2) / 2 : Math.max(0, Math.min(columns - across2, camera.left));
    const top = down >= rows ? 0 : Math.max(0, Math.min(rows - down, camera.top));
    return { ...camera, left, top };
  }

  // views/matrix/gestures.js
  var TAP_DISTANCE = 5;
  var WHEEL_SPEED = 22e-4;
  function watchGestures(target, handlers) {
    const pointers = /* @__PURE__ */ new Map();
    let [travelled, spread] = [0, 0];
    const positionOf = (event) => {
      const box = target.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    const listeners = {
      wheel(event) {
        event.preventDefault();
        const { x, y } = positionOf(event);
        const lines = event.deltaMode === 1 ? 16 : 1;
        const delta = Math.max(-240, Math.min(240, event.deltaY * lines));
        handlers.zoom(Math.exp(-delta * WHEEL_SPEED * (event.ctrlKey ? 4 : 1)), x, y);
      },
      pointerdown(event) {
        if (event.button !== 0) return;
        capturePointer(target, event.pointerId);
        pointers.set(event.pointerId, positionOf(event));
        if (pointers.size === 1) travelled = 0;
        spread = distanceOf(pointers);
      },
      pointermove(event) {
        const position = positionOf(event);
        const previous = pointers.get(event.pointerId);
        if (!previous) {
          if (event.pointerType !== "touch") handlers.hover(position.x, position.y);
          return;
        }
        travelled += Math.hypot(position.x - previous.x, position.y - previous.y);
        if (travelled < TAP_DISTANCE) return;
        handlers.start();
        target.dataset.dragging = "";
        pointers.set(event.pointerId, position);
        handlers.pan((position.x - previous.x) / pointers.size, (position.y - previous.y) / pointers.size);
        if (pointers.size === 2) spread = pinch(pointers, spread, handlers);
      },
      pointerup(event) {
        const wasDown = pointers.delete(event.pointerId);
        delete target.dataset.dragging;
        const { x, y } = positionOf(event);
        if (wasDown && pointers.size === 0 && travelled < TAP_DISTANCE) handlers.tap(x, y);
      },
      pointercancel(event) {
        pointers.delete(event.pointerId);
        delete target.dataset.dragging;
      },
      pointerleave() {
        if (pointers.size === 0) handlers.leave();
      }
    };
    const entries = Object.entries(listeners);
    for (const [name, listener] of entries) target.addEventListener(name, listener, { passive: false });
    return () => entries.forEach(([name, listener]) => target.removeEventListener(name, listener));
  }
  function capturePointer(target, pointer) {
    try {
      target.setPointerCapture(pointer);
    } catch {
    }
  }
  function distanceOf(pointers) {
    const [first, second] = [...pointers.values()];
    return second ? Math.hypot(first.x - second.x, first.y - second.y) : 0;
  }
  function pinch(pointers, spread, handlers) {
    const [first, second] = [...pointers.values()];
    const distance = distanceOf(pointers);
    if (spread > 0 && distance > 0) handlers.zoom(distance / spread, (first.x + second.x) / 2, (first.y + second.y) / 2);
    return distance;
  }

  // views/matrix/labels.js
  var LABEL_FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
  var LABEL_SPACING = 14;
  var LABEL_PADDING = 8;
  var LONGEST_MEASURED = 60;
  var STEPS2 = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 5e3, 1e4];
  function createLabelSet({ name, labels, written }, measuring, most) {
    const shown = labels.map(visibleLabel);
    const widths = /* @__PURE__ */ new Map();
    const shortened = /* @__PURE__ */ new Map();
    const widthOf = (text2) => {
      if (!widths.has(text2)) widths.set(text2, measuring.measureText(text2).width);
      return widths.get(text2);
    };
    const longest = [...new Set(shown)].sort((left, right) => right.length - left.length).slice(0, LONGEST_MEASURED);
    measuring.font = LABEL_FONT;
    const widest = Math.max(0, ...longest.map(widthOf));
    return {
      name,
      widest,
      written,
      margin: Math.ceil(Math.min(most, widest)) + LABEL_PADDING * 2,
      /** The label, shortened to at most `room` pixels. */
      text(index) {
        if (!shortened.has(index)) shortened.set(index, fittingText(shown[index], most, widthOf));
        return shortened.get(index);
      }
    };
  }
  function fittingText(text2, room, widthOf) {
    if (widthOf(text2) <= room) return text2;
    const letters = [...text2];
    let [low, high] = [0, letters.length];
    while (low < high) {
      const middle = low + high + 1 >> 1;
      if (widthOf(`${letters.slice(0, middle).join("")}\u2026`) <= room) low = middle;
      else high = middle - 1;
    }
    return `${letters.slice(0, low).join("")}\u2026`;
  }
  function labelStep(scale) {
    return STEPS2.find((step) => step * scale >= LABEL_SPACING) ?? Infinity;
  }
  function* labelledCells(start, length, scale, count) {
    const step = labelStep(scale);
    if (!Number.isFinite(step)) return;
    const first = Math.max(0, Math.ceil(start / step) * step);
    const last = Math.min(count, start + length / scale);
    for (let cell = first; cell < last; cell += step) {
      const middle = (cell + 0.5 - start) * scale;
      if (middle >= 0 && middle <= length) yield [cell, middle];
    }
  }
  function axisNames({ area, rowSet, columnSet }) {
    if (area.x < 76 || area.y < 44) return [];
    const [across2, down] = [columnSet.name?.toLowerCase() ?? "keys", rowSet.name?.toLowerCase() ?? "queries"];
    return [[`${across2} \u2192`, area.x - 14, area.y - 33], [`${down} \u2193`, area.x - 14, area.y - 18]];
  }
  function labelsLieFlat(set, scale) {
    return scale >= set.widest + 10;
  }
  function drawLabels(surface, layout, emphasis) {
    const { camera, plot, area, rowSet, columnSet, rows, columns, colours } = layout;
    surface.font = LABEL_FONT;
    surface.textBaseline = "middle";
    surface.textAlign = "right";
    for (const [row, middle] of labelledCells(camera.top, plot.height, camera.scaleY, rows)) {
      surface.fillStyle = emphasis("row", row) ?? colours.muted;
      surface.fillText(rowSet.text(row), area.x - LABEL_PADDING, plot.y + middle);
      if (rowSet.written[row]) underline(surface, rowSet.text(row), area.x - LABEL_PADDING, Math.round(plot.y + middle) + 6, colours);
    }
    const flat = labelsLieFlat(columnSet, camera.scaleX);
    surface.textAlign = flat ? "center" : "left";
    for (const [column, middle] of labelledCells(camera.left, plot.width, camera.scaleX, columns)) {
      surface.fillStyle = emphasis("column", column) ?? colours.muted;
      const line = columnSet.written[column] ? colours : null;
      if (flat) drawFlat(surface, columnSet.text(column), plot.x + middle, area.y - LABEL_PADDING - 4, line);
      else drawTurned(surface, columnSet.text(column), plot.x + middle, area.y - LABEL_PADDING, line);
    }
  }
  function drawFlat(surface, text2, x, y, line) {
    surface.fillText(text2, x, y);
    if (line) underline(surface, text2, x, Math.round(y) + 6, line);
  }
  function underline(surface, text2, x, y, colours) {
    const width = surface.measureText(text2).width;
    const start = { right: x - width, center: x - width / 2, left: x }[surface.textAlign];
    surface.fillStyle = colours.accent;
    surface.fillRect(start, y, width, 1);
  }
  function drawTurned(surface, text2, x, y, line) {
    surface.save();
    surface.translate(x, y);
    surface.rotate(-Math.PI / 2);
    surface.fillText(text2, 0, 0);
    if (line) underline(surface, text2, 0, Math.round(x) - x + 6, line);
    surface.restore();
  }
  function labelsAsSvg(layout) {
    const { camera, plot, area, rowSet, columnSet, rows, columns, colours } = layout;
    const style = `font-size="12" fill="${colours.muted}" dominant-baseline="central"`;
    const parts = [];
    for (const [row, middle] of labelledCells(camera.top, plot.height, camera.scaleY, rows)) {
      parts.push(`<text x="${area.x - LABEL_PADDING}" y="${plot.y + middle}" text-anchor="end" ${style}${underlineAttribute(rowSet.written[row])}>${svgEscape(rowSet.text(row))}</text>`);
    }
    const flat = labelsLieFlat(columnSet, camera.scaleX);
    for (const [column, middle] of labelledCells(camera.left, plot.width, camera.scaleX, columns)) {
      const [x, y] = [plot.x + middle, area.y - LABEL_PADDING];
      const place = flat ? `x="${x}" y="${y - 4}" text-anchor="middle"` : `transform="translate(${x} ${y}) rotate(-90)"`;
      parts.push(`<text ${place} ${style}${underlineAttribute(columnSet.written[column])}>${svgEscape(columnSet.text(column))}</text>`);
    }
    const small = `font-size="11" text-anchor="end" fill="${colours.muted}" dominant-baseline="central"`;
    for (const [name, x, y] of axisNames(layout)) parts.push(`<text x="${x}" y="${y}" ${small}>${svgEscape(name)}</text>`);
    return parts;
  }

  // views/matrix/tiles.js
  var MOST_TILES = 160;
  var SMOOTH_BELOW = 2;
  var RETRY_PAUSES = [300, 1200];
  var LAST_PAUSE = 1500;
  var NO_TILE = { canvas: null, weights: null };
  function createTileCache(changed) {
    let [frame, colouring, tiles, failures] = [null, null, /* @__PURE__ */ new Map(), /* @__PURE__ */ new Map()];
    let problem = null;
    function startTile(key, level, row, column) {
      const tile = { ...NO_TILE };
      const [tileFrame, tileColouring] = [frame, colouring];
      const isCurrent = () => tileFrame === frame && tileColouring === colouring;
      const finish = (weights) => {
        tile.weights = weights;
        tile.canvas = paintedTile(weights, tileShape(tileFrame, level, row, column), tileColouring);
      };
      const answer = tileFrame.tile(level, row, column);
      if (!(answer instanceof Promise)) finish(answer);
      else answer.then((weights) => isCurrent() && addTile(key, () => finish(weights)), (reason) => isCurrent() && forgetTile(key, reason, isCurrent));
      return tile;
    }
    function addTile(key, finish) {
      finish();
      failures.delete(key);
      changed();
    }
    function forgetTile(key, reason, isCurrent) {
      tiles.delete(key);
      const count = (failures.get(key)?.count ?? 0) + 1;
      const pause = RETRY_PAUSES[count - 1];
      failures.set(key, { count, until: performance.now() + (pause ?? LAST_PAUSE), reason: pause ? null : reason });
      setTimeout(() => isCurrent() && changed(), pause ? pause + 1 : 0);
    }
    return {
      /** Forgets tiles of another frame or colouring. */
      follow(nextFrame, nextColouring) {
        if (nextFrame === frame && colouring && nextColouring.key === colouring.key) return;
        [frame, colouring, tiles, failures] = [nextFrame, nextColouring, /* @__PURE__ */ new Map(), /* @__PURE__ */ new Map()];
      },
      get(level, row, column) {
        const key = `${level}/${row}/${column}`;
        const failure = failures.get(key);
        problem ??= failure?.reason ?? null;
        if (!tiles.has(key) && failure?.until > performance.now()) return NO_TILE;
        const tile = tiles.get(key) ?? startTile(key, level, row, column);
        tiles.delete(key);
        tiles.set(key, tile);
        if (tiles.size > MOST_TILES) tiles.delete(tiles.keys().next().value);
        return tile;
      },
      /** Why a tile that was asked for since the last call is not there, though it was tried several times; or null. */
      problem() {
        const reason = problem;
        problem = null;
        return reason;
      },
      ready: (level, row, column) => tiles.get(`${level}/${row}/${column}`)?.canvas ?? null
    };
  }
  function paintedTile(weights, [rows, columns], colouring) {
    const canvas = make("canvas", { width: columns, height: rows });
    const pixels = new ImageData(columns, rows);
    paintWeights(pixels, weights, colouring.peak, colouring.colour, colouring.signed, colouring.palette);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    return canvas;
  }
  function levelFor(camera, ratio, levels) {
    const pixels = Math.max(camera.scaleX, camera.scaleY) * ratio;
    return Math.max(0, Math.min(levels - 1, Math.ceil(-Math.log2(pixels) - 0.01)));
  }
  function drawTiles(surface, cache, frame, camera, plot, ratio) {
    const level = levelFor(camera, ratio, frame.levels);
    const side = TILE * 2 ** level;
    const [rows, columns] = [frame.rows.labels.length, frame.columns.labels.length];
    surface.imageSmoothingEnabled = Math.max(camera.scaleX, camera.scaleY) * 2 ** level * ratio < SMOOTH_BELOW;
    const last = (startTile, length, scale, count) => Math.min(Math.ceil(count / side), Math.ceil((startTile + length / scale) / side));
    const lastRow = last(camera.top, plot.height, camera.scaleY, rows);
    const lastColumn = last(camera.left, plot.width, camera.scaleX, columns);
    for (let row = Math.max(0, Math.floor(camera.top / side)); row < lastRow; row += 1) {
      for (let column = Math.max(0, Math.floor(camera.left / side)); column < lastColumn; column += 1) {
        const { canvas } = cache.get(level, row, column);
        if (canvas) placeTile(surface, canvas, [row, column], side, camera, plot, ratio, [rows, columns]);
        else placeCoarser(surface, cache, frame, level, row, column, camera, plot);
      }
    }
  }
  function placeTile(surface, canvas, [row, column], side, camera, plot, ratio, [rows, columns]) {
    const snapped = (value) => Math.round(value * ratio) / ratio;
    const across2 = (cell) => plot.x + (Math.min(columns, cell) - camera.left) * camera.scaleX;
    const down = (cell) => plot.y + (Math.min(rows, cell) - camera.top) * camera.scaleY;
    const x = snapped(across2(column * side));
    const y = snapped(down(row * side));
    surface.drawImage(canvas, x, y, snapped(across2((column + 1) * side)) - x, snapped(down((row + 1) * side)) - y);
  }
  function placeCoarser(surface, cache, frame, level, row, column, camera, plot) {
    for (let above = level + 1; above < frame.levels; above += 1) {
      const factor = 2 ** (above - level);
      const canvas = cache.ready(above, Math.floor(row / factor), Math.floor(column / factor));
      if (!canvas) continue;
      const size = TILE / factor;
      const [fromX, fromY] = [column % factor * size, row % factor * size];
      const [width, height] = [Math.min(size, canvas.width - fromX), Math.min(size, canvas.height - fromY)];
      const cell = 2 ** above;
      const x = plot.x + (column * TILE * 2 ** level - camera.left) * camera.scaleX;
      const y = plot.y + (row * TILE * 2 ** level - camera.top) * camera.scaleY;
      if (width > 0 && height > 0) surface.drawImage(canvas, fromX, fromY, width, height, x, y, width * cell * camera.scaleX, height * cell * camera.scaleY);
      return;
    }
  }

  // views/matrix/painting.js
  var GAPS_FROM = 14;
  var VALUES_FROM = 40;
  function drawWeights(surface, layout, cache, frame, state, ratio) {
    const { camera, plot, area, colours } = layout;
    surface.save();
    surface.beginPath();
    surface.rect(area.x, area.y, area.width, area.height);
    surface.clip();
    drawTiles(surface, cache, frame, camera, plot, ratio);
    const smallest = Math.min(camera.scaleX, camera.scaleY);
    if (smallest >= GAPS_FROM) drawGaps(surface, layout, ratio);
    if (smallest >= VALUES_FROM) drawValues(surface, layout, cache, frame, state);
    if (frame.cut !== null && frame.cut !== void 0) coverRowsFrom(surface, layout, frame.cut);
    surface.restore();
    surface.strokeStyle = colours.line;
    surface.lineWidth = 1;
    surface.strokeRect(Math.round(area.x) - 0.5, Math.round(area.y) - 0.5, Math.round(area.width) + 1, Math.round(area.height) + 1);
  }
  function drawGaps(surface, { camera, plot, area, colours, rows, columns }, ratio) {
    const snapped = (value) => Math.round(value * ratio) / ratio;
    surface.fillStyle = colours.surface;
    for (let column = Math.max(1, Math.ceil(camera.left)); column < columns; column += 1) {
      const x = plot.x + (column - camera.left) * camera.scaleX;
      if (x > area.x + area.width) break;
      surface.fillRect(snapped(x), area.y, 1, area.height);
    }
    for (let row = Math.max(1, Math.ceil(camera.top)); row < rows; row += 1) {
      const y = plot.y + (row - camera.top) * camera.scaleY;
      if (y > area.y + area.height) break;
      surface.fillRect(area.x, snapped(y), area.width, 1);
    }
  }
  function drawValues(surface, layout, cache, frame, state) {
    surface.font = LABEL_FONT.replace("12px", "11px");
    surface.textAlign = "center";
    surface.textBaseline = "middle";
    for (const [row, column, x, y] of visibleCells(layout)) {
      const value = frame.partial ? frame.value(row, column).value : tileWeight(cache, layout, row, column);
      if (!(Math.abs(value) >= 5e-3)) continue;
      surface.fillStyle = inkOnWeight(layout.colours, value, scaleTop(frame, state.colour), state.colour, frame.signed);
      surface.fillText(shortValue(value), x, y);
    }
  }
  function tileWeight(cache, layout, row, column) {
    const { weights } = cache.get(0, Math.floor(row / TILE), Math.floor(column / TILE));
    const width = Math.min(TILE, layout.columns - Math.floor(column / TILE) * TILE);
    return weights ? weights[row % TILE * width + column % TILE] : NaN;
  }
  function shortValue(value) {
    return Math.abs(value) < 10 ? value.toFixed(2).replace(/^(-?)0\./, "$1.") : readableWeight(value);
  }
  function* visibleCells({ camera, plot, rows, columns }) {
    const lastRow = Math.min(rows, Math.ceil(camera.top + plot.height / camera.scaleY));
    const lastColumn = Math.min(columns, Math.ceil(camera.left + plot.width / camera.scaleX));
    for (let row = Math.max(0, Math.floor(camera.top)); row < lastRow; row += 1) {
      for (let column = Math.max(0, Math.floor(camera.left)); column < lastColumn; column += 1) {
        yield [row, column, plot.x + (column + 0.5 - camera.left) * camera.scaleX, plot.y + (row + 0.5 - camera.top) * camera.scaleY];
      }
    }
  }
  function coverRowsFrom(surface, { camera, plot, area, colours }, cut) {
    const y = Math.max(area.y, plot.y + (cut - camera.top) * camera.scaleY);
    surface.fillStyle = colours.surface;
    if (y < area.y + area.height) surface.fillRect(area.x, y, area.width, area.y + area.height - y);
  }
  function drawAxes(surface, layout, state) {
    const chosen = new Set(state.selected);
    const side = state.direction === "to" ? "column" : "row";
    drawLabels(surface, layout, (axis, index) => axis === side && chosen.has(index) ? layout.colours.accent : null);
    drawAxisNames(surface, layout);
    const { camera, plot, area, colours } = layout;
    surface.fillStyle = colours.accent;
    for (const index of chosen) {
      const [x, y] = [plot.x + (index - camera.left) * camera.scaleX, plot.y + (index - camera.top) * camera.scaleY];
      if (side === "row" && y + camera.scaleY > area.y && y < area.y + area.height) surface.fillRect(area.x - 4, y, 3, Math.max(2, camera.scaleY));
      if (side === "column" && x + camera.scaleX > area.x && x < area.x + area.width) surface.fillRect(x, area.y - 4, Math.max(2, camera.scaleX), 3);
    }
  }
  function drawAxisNames(surface, layout) {
    surface.font = LABEL_FONT.replace("12px", "11px");
    surface.textAlign = "right";
    surface.fillStyle = layout.colours.muted;
    for (const [name, x, y] of axisNames(layout)) surface.fillText(name, x, y);
  }
  function drawCrosshair(surface, layout, frame, cell, colourMode, value) {
    const { camera, plot, area, colours } = layout;
    const x = plot.x + (cell.column - camera.left) * camera.scaleX;
    const y = plot.y + (cell.row - camera.top) * camera.scaleY;
    surface.save();
    surface.beginPath();
    surface.rect(area.x, area.y, area.width, area.height);
    surface.clip();
    surface.fillStyle = colours.accent;
    surface.globalAlpha = 0.14;
    surface.fillRect(area.x, y, area.width, camera.scaleY);
    surface.fillRect(x, area.y, camera.scaleX, area.height);
    surface.globalAlpha = 1;
    const [width, height] = [Math.max(5, camera.scaleX), Math.max(5, camera.scaleY)];
    const [left, top] = [x + camera.scaleX / 2 - width / 2, y + camera.scaleY / 2 - height / 2];
    if (value !== null && camera.scaleX < 5) {
      surface.fillStyle = weightColour(colours, value, scaleTop(frame, colourMode), colourMode, frame.signed);
      surface.fillRect(left, top, width, height);
    }
    surface.strokeStyle = colours.highlight;
    surface.lineWidth = 2;
    surface.strokeRect(left, top, width, height);
    surface.restore();
    drawChips(surface, layout, cell, x + camera.scaleX / 2, y + camera.scaleY / 2);
  }
  function drawChips(surface, layout, cell, x, y) {
    const { area, rowSet, columnSet, camera } = layout;
    surface.font = LABEL_FONT;
    surface.textBaseline = "middle";
    const row = rowSet.text(cell.row);
    surface.fillStyle = layout.colours.surface;
    surface.fillRect(0, y - 15, area.x - 1, 30);
    surface.fillRect(x - 15, 0, 30, area.y - 1);
    drawChip(surface, layout, row, area.x - 4 - surface.measureText(row).width - 8, y);
    const column = columnSet.text(cell.column);
    const width = surface.measureText(column).width;
    if (labelsLieFlat(columnSet, camera.scaleX)) {
      drawChip(surface, layout, column, x - width / 2 - 4, area.y - 12);
      return;
    }
    surface.save();
    surface.translate(x, area.y - 4);
    surface.rotate(-Math.PI / 2);
    drawChip(surface, layout, column, 0, 0);
    surface.restore();
  }
  function drawChip(surface, { colours }, text2, x, y) {
    const width = surface.measureText(text2).width + 8;
    surface.fillStyle = colours.ink;
    surface.beginPath();
    surface.roundRect(x, y - 9, width, 18, 4);
    surface.fill();
    surface.fillStyle = colours.surface;
    surface.textAlign = "left";
    surface.fillText(text2, x + 4, y);
  }

  // views/matrix/matrix_view.js
  var PLOT_PADDING = 12;
  var ZOOM_BUTTONS = 60;
  var NARROW_MATRIX = 520;
  var STORE_PAUSE = 180;
  var PICTURE_RATIO = 2;
  var KEY_STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  function createMatrixView(host, context) {
    const view = new MatrixView(host, context);
    return {
      update: (frame, state) => view.update(frame, state),
      picture: () => ({ svg: view.picture() }),
      resize: () => view.resize(),
      destroy: () => view.destroy(),
      focus: () => view.overlay.focus(),
      keys: view.keys()
    };
  }
  var MatrixView = class {
    constructor(host, context) {
      this.context = context;
      this.canvas = make("canvas", { class: "matrix-layer", "aria-hidden": "true" });
      this.overlay = make("canvas", {
        class: "matrix-layer matrix-overlay",
        tabindex: "0",
        role: "application",
        "data-testid": "matrix-canvas",
        "aria-roledescription": "attention matrix",
        "aria-label": "Attention matrix"
      });
      this.empty = make("p", { class: "empty", hidden: true });
      this.box = make("div", { class: "matrix-view" }, this.canvas, this.overlay, this.zoomButtons(), this.empty);
      host.append(this.box);
      this.surface = this.canvas.getContext("2d", { alpha: false });
      this.above = this.overlay.getContext("2d");
      this.cache = createTileCache(() => this.schedule());
      this.cell = null;
      this.pinnedCell = false;
      this.writtenZoom = null;
      this.due = { base: 0, above: 0, store: 0 };
      this.stopGestures = watchGestures(this.overlay, this.gestures());
      this.measure();
      this.clear();
    }
    zoomButtons() {
      const button = (name, label, action) => createIconButton(`zoom-${name}`, name, label, action);
      return make(
        "div",
        { class: "matrix-zoom", role: "group", "aria-label": "Zoom" },
        button("plus", "Zoom in (+)", () => this.zoomBy(1.6)),
        button("minus", "Zoom out (\u2212)", () => this.zoomBy(1 / 1.6)),
        button("fit", "See everything (0)", () => this.showAll())
      );
    }
    update(frame, state) {
      const isNew = frame !== this.frame;
      const previousShape = this.frame && [this.rows, this.columns].join();
      this.frame = frame;
      this.state = state;
      this.rows = frame.rows.labels.length;
      this.columns = frame.columns.labels.length;
      const isEmpty = this.rows === 0 || this.columns === 0;
      this.empty.hidden = !isEmpty;
      this.empty.textContent = isEmpty ? `There is nothing to draw: ${this.rows} queries \xD7 ${this.columns} keys.` : "";
      if (isEmpty) {
        this.clear();
        return;
      }
      this.colours = this.context.palette();
      this.followColouring();
      if (isNew) this.measureLabels();
      const isOtherShape = previousShape !== [this.rows, this.columns].join();
      if (isNew || state.zoom !== this.writtenZoom) {
        if (isOtherShape || state.zoom !== this.writtenZoom || !this.camera) this.lookAt(state.zoom);
        else this.lookAt(this.windowNow());
      }
      if (this.cell && (this.cell.row >= this.rows || this.cell.column >= this.columns)) this.dropCell();
      const size = `${this.rows} queries by ${this.columns} keys`;
      this.overlay.setAttribute("aria-label", `Attention matrix, ${size}. Arrow keys move the crosshair, plus and minus zoom.`);
      this.schedule();
      if (isNew && this.cell) this.showCell(false);
      if (isNew && this.pinnedCell) this.context.pinned(this.cell);
    }
    followColouring() {
      const { frame, state, colours } = this;
      const peak = scaleTop(frame, state.colour);
      const key = [state.colour, colours.theme, peak].join();
      this.cache.follow(frame, { key, peak, colour: state.colour, signed: frame.signed, palette: colours });
    }
    measure() {
      const { clientWidth: width, clientHeight: height } = this.box;
      const ratio = window.devicePixelRatio || 1;
      if (width === this.width && height === this.height && ratio === this.ratio) return false;
      this.width = width;
      this.height = height;
      this.ratio = ratio;
      for (const canvas of [this.canvas, this.overlay]) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(height * ratio);
      }
      this.isClear = true;
      return true;
    }
    measureLabels() {
      const isNarrow = this.width < NARROW_MATRIX;
      const longest = isNarrow ? 76 : 132;
      this.rowSet = createLabelSet(this.frame.rows, this.surface, longest);
      this.columnSet = this.frame.rows === this.frame.columns ? this.rowSet : createLabelSet(this.frame.columns, this.surface, longest);
      const [x, y] = [this.rowSet.margin + 4, this.columnSet.margin + 4];
      const [right, bottom] = isNarrow ? [PLOT_PADDING, ZOOM_BUTTONS] : [ZOOM_BUTTONS, PLOT_PADDING];
      this.plot = { x, y, width: Math.max(40, this.width - x - right), height: Math.max(40, this.height - y - bottom) };
    }
    resize() {
      if (!this.measure() || !this.frame || !this.rows || !this.columns) return;
      const window2 = this.camera ? this.windowNow() : this.state.zoom;
      this.measureLabels();
      this.lookAt(window2);
      this.draw();
    }
    windowNow() {
      return windowOf(this.camera, this.rows, this.columns, this.plot);
    }
    lookAt(window2) {
      this.writtenZoom = this.state.zoom;
      this.camera = cameraOn(window2, this.rows, this.columns, this.plot);
    }
    layout() {
      const { camera, plot, rowSet, columnSet, rows, columns, colours } = this;
      return { camera, plot, rowSet, columnSet, rows, columns, colours, area: coveredArea(camera, rows, columns, plot) };
    }
    schedule() {
      this.due.base ||= requestAnimationFrame(() => this.draw());
    }
    scheduleCrosshair() {
      this.due.above ||= requestAnimationFrame(() => this.drawAbove());
    }
    draw() {
      cancelAnimationFrame(this.due.base);
      this.due.base = 0;
      if (!this.camera || this.width === 0) return;
      const { surface, ratio } = this;
      surface.setTransform(ratio, 0, 0, ratio, 0, 0);
      surface.fillStyle = this.colours.surface;
      surface.fillRect(0, 0, this.width, this.height);
      const layout = this.layout();
      drawWeights(surface, layout, this.cache, this.frame, this.state, ratio);
      drawAxes(surface, layout, this.state);
      this.tellOfTiles();
      this.drawAbove();
    }
    /** Says that tiles in sight cannot be had, and no longer says so when they are there or out of sight. */
    tellOfTiles() {
      const problem = this.cache.problem();
      if (problem && problem !== this.problem) this.context.fail(problem);
      if (!problem && this.problem) this.context.recover();
      this.problem = problem;
    }
    drawAbove() {
      cancelAnimationFrame(this.due.above);
      this.due.above = 0;
      const { above, ratio } = this;
      if (!this.cell && this.isClear) return;
      this.isClear = !this.cell;
      above.setTransform(ratio, 0, 0, ratio, 0, 0);
      above.clearRect(0, 0, this.width, this.height);
      if (this.cell) drawCrosshair(above, this.layout(), this.frame, this.cell, this.state.colour, this.cell.value);
    }
    clear() {
      this.camera = null;
      this.surface.setTransform(1, 0, 0, 1, 0, 0);
      this.surface.fillStyle = this.context.palette().surface;
      this.surface.fillRect(0, 0, this.canvas.width, this.canvas.height);
      this.above.clearRect(0, 0, this.overlay.width, this.overlay.height);
    }
    /** Takes a new camera, draws it, and tells the store once the movement has ended. */
    move(camera) {
      this.camera = camera;
      this.schedule();
      clearTimeout(this.due.store);
      this.due.store = setTimeout(() => {
        if (!this.camera) return;
        this.writtenZoom = this.windowNow();
        this.context.store.set({ zoom: this.writtenZoom });
        this.writtenZoom = this.context.store.get().zoom;
      }, STORE_PAUSE);
    }
    zoomBy(factor, x = this.plot.x + this.plot.width / 2, y = this.plot.y + this.plot.height / 2) {
      if (this.camera) this.move(zoomedCamera(this.camera, factor, x, y, this.rows, this.columns, this.plot));
    }
    showAll() {
      if (this.camera) this.move(cameraOn(null, this.rows, this.columns, this.plot));
    }
    gestures() {
      return {
        pan: (x, y) => this.camera && this.move(pannedCamera(this.camera, x, y, this.rows, this.columns, this.plot)),
        zoom: (factor, x, y) => this.zoomBy(factor, x, y),
        hover: (x, y) => this.hover(x, y),
        leave: () => !this.pinnedCell && this.dropCell(),
        tap: (x, y) => this.tap(x, y),
        start: () => this.context.tooltip.hide()
      };
    }
    cellAt(x, y) {
      if (!this.camera) return null;
      const { area } = this.layout();
      if (x < area.x || y < area.y || x >= area.x + area.width || y >= area.y + area.height) return null;
      const row = Math.floor(this.camera.top + (y - this.plot.y) / this.camera.scaleY);
      const column = Math.floor(this.camera.left + (x - this.plot.x) / this.camera.scaleX);
      return row >= 0 && column >= 0 && row < this.rows && column < this.columns ? { row, column, value: null } : null;
    }
    hover(x, y) {
      if (this.pinnedCell) return;
      const cell = this.cellAt(x, y);
      if (!cell) this.dropCell();
      else this.takeCell(cell, false);
    }
    tap(x, y) {
      const cell = this.cellAt(x, y);
      const isSame = this.pinnedCell && cell && cell.row === this.cell.row && cell.column === this.cell.column;
      if (!cell || isSame) this.unpin();
      else {
        this.takeCell(cell, true);
        this.pin();
      }
    }
    takeCell(cell, spoken) {
      const isSame = this.cell && this.cell.row === cell.row && this.cell.column === cell.column;
      if (isSame && !spoken) return;
      this.cell = cell;
      this.showCell(spoken);
    }
    /** Shows the crosshair and, as soon as it is known, the weight of the cell. */
    async showCell(spoken) {
      const { cell, frame } = this;
      this.scheduleCrosshair();
      try {
        const answer = frame.value(cell.row, cell.column);
        const weight = answer instanceof Promise ? await answer : answer;
        if (cell !== this.cell || frame !== this.frame) return;
        cell.value = Number.isNaN(weight.value) ? null : weight.value;
        this.scheduleCrosshair();
        this.describeCell(cell, weight, spoken);
      } catch (problem) {
        if (cell === this.cell && frame === this.frame) this.context.fail(problem);
      }
    }
    describeCell(cell, weight, spoken) {
      const [query, key] = [this.frame.rows.labels[cell.row], this.frame.columns.labels[cell.column]];
      const layout = this.layout();
      const box = this.overlay.getBoundingClientRect();
      const x = box.left + this.plot.x + (cell.column + 1 - layout.camera.left) * layout.camera.scaleX;
      const y = box.top + this.plot.y + (cell.row + 1 - layout.camera.top) * layout.camera.scaleY;
      this.context.tooltip.show(x, y, [
        { text: `${isolated(query)} \u2192 ${isolated(key)}`, kind: "strong" },
        { text: measuredWeight(this.frame, weight), kind: "number" },
        ...weight.mean ? [{ text: `mean of ${weight.mean.side} \xD7 ${weight.mean.side}: \u2248 ${readableWeight(weight.mean.value)}`, kind: "muted" }] : [],
        { text: `query ${cell.row} \xB7 key ${cell.column}`, kind: "muted" }
      ]);
      if (spoken) this.context.announce(`${withoutControls(query)} to ${withoutControls(key)}: ${weight.exact || Number.isNaN(weight.value) ? "" : "about "}${readableWeight(weight.value)}`);
    }
    dropCell() {
      this.cell = null;
      this.pinnedCell = false;
      this.context.pinned(null);
      this.context.tooltip.hide();
      this.scheduleCrosshair();
    }
    pin() {
      this.pinnedCell = true;
      this.context.pinned(this.cell);
      this.context.store.set({ selected: [this.cell.row], direction: "from", pinned: true });
    }
    unpin() {
      this.dropCell();
      this.context.store.set({ selected: [], pinned: false });
    }
    step([down, across2], event) {
      if (!this.camera) return;
      const size = event.shiftKey ? 10 : 1;
      const from = this.cell ?? { row: Math.max(0, Math.floor(this.camera.top)) - down, column: Math.max(0, Math.floor(this.camera.left)) - across2 };
      const row = Math.max(0, Math.min(this.rows - 1, from.row + down * size));
      const column = Math.max(0, Math.min(this.columns - 1, from.column + across2 * size));
      this.move(cameraWithCell(this.camera, row, column, this.rows, this.columns, this.plot));
      this.takeCell({ row, column, value: null }, true);
      if (this.pinnedCell) this.pin();
    }
    toggleRow() {
      if (!this.cell) return;
      const { selected } = this.context.store.get();
      const { row } = this.cell;
      this.context.store.set({ selected: selected.includes(row) ? selected.filter((other) => other !== row) : [...selected, row] });
    }
    keys() {
      const moves = Object.entries(KEY_STEPS).map(([key, step]) => [key, (event) => this.step(step, event)]);
      return {
        ...Object.fromEntries(moves),
        "+": () => this.zoomBy(1.5),
        "=": () => this.zoomBy(1.5),
        "-": () => this.zoomBy(1 / 1.5),
        0: () => this.showAll(),
        Enter: () => this.cell && this.pin(),
        " ": () => this.toggleRow(),
        Escape: () => this.cell || this.context.store.get().selected.length ? this.unpin() : false
      };
    }
    picture() {
      const layout = this.layout();
      const ratio = Math.max(PICTURE_RATIO, this.ratio);
      const canvas = make("canvas", { width: this.width * ratio, height: this.height * ratio });
      const surface = canvas.getContext("2d");
      surface.setTransform(ratio, 0, 0, ratio, 0, 0);
      drawWeights(surface, layout, this.cache, this.frame, this.state, ratio);
      const image = `<image width="${this.width}" height="${this.height}" href="${canvas.toDataURL("image/png")}"/>`;
      return svgDocument(this.width, this.height, this.colours.surface, [image, ...labelsAsSvg(layout)]);
    }
    destroy() {
      this.stopGestures();
      this.cache.follow(null, { key: "" });
      cancelAnimationFrame(this.due.base);
      cancelAnimationFrame(this.due.above);
      clearTimeout(this.due.store);
      this.context.tooltip.hide();
      this.box.remove();
    }
  };

  // views/text/text_view.js
  var SHORT_TEXT = 40;
  var MOST_NAMED = 6;
  function createTextView(host, context) {
    const view = new TextView(host, context);
    return {
      update: (frame, state) => view.update(frame, state),
      picture: () => ({ svg: view.picture() }),
      resize() {
      },
      destroy: () => view.destroy(),
      focus: () => view.focusCurrent(),
      keys: view.keys()
    };
  }
  var TextView = class {
    constructor(host, context) {
      this.context = context;
      this.hint = make("p", { class: "text-hint" });
      this.blocks = make("div", { class: "text-blocks" });
      const column = make("div", { class: "text-view" }, this.hint, this.blocks);
      this.scroller = make("div", { class: "scroller", "data-scrolls": true, "data-testid": "text-view" }, column);
      host.append(this.scroller);
      this.words = { row: [], column: [] };
      this.current = { side: "row", index: 0 };
      this.round = 0;
      this.listen();
    }
    listen() {
      const { blocks } = this;
      blocks.addEventListener("click", (event) => this.onWord(event, (side, index) => this.choose(side, index, event)));
      blocks.addEventListener("pointerover", (event) => this.onWord(event, (side, index, word) => this.point(side, index, word)));
      blocks.addEventListener("pointerout", () => this.leave());
      blocks.addEventListener("focusin", (event) => this.onWord(event, (side, index, word) => {
        this.setCurrent(side, index);
        if (word.matches(":focus-visible")) this.point(side, index, word);
      }));
      blocks.addEventListener("focusout", () => this.leave());
    }
    onWord(event, action) {
      const word = event.target.closest?.(".word");
      if (word) action(word.dataset.side, Number(word.dataset.index), word);
    }
    async update(frame, state) {
      if (frame !== this.frame) this.renew(frame, state);
      [this.frame, this.state] = [frame, state];
      await this.colour();
    }
    /** Other words: the keyboard goes on at the same place, and the tooltip waits for the new numbers. */
    renew(frame, state) {
      const [{ hovered }, hadFocus] = [this, this.blocks.contains(document.activeElement)];
      this.hideTooltip();
      this.weights = null;
      this.fill(frame, state);
      this.frame = frame;
      this.state = state;
      if (hadFocus) this.focusCurrent();
      this.hideTooltip();
      this.hovered = hovered && this.labelAt(hovered) === hovered.label ? hovered : null;
    }
    /** Between two texts, a word that is pointed at shows its weights as long as none is chosen. */
    pointed() {
      const isReady = this.hovered && this.canPoint() && this.state.selected.length === 0;
      return isReady && this.labelAt(this.hovered) !== void 0 ? this.hovered : null;
    }
    canPoint() {
      return !this.frame.square && this.frame.cut !== null;
    }
    point(side, index, word) {
      this.hovered = { side, index, label: this.axis(side).labels[index] };
      if (this.pointed()) this.colour();
      else this.showTooltip(side, index, word);
    }
    leave() {
      const wasPointed = this.pointed();
      this.hideTooltip();
      if (wasPointed) this.colour();
    }
    hideTooltip() {
      this.hovered = null;
      this.context.tooltip.hide();
    }
    refreshTooltip() {
      const word = this.hovered && this.words[this.hovered.side][this.hovered.index];
      if (word) this.showTooltip(this.hovered.side, this.hovered.index, word);
    }
    labelAt({ side, index }) {
      return this.axis(side).labels[index];
    }
    fill(frame, state) {
      const { scene } = this.context;
      const site = scene.sites[scene.parts[state.part].sites[state.layer === "all" ? 0 : state.layer]];
      const block = (side, axis, sequence, title) => {
        this.words[side] = wordButtons(side, axis, scene.sequences[sequence], state);
        const flow = make("p", { class: "text-flow" }, ...withSpaces(this.words[side]));
        flow.dir = "auto";
        flow.toggleAttribute("data-short", axis.labels.length <= SHORT_TEXT);
        if (axis.labels.length === 0) flow.textContent = "(no tokens)";
        const label = title ?? "The text";
        return make("section", { class: "text-block", "aria-label": label }, ...title ? [make("h2", {}, title)] : [], flow);
      };
      this.words.column = [];
      const sections2 = frame.square ? [block("row", frame.rows, site.query_sequence, null)] : [block("row", frame.rows, site.query_sequence, frame.rows.name ?? "Target (queries)"), block("column", frame.columns, site.key_sequence, frame.columns.name ?? "Source (keys)")];
      if (frame.columns.name) sections2.reverse();
      this.blocks.replaceChildren(...sections2);
      this.setCurrent(this.current.side, this.current.index);
    }
    /** Which side is chosen from: rows look, columns are looked at; one text is both. */
    chosenSide() {
      return this.pointed()?.side ?? (this.frame.square || this.state.direction === "from" ? "row" : "column");
    }
    /** Whether what is coloured is looked at by what is chosen. */
    isFrom() {
      return this.frame.square ? this.state.direction === "from" : this.chosenSide() === "row";
    }
    async colour() {
      const round = this.round += 1;
      const { frame, state } = this;
      const weights = await this.loadWeights();
      if (round !== this.round || frame !== this.frame) return;
      this.weights = weights;
      this.paint();
      this.hint.replaceChildren(...textWithLabels(this.hintText()));
      this.context.legend(weights ? { peak: weights.peak, signed: frame.signed } : null, state);
      this.refreshTooltip();
    }
    /** {values, side, largest, peak} of the words that are coloured, or null when none can be. */
    async loadWeights() {
      const { frame } = this;
      const chosen = this.validSelection();
      const isFrom = this.isFrom();
      if (chosen.length === 0) return overallWeights(frame, isFrom);
      const parts = await Promise.all(chosen.map((index) => isFrom ? frame.row(index) : frame.column(index)));
      const values = new Float32Array(parts[0].length);
      for (const part of parts) part.forEach((value, index) => {
        values[index] += value;
      });
      const largest = largestSize(values);
      const peak = this.canPoint() ? Math.max(largest, frame.peak) : largest;
      return { values, largest, peak, side: frame.square || !isFrom ? "row" : "column" };
    }
    validSelection() {
      const pointed = this.pointed();
      if (pointed) return [pointed.index];
      const count = this.chosenSide() === "row" ? this.frame.rows.labels.length : this.frame.columns.labels.length;
      return this.state.selected.filter((index) => index < count);
    }
    paint() {
      const colours = this.context.palette();
      const chosen = new Set(this.pointed() ? [] : this.validSelection());
      const side = this.chosenSide();
      for (const name of ["row", "column"]) {
        const values = this.weights?.side === name ? this.weights.values : null;
        this.words[name].forEach((word, index) => {
          const value = values?.[index] || 0;
          word.style.backgroundColor = values ? weightColour(colours, value, this.weights.peak, this.state.colour, this.frame.signed) : "";
          word.style.color = values ? inkOnWeight(colours, value, this.weights.peak, this.state.colour, this.frame.signed) : "";
          word.setAttribute("aria-pressed", String(name === side && chosen.has(index)));
        });
      }
    }
    hintText() {
      const chosen = this.validSelection();
      const isFrom = this.isFrom();
      if (chosen.length === 0 && !this.weights) return "Click a word to see what it attends to. Several words add up.";
      const overall = isFrom ? "what is attended to" : "what attends most";
      if (chosen.length === 0) return `Mean over all words: ${overall}. ${this.canPoint() ? "Point at a word to see its own; chosen ones" : "Click a word to see its own; several"} add up.`;
      const { labels } = this.axis(this.chosenSide());
      const more = chosen.length > MOST_NAMED ? ` and ${chosen.length - MOST_NAMED} more` : "";
      const names = chosen.slice(0, MOST_NAMED).map((index) => `\u201C${isolated(labels[index])}\u201D`).join(", ") + more;
      const added = chosen.length > 1 ? ", added up" : "";
      const verb = chosen.length > 1 ? "attend to" : "attends to";
      const isExact2 = this.isExact(this.weights.values.findIndex((value) => Math.abs(value) === this.weights.largest));
      const largest = this.isLargestKnown(chosen, isFrom) ? ` Largest: ${isExact2 ? "" : "\u2248 "}${readableWeight(this.weights.largest)}.` : "";
      const { partial } = this.frame;
      const stored = partial ? ` Stored are the ${partial.count ? `${partial.count} ` : ""}largest weights of each row; a ${unitName(this.state)} without colour may have another.` : "";
      return (isFrom ? `What ${names} ${verb}${added}.` : `What attends to ${names}${added}.`) + largest + stored;
    }
    /** Whether no weight that is not stored may be larger. */
    isLargestKnown(chosen, isFrom) {
      if (!this.frame.partial) return true;
      return chosen.length === 1 && this.weights.largest + NEAR >= this.frame.highest(isFrom ? "row" : "column", chosen[0]);
    }
    choose(side, index, event) {
      const { state } = this;
      const isOther = side !== this.chosenSide();
      const selected = isOther ? [] : state.selected;
      const next = selected.includes(index) ? selected.filter((other) => other !== index) : [...selected, index];
      const direction = this.frame.square ? state.direction : side === "row" ? "from" : "to";
      this.context.store.set({ selected: next, direction, pinned: next.length > 0 });
      const label = visibleLabel(this.axis(side).labels[index]);
      this.context.announce(next.includes(index) ? `${label} chosen, ${next.length} in all` : `${label} no longer chosen`);
      event?.stopPropagation?.();
    }
    axis(side) {
      return side === "row" ? this.frame.rows : this.frame.columns;
    }
    showTooltip(side, index, word) {
      const label = this.axis(side).labels[index];
      this.hovered = { side, index, label };
      const value = this.weights?.side === side ? this.weights.values[index] : null;
      const lines = [{ text: isolated(label), kind: "strong" }];
      if (value !== null) lines.push({ text: this.weightText(index, value), kind: "number" });
      lines.push({ text: this.meaningOf(side, index), kind: "muted" });
      const box = word.getBoundingClientRect();
      this.context.tooltip.show(box.left + box.width / 2, box.bottom - 6, lines);
    }
    /** The number of a coloured word; of one weight that is not stored also what it may be at most. */
    weightText(index, value) {
      const chosen = this.validSelection();
      if (!Number.isNaN(value) || chosen.length !== 1) return markedWeight({ value, exact: this.isExact(index) });
      return markedWeight(this.isFrom() ? this.frame.value(chosen[0], index) : this.frame.value(index, chosen[0]));
    }
    /** Whether the number of a coloured word is exact: all weights are, or those that it is the sum of. */
    isExact(index) {
      const chosen = this.validSelection();
      if (this.frame.exact || chosen.length === 0) return this.frame.exact;
      const isFrom = this.isFrom();
      return chosen.every((other) => (isFrom ? this.frame.value(other, index) : this.frame.value(index, other)).exact);
    }
    meaningOf(side, index) {
      const position = `position ${this.axis(side).members[index].join(", ")}`;
      if (this.weights?.side !== side) return position;
      const chosen = this.validSelection();
      const { measure } = this.frame;
      if (chosen.length === 0) return `${measure}, mean over all words \xB7 ${position}`;
      return `${measure}${chosen.length > 1 ? ", sum over chosen words" : ""} \xB7 ${position}`;
    }
    setCurrent(side, index) {
      const words = this.words[side].length ? this.words[side] : this.words.row;
      for (const word of [...this.words.row, ...this.words.column]) if (word.tabIndex === 0) word.tabIndex = -1;
      const bounded = Math.max(0, Math.min(words.length - 1, index));
      this.current = { side: words === this.words.row ? "row" : "column", index: bounded };
      if (words[bounded]) words[bounded].tabIndex = 0;
    }
    focusCurrent() {
      this.words[this.current.side][this.current.index]?.focus();
    }
    step(change) {
      const { side, index } = this.current;
      const isInside = this.scroller.contains(document.activeElement);
      this.setCurrent(side, isInside ? index + change : index);
      this.focusCurrent();
    }
    stepLine(direction) {
      const { side, index } = this.current;
      const all = [...this.words.row, ...this.words.column];
      const here = this.words[side][index]?.getBoundingClientRect();
      if (!here) return;
      const middle = here.left + here.width / 2;
      const boxes = all.map((word) => ({ word, box: word.getBoundingClientRect() }));
      const beyond = boxes.filter(({ box }) => direction > 0 ? box.top > here.bottom - 4 : box.bottom < here.top + 4);
      if (beyond.length === 0) return;
      const line = direction > 0 ? Math.min(...beyond.map(({ box }) => box.top)) : Math.max(...beyond.map(({ box }) => box.top));
      const near = beyond.filter(({ box }) => Math.abs(box.top - line) < 4);
      near.sort((left, right) => Math.abs(left.box.left + left.box.width / 2 - middle) - Math.abs(right.box.left + right.box.width / 2 - middle));
      near[0].word.focus();
    }
    keys() {
      const chooseCurrent = (event) => {
        if (event.target.closest?.(".word")) return false;
        this.choose(this.current.side, this.current.index);
        return true;
      };
      return {
        ArrowLeft: () => this.step(-1),
        ArrowRight: () => this.step(1),
        ArrowUp: () => this.stepLine(-1),
        ArrowDown: () => this.stepLine(1),
        Enter: chooseCurrent,
        " ": chooseCurrent,
        Escape: () => this.state?.selected.length ? this.context.store.set({ selected: [], pinned: false }) : false
      };
    }
    picture() {
      const colours = this.context.palette();
      const frame = this.blocks.getBoundingClientRect();
      const parts = [...this.words.row, ...this.words.column].map((word) => wordAsSvg(word, frame, colours));
      for (const heading2 of this.blocks.querySelectorAll("h2")) {
        const box = heading2.getBoundingClientRect();
        const place = `x="${box.left - frame.left + 24}" y="${box.top - frame.top + 38}"`;
        parts.push(`<text ${place} font-size="12" fill="${colours.muted}">${svgEscape(heading2.textContent)}</text>`);
      }
      return svgDocument(frame.width + 48, frame.height + 48, colours.surface, parts);
    }
    destroy() {
      this.round += 1;
      this.context.tooltip.hide();
      this.scroller.remove();
    }
  };
  function wordButtons(side, axis, sequence, state) {
    const pieces = state.unit === "pieces" ? sequence?.words?.pieces : null;
    return axis.labels.map((label, index) => {
      const word = index > 0 ? wordOf(pieces, axis.members[index]) : null;
      const isSame = word !== null && word === wordOf(pieces, axis.members[index - 1]);
      const name = side === "row" ? `text-word-${index}` : `text-source-${index}`;
      return make("button", {
        type: "button",
        class: `word${axis.special[index] ? " word-special" : ""}${axis.written[index] ? " word-written" : ""}${isSame ? " word-joined" : ""}`,
        tabindex: "-1",
        "data-side": side,
        "data-index": index,
        "data-testid": name,
        "aria-pressed": "false"
      }, make("bdi", { dir: "auto" }, visibleLabel(label)));
    });
  }
  function wordOf(pieces, members) {
    return pieces && members.length === 1 ? pieces[members[0]] ?? null : null;
  }
  function withSpaces(words) {
    return words.flatMap((word) => word.classList.contains("word-joined") ? [word] : [" ", word]);
  }
  function overallWeights(frame, isFrom) {
    const [rows, columns] = [frame.rows.labels.length, frame.columns.labels.length];
    if (rows === 0 || columns === 0) return null;
    const values = isFrom ? frame.received() : frame.whole && meanOfColumns(frame.whole, rows, columns);
    if (!values) return null;
    const largest = largestSize(values);
    return { values, largest, peak: largest, side: frame.square || !isFrom ? "row" : "column" };
  }
  function meanOfColumns(whole, rows, columns) {
    return Float32Array.from({ length: rows }, (_, row) => whole.subarray(row * columns, (row + 1) * columns).reduce((sum, weight) => sum + weight, 0) / columns);
  }
  function largestSize(values) {
    let most = 0;
    for (const value of values) if (Math.abs(value) > most) most = Math.abs(value);
    return most;
  }
  function wordAsSvg(word, frame, colours) {
    const box = word.getBoundingClientRect();
    const style = getComputedStyle(word);
    const [x, y] = [box.left - frame.left + 24, box.top - frame.top + 24];
    const stroke = word.getAttribute("aria-pressed") === "true" ? ` stroke="${colours.highlight}" stroke-width="2"` : "";
    const rectangle = `<rect x="${x}" y="${y}" width="${box.width}" height="${box.height}" rx="4" fill="${svgEscape(style.backgroundColor)}"${stroke}/>`;
    const place = `x="${x + box.width / 2}" y="${y + box.height / 2}" text-anchor="middle" dominant-baseline="central"`;
    const ink = `font-size="${parseFloat(style.fontSize)}" fill="${svgEscape(style.color)}"`;
    return `${rectangle}<text ${place} ${ink}>${svgEscape(word.textContent)}</text>`;
  }

  // page/pane.js
  var FRAME_KEYS = ["part", "layer", "mode", "head", "unit", "special", "step", "measure"];
  var BUSY_DELAY = 160;
  var LONGEST_SUGGESTED = 512;
  var VIEW_CREATORS = { map: createMapView, matrix: createMatrixView, lines: createLinesView, text: createTextView, image: createImageView };
  var paneCount = 0;
  function createPane(host, scene, options) {
    const pane = new Pane(host, scene, options);
    return {
      store: pane.store,
      element: pane.element,
      scene: () => pane.context.scene,
      show: (next) => pane.show(next),
      take: (patch) => pane.take(patch),
      refresh: () => pane.refresh(),
      view: () => pane.view,
      controls: () => pane.controls,
      save: (kind) => pane.save(kind),
      destroy: () => pane.destroy()
    };
  }
  var Pane = class {
    constructor(host, scene, options) {
      this.options = options;
      this.page = options.page;
      this.identity = `pane-${paneCount += 1}`;
      this.name = options.isSecond ? `Second: ${scene.title}` : scene.title;
      this.round = 0;
      this.frame = null;
      this.context = { scene, tooltip: this.page.tooltip, announce: this.page.announce, palette: () => palette(this.store.get().theme) };
      this.store = createStore({ ...startState(scene), ...options.state }, (state, patch) => settleState(this.context.scene, state, patch));
      this.context.store = this.store;
      this.context.fail = (problem) => this.fail(problem);
      this.context.recover = () => this.recover();
      this.context.scenes = this.page.scenes;
      this.context.states = this.page.states;
      this.context.flip = this.page.flip;
      this.context.setAll = this.page.setAll;
      this.context.exported = () => this.page.columnOf(this.page.active()?.store);
      this.context.take = (patch) => this.take(patch);
      this.context.legend = (scale) => this.showLegend(scale);
      this.build(host);
      this.stop = this.store.subscribe((state, changed) => this.follow(state, changed));
      this.follow(this.store.get(), ["view", ...FRAME_KEYS]);
    }
    build(host) {
      const { options, context } = this;
      this.title = make("h2", { class: "pane-title", hidden: !options.isTitled }, context.scene.title);
      const head = make("div", { class: "pane-head" }, this.title);
      this.viewHost = make("div", { class: "view-host", id: this.identity, role: "tabpanel" });
      this.tabs = options.isSecond ? null : createTabs(options.tabs ?? head, context, this.identity);
      if (options.isSecond) this.viewHost.setAttribute("role", "group");
      this.problem = make("p", { class: "problem", role: "alert", hidden: true });
      this.status = make("p", { class: "status", "data-testid": "status" });
      const foot = make("footer", { class: "foot" });
      this.legend = createLegend(foot);
      foot.append(this.status);
      this.railHost = make("div", { class: "rail-scroll", "data-scrolls": true });
      const railTitle = make("div", { class: "rail-title", "aria-hidden": "true" }, "Heads");
      const rail = make("aside", { class: "rail", "aria-label": `Heads of ${this.name}` }, railTitle, this.railHost);
      const middle = make("div", { class: "stage-middle" }, this.viewHost);
      this.stage = make("div", { class: "stage" }, this.problem, middle, foot);
      this.pair = createPairPanel(middle, context);
      context.pinned = (cell) => cell ? this.pair.show(this.frame, this.store.get(), cell.row, cell.column) : this.pair.hide();
      this.element = make("section", { class: "pane", "aria-label": this.name }, head);
      head.hidden = !options.isTitled && Boolean(options.tabs || options.isSecond);
      this.controls = options.isSecond ? null : createControlBar(options.controls ?? this.element, context, this.actions(), options.actionHost);
      this.element.append(make("div", { class: "pane-body" }, rail, this.stage));
      host.append(this.element);
      this.rail = createHeadsGrid(this.railHost, context, "rail", (layer, head2) => this.chooseHead(layer, head2));
      this.slider = this.buildSlider();
      this.sizes = new ResizeObserver(() => this.view?.resize());
      this.sizes.observe(this.viewHost);
    }
    buildSlider() {
      if (!this.context.scene.steps) return null;
      const host = this.controls ? this.controls.steps : make("div", { class: "step-host" });
      if (!this.controls) this.stage.prepend(host);
      return createStepSlider(host, this.context);
    }
    chooseHead(layer, head) {
      this.store.set({ layer, head, mode: "head" });
    }
    actions() {
      return { save: (kind) => this.page.active().save(kind), copyLink: () => this.page.copyLink() };
    }
    save(kind) {
      return kind === "csv" ? this.exportNumbers() : this.exportPicture(kind === "png" ? exportPng : exportSvg);
    }
    async exportPicture(exportFile) {
      try {
        await exportFile(this.picture(), this.store.get(), this.context.scene);
        this.announceSaved("The picture");
      } catch (problem) {
        this.fail(problem);
      }
    }
    announceSaved(file) {
      const column = this.page.columnOf(this.store);
      this.page.announce(column ? `${file} of the ${column} column was saved` : `${file} was saved`);
    }
    /** What the view shows as SVG, with the colour scale and what is shown below it. */
    picture() {
      const { view } = this.store.get();
      const scale = view === "image" ? null : this.legend.current();
      return captionedSvg(this.view.picture().svg, this.context.scene.title, this.status.textContent, scale, this.context.palette());
    }
    async exportNumbers() {
      try {
        const state = this.store.get();
        const isCurrent = this.frame && !this.frameWanted;
        const frame = isCurrent ? this.frame : await frameOf(this.context.scene, state);
        const progress = (done, total) => frame.whole === null && this.page.announce(`${done} of ${total} rows are here`);
        await exportCsv(frame, state, this.context.scene, progress);
        this.announceSaved("The table of weights");
      } catch (problem) {
        this.fail(problem);
      }
    }
    /** Brings the pane to a state of which some keys changed. */
    follow(state, changed) {
      const isFirst = !this.shownView;
      if (changed.includes("view")) this.openView(state);
      this.tabs?.update(state);
      this.controls?.update(state);
      this.slider?.update?.(this.frame, state);
      this.showRail(state);
      this.element.dataset.view = state.view;
      this.element.toggleAttribute("data-single", headCount(this.context.scene, state.part) === 1);
      const needsFrame = changed.some((key) => FRAME_KEYS.includes(key)) || this.frame === null;
      if (needsFrame) [this.frameWanted, this.isRestored] = [true, false];
      if (state.view === "map") this.showMap(state);
      else if (this.frameWanted) this.loadFrame(state);
      else this.draw(state);
      if (!isFirst) this.page.changed();
    }
    /** Takes a state from outside: what it chooses and zooms to is meant for the frame that comes with it. */
    take(patch) {
      this.store.set(patch);
      this.isRestored = this.frameWanted;
    }
    openView(state) {
      if (this.shownView === state.view) return;
      this.wantsFocus = Boolean(this.shownView) && this.losesFocus(state.view);
      this.view?.destroy();
      this.pair.hide();
      this.viewHost.replaceChildren();
      this.viewHost.setAttribute("aria-label", `${state.view} view`);
      this.shownView = state.view;
      this.view = VIEW_CREATORS[state.view](this.viewHost, this.context);
    }
    /** Whether the keyboard is on what another view takes away, or nowhere. */
    losesFocus(nextView) {
      const focused = document.activeElement;
      return focused === document.body || this.viewHost.contains(focused) || nextView === "map" && this.railHost.contains(focused);
    }
    async showRail(state) {
      try {
        await this.rail.update(state);
      } catch (problem) {
        this.fail(problem);
      }
    }
    async showMap(state) {
      const { view } = this;
      this.hideProblem();
      this.status.textContent = statusText(this.context.scene, state, null);
      this.legend.show(1, false, state.colour, this.context.palette(), [state.colour === "log" ? `\u2264 ${weightAtShare(0, 1, "log")} of it` : "0", "", "largest of each head"]);
      try {
        await view.update(null, state);
      } catch (problem) {
        if (view === this.view) this.fail(problem);
      }
      this.returnFocus();
      this.page.drawn();
    }
    async loadFrame(state) {
      const round = this.round += 1;
      this.frameWanted = true;
      const slow = setTimeout(() => this.setBusy(round), BUSY_DELAY);
      try {
        const frame = await frameOf(this.context.scene, state);
        if (round !== this.round) return;
        this.takeFrame(frame);
      } catch (problem) {
        if (round === this.round) this.fail(problem);
      } finally {
        clearTimeout(slow);
        if (round === this.round) delete this.stage.dataset.busy;
      }
    }
    setBusy(round) {
      if (round !== this.round) return;
      this.stage.dataset.busy = "";
      this.status.textContent = "Computing weights\u2026";
    }
    takeFrame(frame) {
      const previous = this.frame;
      this.frame = frame;
      this.frameWanted = false;
      this.hideProblem();
      if (previous) this.page.announce(statusText(this.context.scene, this.store.get(), null));
      const patch = previous && !this.isRestored ? carriedSelection(previous, frame, this.store.get(), this.framePart) : {};
      this.framePart = this.store.get().part;
      this.isRestored = false;
      this.slider?.update?.(frame, this.store.get());
      const state = this.store.get();
      this.store.set(patch);
      if (this.store.get() === state) this.draw(state);
    }
    async draw(state) {
      const { frame, view } = this;
      if (!frame || state.view === "map") return;
      if (state.view === "lines" && this.suggestWord(frame, state)) return;
      this.status.textContent = statusText(this.context.scene, state, frame);
      this.status.title = this.status.textContent;
      this.showLegend(null);
      try {
        await view.update(frame, state);
      } catch (problem) {
        if (view === this.view && frame === this.frame) this.fail(problem);
      }
      this.returnFocus();
      this.page.drawn();
    }
    /** Lines begin with a word whose lines tell something, but for a translation; what is clicked first takes its place. */
    suggestWord(frame, state) {
      if (this.hasSuggested) return false;
      this.hasSuggested = true;
      const isTranslation = !frame.square && Boolean(frame.columns.name);
      const row = state.selected.length || isTranslation ? -1 : clearestRow(frame, state);
      if (row < 0) return false;
      this.context.suggested = [row];
      this.store.set({ selected: [row], direction: "from" });
      return true;
    }
    /** A keyboard that was in the view before goes on in the view that took its place. */
    returnFocus() {
      if (this.wantsFocus && this.losesFocus(this.shownView)) this.view.focus?.();
      this.wantsFocus = false;
    }
    showLegend(scale) {
      const { colour } = this.store.get();
      const { peak, signed: signed2 } = scale ?? this.frame ?? { peak: 1, signed: false };
      const top = !scale && this.frame && this.store.get().view === "matrix" ? scaleTop(this.frame, colour) : peak;
      this.legend.show(top, signed2, colour, this.context.palette(), null, top < peak);
    }
    fail(problem) {
      this.problem.hidden = false;
      this.problem.textContent = `This cannot be shown: ${problem?.message ?? problem}`;
      this.status.textContent = this.problem.textContent;
      this.stage.dataset.failed = "";
      delete this.stage.dataset.busy;
      this.page.drawn();
    }
    /** What failed before is there now. */
    recover() {
      this.hideProblem();
      this.status.textContent = statusText(this.context.scene, this.store.get(), this.frame);
    }
    hideProblem() {
      delete this.stage.dataset.failed;
      this.problem.hidden = true;
      this.problem.textContent = "";
    }
    /** Draws everything again in other colours. */
    refresh() {
      this.showRail(this.store.get());
      if (this.shownView === "map") this.showMap(this.store.get());
      else this.draw(this.store.get());
    }
    /** Replaces the scene, keeping what is looked at where the new one has it. */
    show(scene) {
      this.context.scene = scene;
      this.title.textContent = scene.title;
      this.frameWanted = true;
      if (!this.slider) this.slider = this.buildSlider();
      this.store.set({ part: this.store.get().part });
      this.follow(this.store.get(), FRAME_KEYS);
    }
    destroy() {
      this.round += 1;
      this.stop();
      this.sizes.disconnect();
      this.view?.destroy();
      this.rail.destroy();
      this.slider?.destroy?.();
      this.tabs?.destroy();
      this.controls?.destroy();
      this.element.remove();
    }
  };
  function headCount(scene, part) {
    return scene.parts[part].sites.reduce((sum, number) => sum + scene.sites[number].heads, 0);
  }
  function clearestRow(frame, { pair, hidden }) {
    if (pair.length) return frame.rows.members.findIndex((members) => members.includes(pair[0]));
    const columns = frame.columns.labels.length;
    const [isWord, isPartner] = [frame.rows, frame.columns].map(({ labels, special }) => labels.map((label, i) => !special[i] && /[\p{L}\p{N}]/u.test(label)));
    if (!frame.whole || frame.whole.length > LONGEST_SUGGESTED ** 2) return isWord.indexOf(true);
    let [best, strongest2] = [-1, 0];
    for (let i = 0; i < frame.rows.labels.length; i += 1) {
      if (!isWord[i] || hidden.includes(i)) continue;
      for (let j = 0; j < columns; j += 1) {
        const weight = Math.abs(frame.whole[i * columns + j]);
        if (weight > strongest2 && isPartner[j] && !(frame.square && i === j)) [best, strongest2] = [i, weight];
      }
    }
    return best;
  }
  function startState(scene) {
    const heads = scene.sites.reduce((sum, site) => sum + site.heads, 0);
    const view = scene.image ? "image" : heads > 1 ? "map" : "matrix";
    return { ...initialState(), view, ...patchOfFragment(scene.start) };
  }
  function carriedSelection(before, after, state, partBefore) {
    const isSameShape = before.rows.labels.length === after.rows.labels.length && before.columns.labels.length === after.columns.labels.length;
    const patch = isSameShape ? {} : { zoom: null };
    if (partBefore !== state.part) return { ...patch, selected: [], hidden: [], pinned: false };
    if (isSameShape && isSameAxis(before.rows, after.rows) && isSameAxis(before.columns, after.columns)) return patch;
    const isFrom = state.direction === "from" || before.square;
    const [oldAxis, axis] = isFrom ? [before.rows, after.rows] : [before.columns, after.columns];
    const indices = /* @__PURE__ */ new Map();
    axis.members.forEach((members, index) => members.forEach((position) => indices.set(position, index)));
    const positions = state.selected.flatMap((index) => oldAxis.members[index] ?? []);
    const selected = new Set(positions.map((position) => indices.get(position)));
    selected.delete(void 0);
    return { ...patch, hidden: [], selected: [...selected] };
  }
  function isSameAxis(before, after) {
    return before.members.every((members, index) => members.join() === after.members[index].join());
  }

  // page/tooltip.js
  var DISTANCE = 14;
  function createTooltip(host) {
    const box = make("div", { class: "tooltip", role: "tooltip", "data-testid": "tooltip", hidden: true });
    host.append(box);
    return {
      show(x, y, lines) {
        box.replaceChildren(...lines.map(tooltipLine));
        box.hidden = false;
        placeBeside(box, x, y);
      },
      hide() {
        box.hidden = true;
      }
    };
  }
  function tooltipLine(line, index) {
    const { text: text2, kind } = typeof line === "string" ? { text: line, kind: index === 0 ? "strong" : "plain" } : line;
    return make("div", { class: `tooltip-${kind ?? "plain"}`, dir: "auto" }, ...textWithLabels(text2));
  }
  function placeBeside(box, x, y) {
    const { offsetWidth: width, offsetHeight: height } = box;
    const fitsRight = x + DISTANCE + width < window.innerWidth - 4;
    const fitsBelow = y + DISTANCE + height < window.innerHeight - 4;
    const left = fitsRight ? x + DISTANCE : x - DISTANCE - width;
    const top = fitsBelow ? y + DISTANCE : y - DISTANCE - height;
    box.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }

  // page/page.js
  var THEMES = ["auto", "light", "dark"];
  var THEME_NAMES = { auto: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" };
  var ViewerPage = class {
    constructor(root, manifest) {
      this.manifest = manifest;
      this.panes = [];
      this.recent = null;
      this.inputs = () => [];
      this.restore = (_fragment) => {
      };
      this.prefix = () => "";
      this.themed = () => {
      };
      this.theme = "auto";
      this.tooltip = createTooltip(root);
      this.announcer = make("div", { class: "unseen", "aria-live": "polite", "data-testid": "announcer" });
      this.toast = make("div", { class: "toast", hidden: true, "aria-hidden": "true" });
      this.help = createHelp(root);
      this.build(root);
      this.services = {
        tooltip: this.tooltip,
        announce: (text2) => this.announce(text2),
        changed: () => this.changed(),
        drawn: () => this.drawn(),
        copyLink: () => this.copyLink(),
        openHelp: () => this.openHelp(),
        nextTheme: () => this.nextTheme(),
        scenes: () => this.panes.map((pane) => pane.scene()),
        states: () => this.states(),
        flip: (key, values) => this.flip(key, values),
        setAll: (patch) => this.panes.forEach((pane) => pane.store.set(patch)),
        active: () => this.activePane(),
        columnOf: (store) => this.columnOf(store)
      };
      listenToKeys(() => this.panes, this.services);
      globalThis.matchMedia?.("(prefers-color-scheme: dark)").addEventListener("change", () => this.applyTheme(this.theme));
      window.addEventListener("hashchange", () => this.readAddress());
    }
    build(root) {
      this.themeButton = createIconButton("theme-toggle", "auto", THEME_NAMES.auto, () => this.nextTheme());
      const help = createIconButton("help-button", "help", "Help and keys (?)", () => this.openHelp());
      this.heading = make("h1", { class: "page-title", title: this.manifest.title }, this.manifest.title);
      this.tabHost = make("div", { class: "top-tabs" });
      this.actionHost = make("div", { class: "top-actions" }, this.themeButton, help);
      this.main = make("main", { class: "panes" });
      root.prepend(make("header", { class: "top" }, this.heading, this.tabHost, this.actionHost), this.main);
      root.append(this.announcer, this.toast);
      this.applyTheme(patchOfFragment(readFragment()).theme ?? "auto");
    }
    /** Opens a scene in an element; the page follows its theme and puts its state into the address. */
    openPane(host, scene, options = {}) {
      const index = this.panes.length;
      const state = { ...patchOfFragment(readFragment(), index), theme: this.theme, ...options.state };
      const pane = createPane(host, scene, { ...options, page: this.services, state });
      this.panes.push(pane);
      for (const kind of ["pointerdown", "focusin"]) pane.element.addEventListener(kind, (event) => event.target.closest(".pane-body") && this.activate(pane));
      this.refreshControls();
      const stop = pane.store.subscribe((now) => now.theme !== this.theme && this.applyTheme(now.theme));
      return {
        ...pane,
        destroy: () => {
          stop();
          this.panes = this.panes.filter((other) => other.store !== pane.store);
          if (this.recent?.store === pane.store) this.recent = null;
          pane.destroy();
          this.refreshControls();
        }
      };
    }
    openScenes(scenes) {
      const isPair = scenes.length > 1;
      this.main.toggleAttribute("data-pair", isPair);
      const controls = isPair ? make("section", { class: "control-host", "aria-label": "Controls" }) : null;
      if (controls) this.main.before(controls);
      const opened = scenes.map((scene, index) => this.openPane(this.main, scene, {
        tabs: index === 0 ? this.tabHost : null,
        actionHost: index === 0 ? this.actionHost : null,
        controls,
        isTitled: isPair,
        isSecond: index > 0
      }));
      if (isPair) linkStores(opened[0].store, opened[1].store, linkedKeys(scenes));
    }
    states() {
      return this.panes.map((pane) => pane.store.get());
    }
    changed() {
      this.refreshControls();
      writeFragment(() => this.fragment());
    }
    fragment() {
      const states = fragmentOf(this.states(), this.inputs(), this.panes.map((pane) => patchOfFragment(pane.scene().start)));
      return [this.prefix(), states].filter(Boolean).join("&");
    }
    /** What the controls of one pane offer depends on both. */
    refreshControls() {
      for (const pane of this.panes) pane.controls()?.update(pane.store.get());
    }
    activate(pane) {
      if (this.recent === pane) return;
      this.recent = pane;
      this.refreshControls();
    }
    /** The pane that was last used, which is the one that is exported. */
    activePane() {
      return this.recent ?? this.panes[0];
    }
    /** "left" or "right", where there are two panes. */
    columnOf(store) {
      if (this.panes.length < 2) return null;
      return this.panes[0].store === store ? "left" : "right";
    }
    /** Goes on to the next value of a switch of all panes; one that lacks what it is about stays as it is. */
    flip(key, values) {
      if (key === "unit" && !this.panes.some((pane) => hasWords(pane.scene()))) return false;
      const index = Math.max(...this.states().map((state) => values.indexOf(state[key])));
      for (const pane of this.panes) pane.store.set({ [key]: values[(index + 1) % values.length] });
      return true;
    }
    readAddress() {
      const fragment = readFragment();
      if (fragment === this.fragment()) return;
      this.panes.forEach((pane, index) => pane.take({ ...initialState(), ...patchOfFragment(fragment, index) }));
      this.restore(fragment);
    }
    applyTheme(theme) {
      this.theme = theme;
      document.documentElement.dataset.theme = resolveTheme(theme);
      this.themeButton.replaceChildren(icon(theme));
      this.themeButton.setAttribute("aria-label", THEME_NAMES[theme]);
      this.themeButton.title = `${THEME_NAMES[theme]} (t)`;
      for (const pane of this.panes) {
        pane.store.set({ theme });
        pane.refresh();
      }
      this.themed();
    }
    nextTheme() {
      this.applyTheme(THEMES[(THEMES.indexOf(this.theme) + 1) % THEMES.length]);
      this.announce(THEME_NAMES[this.theme]);
    }
    openHelp() {
      this.help.open(this.panes.map((pane) => pane.scene()));
    }
    announce(text2) {
      this.announcer.textContent = text2;
    }
    async copyLink() {
      const link = linkTo(this.fragment());
      const isCopied = await this.copyText(link);
      const omission = this.inputs().every(isWholeInLink) ? "" : ". It leaves out the picture, or a text of more than 1000 characters";
      this.say(isCopied ? `The link to this view was copied${omission}` : `Copying is not allowed here. The link is ${link}`);
    }
    copyText(text2) {
      return copyText(text2);
    }
    /** A short message that can be seen and heard. */
    say(text2) {
      this.announce(text2);
      this.toast.textContent = text2;
      this.toast.hidden = false;
      clearTimeout(this.toastTimer);
      this.toastTimer = setTimeout(() => {
        this.toast.hidden = true;
      }, 3500);
    }
    /** Says once, after the browser has put it on screen, that the first picture is there. */
    drawn() {
      if (this.isDrawn) return;
      this.isDrawn = true;
      requestAnimationFrame(() => requestAnimationFrame(() => {
        document.documentElement.dataset.ready = "1";
        performance.mark("first-picture");
      }));
    }
  };
  function linkedKeys(scenes) {
    const [first, second] = scenes.map((scene) => JSON.stringify(scene.sequences.map((sequence) => sequence.tokens)));
    return first === second ? [...SHARED_KEYS, "selected", "hidden", "pinned", "zoom", "step"] : SHARED_KEYS;
  }
  async function copyText(text2) {
    try {
      await navigator.clipboard.writeText(text2);
      return true;
    } catch {
      const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
      field.value = text2;
      document.body.append(field);
      field.select();
      const isCopied = document.execCommand("copy");
      field.remove();
      return isCopied;
    }
  }

  // report/collection.js
  var NO_TYPE = 255;
  var DIFFERENCE = "difference";
  async function openCollection(manifest) {
    const loader = inlineLoader(0);
    const heads = manifest.layers.flatMap((layer, place) => Array.from({ length: layer.heads }, (_, head) => ({ ...layer, place, head })));
    const firsts = [];
    manifest.layers.reduce((sum, layer, place) => (firsts[place] = sum, sum + layer.heads), 0);
    const runs = await Promise.all(manifest.runs.map((run, place) => openRun(loader, run, place)));
    return new HeadNumbers(manifest, loader, heads, firsts, runs);
  }
  async function openRun(loader, run, place) {
    const names = ["mean", "error", "number", "examples", "types", "with_sink"];
    const arrays = await Promise.all(names.map((name) => loader.read(run[name])));
    return { ...run, place, ...Object.fromEntries(names.map((name, index) => [name, arrays[index]])) };
  }
  var HeadNumbers = class {
    constructor(manifest, loader, heads, firsts, runs) {
      this.manifest = manifest;
      this.loader = loader;
      this.heads = heads;
      this.runs = runs;
      this.firsts = firsts;
      this.layers = manifest.layers;
      this.quantities = manifest.quantities;
      this.typeNames = Object.keys(manifest.types);
      this.details = /* @__PURE__ */ new Map();
      this.texts = /* @__PURE__ */ new Map();
    }
    get isPair() {
      return this.runs.length > 1;
    }
    get hasTypes() {
      return this.runs.some((run) => run.types.some((type) => type !== NO_TYPE));
    }
    /** The number of a head by layer and head as they are counted on the page; -1 where there is none. */
    headAt(place, head) {
      const layer = this.layers[place];
      return layer && head >= 0 && head < layer.heads ? this.firsts[place] + head : -1;
    }
    quantity(key) {
      return this.quantities.findIndex((quantity) => quantity.key === key);
    }
    /** Mean, error, number and examples of a quantity of a head, in a run or in the difference of two. */
    estimate(quantity, head, run) {
      const at = quantity * this.heads.length + head;
      if (run !== DIFFERENCE) return { mean: this.runs[run].mean[at], error: this.runs[run].error[at], number: this.runs[run].number[at], examples: this.runs[run].examples[at] };
      const [first, second] = this.runs;
      return { mean: second.mean[at] - first.mean[at], error: Math.hypot(first.error[at], second.error[at]), number: NaN, examples: NaN };
    }
    /** Whether a difference is more than chance brings in any head; null where no error is known. */
    isClear(quantity, head) {
      const { mean, error } = this.estimate(quantity, head, DIFFERENCE);
      if (!Number.isFinite(mean) || !Number.isFinite(error)) return null;
      return Math.abs(mean) > this.manifest.clear * error;
    }
    /** The type of a head in one word, null where there is none. */
    type(head, run) {
      return this.typeNames[this.runs[run].types[head]] ?? null;
    }
    /** The type, and whether a sink was set aside to tell it. */
    typeLabel(head, run) {
      const type = this.type(head, run);
      return type && this.runs[run].with_sink[head] ? `${type}, with a sink` : type;
    }
    /** Whether a head has another type in the second run. */
    isChanged(head) {
      return this.isPair && this.type(head, 0) !== this.type(head, 1);
    }
    /** The details of the layer of a head in a run: chunks as arrays, with the place of the head in them. */
    async detail(head, run) {
      const { place, head: own } = this.heads[head];
      const key = `${run}/${place}`;
      if (!this.details.has(key)) this.details.set(key, this.readArrays(this.runs[run].sites[place]));
      return { ...await this.details.get(key), own };
    }
    /** The same structure with numbers in the place of chunks. */
    async readArrays(value) {
      if (value === null || typeof value !== "object") return value;
      if (typeof value.dtype === "string") return { shape: value.shape, data: await this.loader.read(value) };
      const entries = await Promise.all(Object.entries(value).map(async ([name, inner]) => [name, await this.readArrays(inner)]));
      return Array.isArray(value) ? entries.map(([, inner]) => inner) : Object.fromEntries(entries);
    }
    /** The documents that examples of a run are from. */
    documents(run) {
      if (!this.texts.has(run)) this.texts.set(run, this.readJson(this.runs[run].texts));
      return this.texts.get(run);
    }
    async readJson(chunk) {
      return JSON.parse(new TextDecoder().decode(await this.loader.read(chunk)));
    }
  };
  function rowOf({ shape, data }, head) {
    const size = shape.slice(1).reduce((product, length) => product * length, 1);
    const at = shape[0] === 1 ? 0 : head;
    return data.subarray(at * size, (at + 1) * size);
  }

  // report/numbers.js
  function withError(estimate, signed2 = false) {
    const { mean, error } = estimate;
    const sign = signed2 && mean > 0 ? "+" : "";
    if (!Number.isFinite(mean) || !Number.isFinite(error)) return sign + withoutError(estimate);
    return `${sign}${withoutError(estimate)} \xB1 ${error === 0 ? "0" : error.toFixed(placesOf(error))}`;
  }
  function withoutError({ mean, error }) {
    if (!Number.isFinite(mean)) return "\u2013";
    const words = Number.isFinite(error) && error > 0 ? mean.toFixed(placesOf(error)) : readableWeight(mean);
    return words.replace("-", "\u2212");
  }
  function placesOf(error) {
    return Math.min(7, Math.max(0, 1 - Math.floor(Math.log10(error))));
  }
  function briefNumber(value, peak = 1) {
    if (!Number.isFinite(value)) return "\u2013";
    const size = Math.abs(value);
    const places = size >= 9.95 ? 0 : size >= 0.995 ? 1 : Math.min(4, Math.max(2, 1 - Math.floor(Math.log10(peak))));
    const digits = size.toFixed(places).replace(/^0\./, ".");
    if (Number(digits) === 0) return "0";
    return (value < 0 ? "\u2212" : "") + digits;
  }
  function percent(share) {
    if (!Number.isFinite(share)) return "\u2013";
    const value = 100 * share;
    if (value > 0 && value < 0.05) return "< 0.1 %";
    return `${value >= 9.95 || value === 0 ? value.toFixed(0) : value.toFixed(1)} %`;
  }
  function counted(count, name) {
    return `${count.toLocaleString("en-GB")} ${name}${count === 1 ? "" : "s"}`;
  }

  // report/charts.js
  var SIZE = { width: 400, height: 132, left: 40, right: 8, top: 8, bottom: 24 };
  var LEAST_SHARE = 1e-6;
  var PLOT = { width: SIZE.width - SIZE.left - SIZE.right, height: SIZE.height - SIZE.top - SIZE.bottom };
  function chart(label, testId, ...children) {
    return makeSvg("svg", { class: "chart", viewBox: `0 0 ${SIZE.width} ${SIZE.height}`, role: "img", "aria-label": label, "data-testid": testId }, ...children);
  }
  function text(x, y, words, anchor = "middle") {
    return makeSvg("text", { x, y, "text-anchor": anchor }, words);
  }
  var across = (share) => SIZE.left + share * PLOT.width;
  var up = (share) => SIZE.top + (1 - share) * PLOT.height;
  function axes(peak) {
    return [
      makeSvg("line", { class: "axis", x1: SIZE.left, x2: SIZE.width - SIZE.right, y1: up(0), y2: up(0) }),
      text(SIZE.left - 5, up(1) + 8, percent(peak), "end"),
      text(SIZE.left - 5, up(0), "0", "end")
    ];
  }
  function histogram(label, { low, width, at, error }, series, unit) {
    const ends = series.map(({ shares, quantiles }) => Math.max(lastUsed(shares), Math.ceil((quantiles.at(-1) - low) / width)));
    const count = Math.max(1, Math.min(series[0].shares.length, Math.max(...ends) + 1));
    const peak = Math.max(...series.flatMap(({ shares }) => [...shares]), 1e-9);
    const step = PLOT.width / count;
    const bars = [...series[0].shares.slice(0, count)].map((share, bin) => makeSvg("rect", { class: "bar", x: across(0) + bin * step + 0.5, y: up(share / peak), width: Math.max(0.8, step - 1), height: up(0) - up(share / peak) }));
    const place = (value) => across(Math.min(1, (value - low) / (count * width)));
    const median = ({ quantiles }, number) => makeSvg("line", { class: `median median-${number}`, x1: place(quantiles[2]), x2: place(quantiles[2]), y1: up(1), y2: up(0) });
    const ticks = niceTicks(low, low + count * width).map((value) => text(place(value), SIZE.height - 8, readableWeight(value)));
    const outline = series[1] ? [makeSvg("path", { class: "outline", d: stepPath(series[1].shares.slice(0, count), peak, step) })] : [];
    const words = series.map(({ name, quantiles }) => `${name ? `${name}: ` : ""}median ${readableWeight(quantiles[2])}, ${percent(at[4] - at[0])} between ${readableWeight(quantiles[0])} and ${readableWeight(quantiles[4])}${unit}`);
    return make(
      "figure",
      { class: "figure" },
      chart(`${label}: ${words.join("; ")}`, "chart-bins", ...axes(peak), ...bars, ...outline, ...series.map(median), ...ticks),
      make("figcaption", {}, `${words.join("; ")}. Off by no more than ${readableWeight(error)}.`)
    );
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
    for (let value = Math.ceil(low / step) * step; value <= high + step / 1e3; value += step) ticks.push(Number(value.toFixed(9)));
    return ticks;
  }
  function distanceProfile(series) {
    const places = series.map(({ offset, width, share, even }) => offset.map((at, index) => ({ at, share: share[index] / width[index], even: even[index] / width[index] })));
    const used = places.flat().filter(({ share, even }) => share > LEAST_SHARE || even > LEAST_SHARE);
    const [first, last] = [Math.min(...used.map(({ at }) => at), 0), Math.max(...used.map(({ at }) => at), 0)];
    const [low, high] = [bent(first), bent(last)];
    const peak = Math.max(...used.map(({ share, even }) => Math.max(share, even)), 1e-9);
    const x = (at) => across(high > low ? (bent(at) - low) / (high - low) : 0.5);
    const line = (points, value) => points.filter(({ at }) => at >= first && at <= last).map((point, index) => `${index ? "L" : "M"}${x(point.at).toFixed(1)} ${up(value(point) / peak).toFixed(1)}`).join("");
    const area = `${line(places[0], ({ share }) => share)}L${x(last)} ${up(0)}L${x(first)} ${up(0)}Z`;
    const ticks = [-1024, -256, -64, -16, -4, -1, 0, 1, 4, 16, 64, 256, 1024].filter((at) => at >= first && at <= last).map((at) => text(x(at), SIZE.height - 8, at > 0 ? `+${at}` : String(at).replace("-", "\u2212")));
    const own = places.map((points) => points.reduce((best, point) => point.share > best.share ? point : best));
    const words = own.map(({ at, share }, number) => `${series[number].name ? `${series[number].name}: ` : ""}most at ${distanceName(at)}, ${percent(share)}`).join("; ");
    const second = places[1] ? [makeSvg("path", { class: "outline", d: line(places[1], ({ share }) => share) })] : [];
    return make(
      "figure",
      { class: "figure" },
      chart(
        `Attention by distance: ${words}`,
        "chart-profile",
        ...axes(peak),
        makeSvg("path", { class: "area", d: area }),
        makeSvg("path", { class: "area-line", d: line(places[0], ({ share }) => share) }),
        makeSvg("path", { class: "even", d: line(places[0], ({ even }) => even) }),
        ...second,
        ...ticks
      ),
      make("figcaption", {}, `${words}. Share of all attention at each distance; dashed: even attention to all tokens in sight.`)
    );
  }
  function bent(at) {
    return Math.sign(at) * Math.log2(1 + Math.abs(at));
  }
  function distanceName(at) {
    if (Math.abs(at) < 0.5) return "the token itself";
    const size = Math.round(Math.abs(at));
    return `${size} ${size === 1 ? "token" : "tokens"} ${at < 0 ? "back" : "ahead"}`;
  }
  function typeShares(names, signs, series) {
    const shown = names.map((name, number) => ({ name, number, most: Math.max(...series.map(({ shares }) => shares[number])) })).filter(({ most }) => most > 0).sort((one, other) => series[0].shares[other.number] - series[0].shares[one.number]);
    const rows = shown.map(({ name, number }) => make(
      "tr",
      {},
      make("th", { scope: "row" }, make("span", { class: "type-sign", "data-type": name, "aria-hidden": "true" }, signs[name]), name),
      ...series.flatMap(({ shares }, place) => [make("td", { class: "number" }, percent(shares[number])), make("td", { class: "share-cell" }, bar(shares[number], place))])
    ));
    const head = series.length > 1 ? [make("thead", {}, make("tr", {}, make("th", {}, ""), ...series.map(({ name }) => make("th", { scope: "col", colspan: "2" }, name))))] : [];
    return make("table", { class: "type-shares", "data-testid": "type-shares" }, make("caption", { class: "unseen" }, "Share of texts in which the head is of each type"), ...head, make("tbody", {}, ...rows));
  }
  function bar(share, place) {
    const element = make("span", { class: `share-bar share-bar-${place}` });
    element.style.width = `${100 * share}%`;
    return element;
  }

  // report/examples.js
  var AROUND = 14;
  async function exampleList(numbers, head, run, label, strongest2, own, actions) {
    const documents = await numbers.documents(run);
    const places = rowOf(strongest2.places, own);
    const scores = rowOf(strongest2.scores, own);
    const items = [];
    for (let rank = 0; rank < scores.length; rank += 1) {
      const [place, query, key] = places.subarray(3 * rank, 3 * rank + 3);
      if (place >= 0) items.push(exampleItem(numbers, head, run, { document: documents[place], query, key, score: scores[rank] }, actions));
    }
    if (items.length === 0) items.push(make("li", { class: "quiet" }, "In no text does it attend to another token that is neither the first nor a special one."));
    return make("ol", { class: "examples", "aria-label": label, "data-testid": "examples" }, ...items);
  }
  function exampleItem(numbers, head, run, example, actions) {
    const { document: source, query, key, score } = example;
    const tokens = source.tokens ?? null;
    const named = (at) => isolated(tokens ? String(tokens[at]) : `token ${at}`);
    const line = make("p", { class: "example-pair" }, make("b", { class: "example-score" }, score.toFixed(2)), ...textWithLabels(` ${named(query)} \u2192 ${named(key)}`), make("span", { class: "quiet" }, ` \xB7 text ${source.number}`));
    const buttons = make("p", { class: "example-buttons" });
    const sceneKey = `${numbers.heads[head].site}/${source.number}`;
    const { scenes, look } = numbers.runs[run];
    if (scenes[sceneKey]) {
      buttons.append(make("button", { type: "button", class: "text-button", "data-testid": "open-example", onclick: () => actions.open(run, head, source.number, query) }, "Open its attention"));
    }
    if (look && source.text) {
      const command = lookCommand(numbers, head, look, source.text);
      buttons.append(make("button", { type: "button", class: "text-button", "data-testid": "copy-command", title: command, onclick: () => actions.copy(command) }, "Copy command"));
    }
    const item = make("li", {}, line, tokens ? tokenText(tokens, query, key) : make("p", { class: "example-text", dir: "auto" }, source.text ?? ""));
    if (buttons.childElementCount) item.append(buttons);
    return item;
  }
  function tokenText(tokens, query, key) {
    const box = make("p", { class: "example-text", dir: "auto" });
    const show = (isWhole) => {
      const first = isWhole ? 0 : Math.max(0, Math.min(query, key) - AROUND);
      const last = isWhole ? tokens.length : Math.min(tokens.length, Math.max(query, key) + AROUND + 1);
      const nodes = [];
      const marks = spaceMarks(tokens);
      for (let at = first; at < last; at += 1) nodes.push(...tokenNodes(String(tokens[at]), at > first, marks, at === query, at === key));
      const rest = tokens.length - (last - first);
      if (rest > 0) {
        if (first > 0) nodes.unshift("\u2026 ");
        if (last < tokens.length) nodes.push(" \u2026");
        nodes.push(" ", make("button", { type: "button", class: "head-link", onclick: () => show(true) }, `${rest} more tokens`));
      }
      box.replaceChildren(...nodes);
    };
    show(tokens.length <= 6 * AROUND && Math.abs(query - key) < tokens.length);
    return box;
  }
  function spaceMarks(tokens) {
    return tokens.some((token) => /^[\u0120\u2581]/.test(String(token))) ? "before" : "joins";
  }
  function tokenNodes(token, isAfter, marks, isQuery, isKey) {
    const isJoined = marks === "before" ? !/^[\u0120\u2581]/.test(token) : token.startsWith("##");
    const shown = marks === "joins" && isJoined && token.length > 2 ? token.slice(2) : visibleLabel(token);
    const space = isAfter && !isJoined ? [" "] : [];
    if (!isQuery && !isKey) return [...space, shown];
    const kind = isQuery ? "query" : "key";
    return [...space, make("mark", { class: `example-${kind}`, title: isQuery ? "attends" : "is attended to", "data-testid": `example-${kind}` }, shown)];
  }
  function lookCommand(numbers, head, model, words) {
    const { place, head: own } = numbers.heads[head];
    return `regard look ${quoted(words)} --model ${quoted(model)} --layer ${place} --head ${own} --html look.html`;
  }
  function quoted(words) {
    return /^[\w./:-]+$/.test(words) ? words : `'${words.replaceAll("'", "'\\''")}'`;
  }

  // report/head_panel.js
  function createHeadPanel(host, numbers, actions) {
    const content = make("div", { class: "panel-content", "data-testid": "head-panel" });
    host.append(content);
    let round = 0;
    return {
      element: host,
      async update(state, colours) {
        round += 1;
        const mine = round;
        const shown = state.run === DIFFERENCE ? [0, 1] : [state.run];
        const details = await Promise.all(shown.map((run) => numbers.detail(state.at, run)));
        const lists = await Promise.all(shown.map((run, index) => examplesOf(numbers, state, run, details[index], actions)));
        if (mine !== round) return;
        content.replaceChildren(...sections(numbers, state, colours, shown, details, lists));
        content.dataset.head = String(state.at);
      }
    };
  }
  function examplesOf(numbers, state, run, detail, actions) {
    return Promise.all(detail.strongest.map(async ({ label, heads }) => ({ label, list: await exampleList(numbers, state.at, run, capitalised(label), heads, detail.own, actions) })));
  }
  function sections(numbers, state, colours, shown, details, lists) {
    const nameOf = (run) => shown.length > 1 ? numbers.runs[run].name : "";
    const own = details[0].own;
    return [
      heading(numbers, state, shown),
      make(
        "div",
        { class: "panel-sections" },
        make(
          "div",
          { class: "panel-column" },
          ...profileSection(shown, details, nameOf),
          ...typeSection(numbers, shown, details, nameOf),
          ...binSections(shown, details, nameOf),
          ...lists.flatMap((each, index) => each.map(({ label, list }) => section(`${capitalised(label)}${shown.length > 1 ? `, ${nameOf(shown[index])}` : ""}`, list))),
          ...noteSection(numbers, shown, lists)
        ),
        make(
          "div",
          { class: "panel-column" },
          numberTable(numbers, state, shown),
          ...betweenSections(details, own, colours, state)
        )
      )
    ];
  }
  function section(words, ...children) {
    return make("section", { class: "panel-section" }, make("h3", { class: "panel-title" }, words), ...children);
  }
  function heading(numbers, { at }, shown) {
    const { layer, head, site } = numbers.heads[at];
    const labels = shown.map((run) => numbers.typeLabel(at, run)).filter(Boolean);
    const chips = [...new Set(labels)].map((label) => make("span", { class: "type-label", title: typeTitle(label), "data-type": label.split(",")[0] }, label));
    const arrows = chips.length > 1 ? [chips[0], make("span", { "aria-label": "becomes" }, "\u2192"), chips[1]] : chips;
    const meaning = labels.length ? [make("p", { class: "quiet" }, `${capitalised(typeTitle(labels.at(-1)))}.`)] : [];
    return make("header", { class: "panel-head" }, make("h2", { class: "panel-name", "data-testid": "head-name" }, `Layer ${layer}, head ${head}`), make("p", { class: "panel-types", "data-testid": "head-types" }, ...arrows), make("p", { class: "panel-site" }, site), ...meaning);
  }
  function numberTable(numbers, state, shown) {
    const isDifference = state.run === DIFFERENCE;
    const columns = isDifference ? [...shown.map((each) => numbers.runs[each].name), "difference"] : ["mean \xB1 error", "rows in texts"];
    const groups = /* @__PURE__ */ new Map();
    numbers.quantities.forEach((quantity, place) => {
      const row = numberRow(numbers, state, shown, quantity, place);
      if (row) groups.set(quantity.group, [...groups.get(quantity.group) ?? [], row]);
    });
    const bodies = [...groups].map(([group, rows]) => make("tbody", {}, make("tr", { class: "numbers-group" }, make("th", { scope: "rowgroup", colspan: columns.length + 1 }, capitalised(group))), ...rows));
    const head = make("tr", {}, make("td", {}), ...columns.map((name) => make("th", { scope: "col", class: "number" }, name)));
    const table = make("table", { class: "numbers", "data-testid": "numbers" }, make("caption", { class: "unseen" }, "Numbers of the head with their standard errors"), make("thead", {}, head), ...bodies);
    return section("Numbers", make("div", { class: "number-scroller", tabindex: "0", role: "region", "aria-label": "Numbers of the head" }, table));
  }
  function numberRow(numbers, { at, run }, shown, { key, label, meaning }, quantity) {
    const estimates = shown.map((each) => numbers.estimate(quantity, at, each));
    if (estimates.every(({ mean }) => !Number.isFinite(mean))) return null;
    const cells = estimates.map((estimate) => make("td", { class: "number", title: run === DIFFERENCE ? withError(estimate) : null }, run === DIFFERENCE ? withoutError(estimate) : withError(estimate)));
    const last = run === DIFFERENCE ? differenceCell(numbers, quantity, at) : make("td", { class: "quiet number" }, overText(estimates[0]));
    return make("tr", { title: meaning, "data-quantity": key }, make("th", { scope: "row" }, label), ...cells, last);
  }
  function differenceCell(numbers, quantity, at) {
    const isClear = numbers.isClear(quantity, at);
    const hint = isClear ? "more than chance gives in any of the heads" : isClear === null ? "no error is known" : "may be chance";
    return make("td", { class: "number", "data-clear": Boolean(isClear), title: hint }, withError(numbers.estimate(quantity, at, DIFFERENCE), true), ...isClear ? [make("span", { class: "clear-mark", role: "img", "aria-label": "clear" }, " \u25CF")] : []);
  }
  function overText({ number, examples }) {
    if (!Number.isFinite(number)) return "";
    return number === examples ? counted(examples, "text") : `${Math.round(number).toLocaleString("en-GB")} in ${examples.toLocaleString("en-GB")}`;
  }
  function typeSection(numbers, shown, details, nameOf) {
    if (!details.every(({ types }) => types)) return [];
    const series = shown.map((run, index) => ({ name: nameOf(run), shares: [...rowOf(details[index].types, details[index].own)] }));
    return [section("Type in single texts", typeShares(numbers.typeNames, numbers.manifest.types, series))];
  }
  function binSections(shown, details, nameOf) {
    return details[0].bins.flatMap((bins, place) => {
      const others = details.map((detail) => detail.bins[place]);
      const isAlike = others.every((other) => other && other.width === bins.width && other.low === bins.low);
      const drawn = isAlike ? others : [bins];
      const series = drawn.map(({ shares, quantiles }, index) => ({ name: nameOf(shown[index]), shares: rowOf(shares, details[index].own), quantiles: [...rowOf(quantiles, details[index].own)] }));
      if (!series.every(({ quantiles }) => quantiles.every(Number.isFinite))) return [];
      return [section(bins.label === "entropy" ? "Entropy of rows" : capitalised(bins.label), histogram(bins.label, bins, series, bins.label === "entropy" ? " nats" : ""))];
    });
  }
  function profileSection(shown, details, nameOf) {
    if (!details.every(({ profile }) => profile)) return [];
    const series = details.map(({ profile, own }, index) => ({ name: nameOf(shown[index]), offset: profile.offset, width: profile.width, share: rowOf(profile.share, own), even: rowOf(profile.even, own) }));
    return [section("Where it looks, by distance", distanceProfile(series))];
  }
  function betweenSections(details, own, colours, { run }) {
    return details[0].between.map((between, place) => {
      const { categories } = between;
      const size = categories.length;
      const rows = details.map((detail) => detail.between[place]).map(({ mean, error, number }) => ({ mean: rowOf(mean, own), error: rowOf(error, own), number: rowOf(number, own) }));
      const isDifference = run === DIFFERENCE;
      const valueAt = (at) => isDifference ? { mean: rows[1].mean[at] - rows[0].mean[at], error: Math.hypot(rows[0].error[at], rows[1].error[at]) } : { mean: rows[0].mean[at], error: rows[0].error[at] };
      const values = Array.from({ length: size * size }, (_, at) => valueAt(at));
      const peak = isDifference ? Math.max(...values.map(({ mean }) => Math.abs(mean) || 0), 1e-9) : 1;
      const body = categories.map((from, row) => make(
        "tr",
        {},
        make("th", { scope: "row", title: `over ${Math.round(rows[0].number[row]).toLocaleString("en-GB")} tokens` }, from),
        ...categories.map((to, column) => betweenCell(values[row * size + column], `${from} \u2192 ${to}`, peak, isDifference, colours))
      ));
      const head = make("tr", {}, make("th", { scope: "col" }, "from"), ...categories.map((name) => make("th", { scope: "col" }, name)));
      const table = make("table", { class: "between", "data-testid": "between" }, make("caption", { class: "unseen" }, "Mean weight from each category of tokens to each"), make("thead", {}, head), make("tbody", {}, ...body));
      return section(isDifference ? "Between categories, difference" : "Between categories", make("div", { class: "number-scroller", tabindex: "0", role: "region", "aria-label": "Between categories" }, table));
    });
  }
  function betweenCell(value, name, peak, signed2, colours) {
    if (!Number.isFinite(value.mean)) return make("td", { class: "number", title: `${name}: none` }, "\u2013");
    const cell = make("td", { class: "number", title: `${name}: ${withError(value, signed2)}` }, briefNumber(value.mean, peak));
    cell.style.background = weightColour(colours, value.mean, peak, "linear", signed2);
    cell.style.color = inkOnWeight(colours, value.mean, peak, "linear", signed2);
    return cell;
  }
  function noteSection(numbers, shown, lists) {
    if (lists.every((each) => each.length === 0)) return [];
    const notes = shown.map((run) => numbers.runs[run]).filter(({ scenes, note }) => note || Object.keys(scenes).length === 0).map(({ note }) => note || "The attention of these texts is not in this page: regard report FOLDER --model MODEL puts it there.");
    return [...new Set(notes)].map((note) => make("p", { class: "quiet" }, note));
  }

  // report/state.js
  var TYPE = "type";
  var ORDERS = { layers: "By layer and head", largest: "Largest first", smallest: "Smallest first" };
  var ONLY = { "": "All heads", clear: "Clear differences", changed: "Changed types" };
  function initialReport(numbers) {
    const by = numbers.hasTypes ? TYPE : numbers.quantities[0].key;
    return { by, run: numbers.isPair ? DIFFERENCE : 0, order: "layers", types: [], only: "", at: 0, example: "" };
  }
  function settledReport(numbers, state) {
    const initial = initialReport(numbers);
    const next = { ...state };
    if (next.by !== TYPE && numbers.quantity(next.by) < 0) next.by = initial.by;
    if (next.by === TYPE && !numbers.hasTypes) next.by = initial.by;
    if (!ORDERS[next.order]) next.order = initial.order;
    if (ONLY[next.only] === void 0 || !numbers.isPair) next.only = "";
    const runs = numbers.isPair ? [0, 1, DIFFERENCE] : [0];
    if (!runs.includes(next.run)) next.run = initial.run;
    next.types = next.types.filter((type) => numbers.typeNames.includes(type));
    next.at = Math.min(Math.max(0, next.at), numbers.heads.length - 1);
    return next;
  }
  function isWanted(numbers, state, head) {
    const types = state.run === DIFFERENCE ? [0, 1].map((run) => numbers.type(head, run)) : [numbers.type(head, state.run)];
    if (state.types.length > 0 && !types.some((type) => state.types.includes(type))) return false;
    if (state.only === "changed") return numbers.isChanged(head);
    if (state.only === "clear") return state.by === TYPE ? numbers.isChanged(head) : numbers.isClear(numbers.quantity(state.by), head) === true;
    return true;
  }
  function reportFragment(numbers, state) {
    const initial = initialReport(numbers);
    const fields = new URLSearchParams();
    if (state.by !== initial.by) fields.set("by", state.by);
    if (state.run !== initial.run) fields.set("run", String(state.run));
    if (state.order !== initial.order) fields.set("order", state.order);
    if (state.only) fields.set("only", state.only);
    if (state.types.length > 0) fields.set("types", state.types.join(","));
    if (state.at !== 0) fields.set("at", `${numbers.heads[state.at].place}.${numbers.heads[state.at].head}`);
    if (state.example) fields.set("example", state.example);
    return fields.toString().replace(/%2C/g, ",").replace(/%2F/g, "/");
  }
  function reportOfFragment(numbers, fragment) {
    const fields = new URLSearchParams(fragment.replace(/^#/, ""));
    const state = initialReport(numbers);
    for (const name of ["by", "order", "only", "example"]) if (fields.has(name)) state[name] = fields.get(name);
    const run = fields.get("run");
    if (run !== null) state.run = run === DIFFERENCE ? run : Number(run);
    if (fields.get("types")) state.types = fields.get("types").split(",");
    const [place, head] = (fields.get("at") ?? "0.0").split(".").map(Number);
    state.at = Math.max(0, numbers.headAt(place, head));
    return settledReport(numbers, state);
  }

  // report/heads_grid.js
  var MOST = 44;
  var LEAST = 12;
  var WITH_NUMBERS = 30;
  var LABELS = 34;
  var MEANS = 78;
  function createHeadsGrid2(host, numbers, store, tooltip) {
    const cells = numbers.heads.map((head2, index) => cellOf(head2, index));
    const most = Math.max(...numbers.layers.map((layer) => layer.heads));
    const means = numbers.layers.map(() => make("div", { class: "layer-mean", "aria-hidden": "true" }, make("span", { class: "layer-bar" }), make("span", { class: "layer-number" })));
    const head = make(
      "div",
      { class: "grid-row grid-top", role: "row" },
      make("div", { class: "grid-corner", role: "columnheader" }, make("span", { class: "unseen" }, "Layer")),
      ...Array.from({ length: most }, (_, number) => make("div", { class: "grid-column", role: "columnheader", "aria-label": `head ${number}` }, number % 2 && most > 40 ? "" : String(number)))
    );
    const rows = numbers.layers.map((layer, place) => make(
      "div",
      { class: "grid-row", role: "row" },
      make("div", { class: "grid-layer", role: "rowheader", "aria-label": `layer ${layer.layer}`, title: layer.site }, String(layer.layer)),
      ...cells.slice(numbers.firsts[place], numbers.firsts[place] + layer.heads),
      means[place]
    ));
    const grid = make("div", { class: "heads-table", role: "grid", "aria-label": "Heads: a row for each layer", "data-testid": "heads-table" }, head, ...rows);
    const scroller = make("div", { class: "grid-scroller" }, grid);
    host.append(scroller);
    let chosen = -1;
    let textOf2 = (_head) => [];
    const indexOf = (event) => {
      const cell = event.target.closest?.("[role=gridcell]");
      return cell ? Number(cell.dataset.head) : -1;
    };
    grid.addEventListener("click", (event) => {
      const at = indexOf(event);
      if (at >= 0) store.set({ at });
    });
    grid.addEventListener("pointermove", (event) => {
      const at = event.pointerType === "touch" ? -1 : indexOf(event);
      if (at < 0) tooltip.hide();
      else tooltip.show(event.clientX, event.clientY, textOf2(at));
    });
    grid.addEventListener("pointerleave", () => tooltip.hide());
    grid.addEventListener("keydown", (event) => {
      const at = neighbour(numbers, store.get().at, event.key);
      if (at < 0) return;
      event.preventDefault();
      store.set({ at });
      cells[at].focus();
    });
    const fit = () => {
      const room = Math.floor((scroller.clientWidth - LABELS - MEANS - 4) / most);
      const size = Math.min(MOST, Math.max(LEAST, room));
      grid.style.setProperty("--cell", `${size}px`);
      grid.toggleAttribute("data-large", size >= WITH_NUMBERS);
    };
    const widest = () => host.parentElement.style.setProperty("--grid-width", `${LABELS + most * MOST + MEANS + 16}px`);
    new ResizeObserver(fit).observe(scroller);
    return {
      focus: () => cells[store.get().at].focus(),
      update(state, scale, colours) {
        textOf2 = (at) => tooltipLines(numbers, state, at);
        paint(numbers, state, scale, colours, cells);
        paintMeans(numbers, state, scale, means);
      },
      choose(at) {
        if (chosen >= 0) {
          cells[chosen].setAttribute("aria-selected", "false");
          cells[chosen].tabIndex = -1;
        }
        chosen = at;
        cells[at].setAttribute("aria-selected", "true");
        cells[at].tabIndex = 0;
        showInside(scroller, cells[at]);
      },
      resize() {
        widest();
        fit();
      }
    };
  }
  function cellOf({ place, head }, index) {
    return make("div", { class: "head-cell", role: "gridcell", tabindex: "-1", "aria-selected": "false", "data-head": index, "data-testid": `cell-${place}-${head}` });
  }
  function showInside(scroller, cell) {
    const [box, view] = [cell.getBoundingClientRect(), scroller.getBoundingClientRect()];
    if (view.width === 0) return;
    const [left, top] = [view.left + LABELS, view.top + 22];
    if (box.left < left) scroller.scrollLeft -= left - box.left;
    if (box.right > view.right) scroller.scrollLeft += box.right - view.right;
    if (box.top < top) scroller.scrollTop -= top - box.top;
    if (box.bottom > view.bottom) scroller.scrollTop += box.bottom - view.bottom;
  }
  function neighbour(numbers, at, key) {
    const { place, head } = numbers.heads[at];
    const last = numbers.layers[place].heads - 1;
    const up2 = (change) => {
      const layer = numbers.layers[place + change];
      return layer ? numbers.headAt(place + change, Math.min(head, layer.heads - 1)) : -1;
    };
    if (key === "ArrowLeft") return numbers.headAt(place, head - 1);
    if (key === "ArrowRight") return numbers.headAt(place, head + 1);
    if (key === "ArrowUp") return up2(-1);
    if (key === "ArrowDown") return up2(1);
    if (key === "Home") return numbers.headAt(place, 0);
    return key === "End" ? numbers.headAt(place, last) : -1;
  }
  function scaleOf(numbers, { by, run }) {
    if (by === TYPE) return null;
    const quantity = numbers.quantity(by);
    let [peak, least] = [0, 0];
    for (let head = 0; head < numbers.heads.length; head += 1) {
      const { mean } = numbers.estimate(quantity, head, run);
      if (!Number.isFinite(mean)) continue;
      peak = Math.max(peak, Math.abs(mean));
      least = Math.min(least, mean);
    }
    return { quantity, peak: peak || 1, signed: run === DIFFERENCE || least < 0 };
  }
  function paint(numbers, state, scale, colours, cells) {
    cells.forEach((cell, head) => {
      const isOff = !isWanted(numbers, state, head);
      cell.toggleAttribute("data-off", isOff);
      if (scale) paintNumber(numbers, state, scale, colours, cell, head, isOff);
      else paintType(numbers, state, cell, head, isOff);
      cell.setAttribute("aria-label", tooltipLines(numbers, state, head).map(({ text: text2 }) => text2).join(", "));
    });
  }
  function paintNumber(numbers, state, scale, colours, cell, head, isOff) {
    const { mean } = numbers.estimate(scale.quantity, head, state.run);
    const isKnown = Number.isFinite(mean);
    cell.removeAttribute("data-type");
    cell.toggleAttribute("data-clear", !isOff && state.run === DIFFERENCE && numbers.isClear(scale.quantity, head) === true);
    cell.toggleAttribute("data-unknown", !isKnown);
    const isPainted = isKnown && !isOff;
    cell.style.background = isPainted ? weightColour(colours, mean, scale.peak, "linear", scale.signed) : "";
    cell.style.color = isPainted ? inkOnWeight(colours, mean, scale.peak, "linear", scale.signed) : "";
    cell.dataset.shown = isPainted ? briefNumber(mean, scale.peak) : "";
    cell.toggleAttribute("data-sign", false);
  }
  function paintType(numbers, state, cell, head, isOff) {
    const type = numbers.type(head, state.run === DIFFERENCE ? 1 : state.run);
    const isChanged = state.run === DIFFERENCE && numbers.isChanged(head);
    const isQuiet = state.run === DIFFERENCE && !isChanged;
    cell.style.background = "";
    cell.style.color = "";
    cell.removeAttribute("data-unknown");
    cell.toggleAttribute("data-clear", isChanged && !isOff);
    if (type && !isOff && !isQuiet) cell.dataset.type = type;
    else cell.removeAttribute("data-type");
    cell.dataset.shown = type && !isOff ? numbers.manifest.types[type] : "";
    cell.toggleAttribute("data-sign", true);
  }
  function paintMeans(numbers, state, scale, means) {
    means.forEach((element, place) => {
      element.hidden = !scale;
      if (!scale) return;
      const first = numbers.firsts[place];
      const values = Array.from({ length: numbers.layers[place].heads }, (_, head) => numbers.estimate(scale.quantity, first + head, state.run).mean).filter(Number.isFinite);
      const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const [bar2, number] = element.children;
      bar2.style.width = `${Number.isFinite(mean) ? 36 * Math.abs(mean) / scale.peak : 0}px`;
      bar2.toggleAttribute("data-negative", mean < 0);
      number.textContent = briefNumber(mean, scale.peak);
      element.title = `mean of the layer: ${briefNumber(mean, scale.peak)}`;
    });
  }
  function tooltipLines(numbers, state, head) {
    const { layer, head: own } = numbers.heads[head];
    const lines = [{ text: `layer ${layer}, head ${own}`, kind: "strong" }];
    if (state.by !== TYPE) {
      const quantity = numbers.quantity(state.by);
      lines.push({ text: `${numbers.quantities[quantity].label} ${withError(numbers.estimate(quantity, head, state.run), state.run === DIFFERENCE)}`, kind: "number" });
      if (state.run === DIFFERENCE && numbers.isClear(quantity, head)) lines.push({ text: "a clear difference", kind: "plain" });
    }
    if (state.run === DIFFERENCE) {
      const [before, now] = [0, 1].map((run) => numbers.typeLabel(head, run));
      if (before || now) lines.push({ text: before === now ? before : `${before} \u2192 ${now}`, kind: "plain" });
    } else if (numbers.type(head, state.run)) lines.push({ text: numbers.typeLabel(head, state.run), kind: "plain" });
    return lines;
  }

  // report/ranking.js
  var MORE = 100;
  function createRanking(host, numbers, store) {
    const body = make("tbody", {});
    const caption = make("caption", { class: "unseen" });
    const title = make("th", { scope: "col", class: "number" });
    const heading2 = make("tr", {}, make("th", { scope: "col" }, "Head"), title, make("th", { scope: "col", class: "ranking-bars" }, make("span", { class: "unseen" }, "Bar")), make("th", { scope: "col" }, "Type"));
    const table = make("table", { class: "ranking", "data-testid": "ranking" }, caption, make("thead", {}, heading2), body);
    const more = make("button", { type: "button", class: "text-button", "data-testid": "ranking-more", onclick: () => show(body.children.length + MORE) });
    const element = make("div", { class: "ranking-scroller", hidden: true, tabindex: "0", role: "region", "aria-label": "Heads in order" }, table, more);
    host.append(element);
    let ranked = [];
    let current = null;
    const rowFor = ({ head, estimate }) => {
      const { layer, head: own, place } = numbers.heads[head];
      const choose = make("button", { type: "button", class: "head-link", "data-testid": `rank-${place}-${own}`, onclick: () => store.set({ at: head }) }, `layer ${layer}, head ${own}`);
      const bar2 = make("span", { class: "ranking-bar" });
      bar2.style.width = current.scale ? `${100 * Math.abs(estimate.mean) / current.scale.peak}%` : "0";
      bar2.toggleAttribute("data-negative", estimate.mean < 0);
      const isDifference = current.state.run === DIFFERENCE;
      const isClear = current.scale && isDifference && numbers.isClear(current.scale.quantity, head);
      const row = make(
        "tr",
        { "data-head": head, "data-clear": Boolean(isClear) },
        make("th", { scope: "row" }, choose),
        make("td", { class: "number" }, current.scale ? withError(estimate, isDifference) : ""),
        make("td", { class: "ranking-bars" }, bar2),
        make("td", {}, typesOf(numbers, current.state, head))
      );
      row.toggleAttribute("data-chosen", head === store.get().at);
      return row;
    };
    const show = (count) => {
      const from = body.children.length;
      body.append(...ranked.slice(from, count).map(rowFor));
      more.hidden = count >= ranked.length;
      more.textContent = `Show ${Math.min(MORE, ranked.length - count)} more of ${ranked.length}`;
    };
    return {
      element,
      update(state, scale) {
        current = { state, scale };
        ranked = rankedHeads2(numbers, state, scale);
        title.textContent = scale ? capitalised(numbers.quantities[scale.quantity].label) : "";
        caption.textContent = `Heads in order of ${title.textContent || "their type"}`;
        body.replaceChildren();
        show(MORE);
      },
      choose(at) {
        for (const row of body.children) row.toggleAttribute("data-chosen", Number(row.dataset.head) === at);
      }
    };
  }
  function typesOf(numbers, { run }, head) {
    if (run !== DIFFERENCE) return numbers.typeLabel(head, run) ?? "";
    const [before, now] = [0, 1].map((each) => numbers.typeLabel(head, each) ?? "");
    return before === now ? now : `${before} \u2192 ${now}`;
  }
  function rankedHeads2(numbers, state, scale) {
    const direction = state.order === "smallest" ? 1 : -1;
    const sizeOf = ({ head, estimate }) => {
      if (!scale) return -direction * numbers.typeNames.indexOf(numbers.type(head, state.run === DIFFERENCE ? 1 : state.run));
      return state.run === DIFFERENCE ? Math.abs(estimate.mean) : estimate.mean;
    };
    return numbers.heads.map((_, head) => ({ head, estimate: scale ? numbers.estimate(scale.quantity, head, state.run) : { mean: 0, error: NaN } })).filter(({ head, estimate }) => Number.isFinite(estimate.mean) && isWanted(numbers, state, head)).sort((one, other) => direction * (sizeOf(one) - sizeOf(other)) || one.head - other.head);
  }

  // report/report_help.js
  var KEYS = [
    ["\u2190 \u2191 \u2192 \u2193", "another head, in the grid"],
    ["Home End", "first and last head of a layer"],
    ["t", "light, dark, as the system"],
    ["?", "this help"]
  ];
  function createReportHelp(host, numbers) {
    const close = make("button", { type: "button", class: "text-button", "data-testid": "help-close", onclick: () => dialog.close() }, "Close");
    const keys = KEYS.map(([key, meaning]) => make("tr", {}, make("th", { scope: "row" }, ...key.split(" ").map((cap) => make("kbd", {}, cap))), make("td", {}, meaning)));
    const quantities = numbers.quantities.flatMap(({ label, group, meaning }) => [make("dt", {}, label), make("dd", {}, `${meaning} (${group})`)]);
    const types = Object.entries(HEAD_TYPES).flatMap(([type, meaning]) => [make("dt", {}, type), make("dd", {}, meaning)]);
    const pair = numbers.isPair ? [make("h3", {}, "Two runs"), make("p", {}, `A difference is that of the second run less the first. It is called clear (\u25CF) where it is more than ${numbers.manifest.clear.toFixed(2)} of its standard errors: in ${numbers.heads.length} heads that do not differ, chance brings even one such difference in 5 % of all cases. The error takes the texts of both runs as drawn apart; of the same texts it is smaller.`)] : [];
    const dialog = make(
      "dialog",
      { class: "help", "aria-labelledby": "report-help-title", "data-testid": "help-dialog" },
      make("div", { class: "help-head" }, make("h2", { id: "report-help-title" }, "How to read this page"), close),
      make("p", {}, "Each cell of the grid is a head. Choose one to see its numbers, where it looks, and the texts in which it is strongest."),
      make("h3", {}, "Errors"),
      make("p", {}, "\xB1 is the standard error of a mean. It comes from how much texts differ, not from the number of tokens: the rows of one text are alike."),
      ...pair,
      make("h3", {}, "Keys"),
      make("table", { class: "help-keys" }, make("tbody", {}, ...keys)),
      make("h3", {}, "Numbers"),
      make("dl", { class: "help-types" }, ...quantities),
      make("h3", {}, "Types of heads"),
      make("dl", { class: "help-types" }, ...types)
    );
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    host.append(dialog);
    return { open: () => dialog.open || dialog.showModal() };
  }

  // report/toolbar.js
  function createToolbar(host, numbers, store) {
    const set = (patch) => store.set(patch);
    const by = groupedSelect("report-by", "Colour the heads by", quantityGroups(numbers), (value) => set({ by: value }));
    const runs = numbers.isPair ? [[String(DIFFERENCE), "Difference"], ...numbers.runs.map((run2) => [String(run2.place), run2.name])] : [];
    const run = plainSelect("report-run", "Run", runs, (value) => set({ run: value === DIFFERENCE ? value : Number(value) }));
    const order = plainSelect("report-order", "Order", Object.entries(ORDERS), (value) => set({ order: value }));
    const only = plainSelect("report-only", "Which heads", Object.entries(ONLY), (value) => set({ only: value }));
    run.element.hidden = !numbers.isPair;
    only.element.hidden = !numbers.isPair;
    const legend = make("div", { class: "report-legend" });
    const meaning = make("p", { class: "report-meaning", "data-testid": "report-meaning" });
    const chips = numbers.hasTypes ? createChips(numbers, store) : null;
    host.append(make("div", { class: "report-bar", role: "toolbar", "aria-label": "What is shown" }, by.element, run.element, order.element, only.element, legend));
    host.append(meaning);
    if (chips) host.append(chips.element);
    return {
      legend,
      meaning: (text2) => {
        meaning.textContent = text2;
      },
      update(state) {
        by.select.value = state.by;
        run.select.value = String(state.run);
        order.select.value = state.order;
        only.select.value = state.only;
        chips?.update(state);
      }
    };
  }
  function quantityGroups(numbers) {
    const groups = /* @__PURE__ */ new Map();
    if (numbers.hasTypes) groups.set("", [[TYPE, "Type of head"]]);
    for (const { key, group, label } of numbers.quantities) {
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push([key, label === group ? capitalised(label) : label]);
    }
    return groups;
  }
  function groupedSelect(testId, label, groups, onChange) {
    const options = [...groups].flatMap(([group, entries]) => group ? [make("optgroup", { label: capitalised(group) }, ...entries.map(optionOf2))] : entries.map(optionOf2));
    return selectOf(testId, label, options, onChange);
  }
  function plainSelect(testId, label, entries, onChange) {
    return selectOf(testId, label, entries.map(optionOf2), onChange);
  }
  function optionOf2([value, text2]) {
    return make("option", { value }, text2);
  }
  function selectOf(testId, label, options, onChange) {
    const select = make("select", { "data-testid": testId, "aria-label": label, title: label, onchange: () => onChange(select.value) }, ...options);
    return { select, element: make("div", { class: "field" }, select) };
  }
  function createChips(numbers, store) {
    const buttons = numbers.typeNames.map((type) => {
      const count = make("span", { class: "chip-count" });
      const sign = make("span", { class: "type-sign", "data-type": type, "aria-hidden": "true" }, numbers.manifest.types[type]);
      const flip = () => {
        const { types } = store.get();
        store.set({ types: types.includes(type) ? types.filter((other) => other !== type) : [...types, type] });
      };
      return { type, count, button: make("button", { type: "button", class: "type-chip", "data-testid": `type-${type}`, title: typeTitle(type), onclick: flip }, sign, type, count) };
    });
    const element = make("div", { class: "type-chips", role: "group", "aria-label": "Types of heads" }, ...buttons.map(({ button }) => button));
    return {
      element,
      update({ types, run }) {
        const shown = run === DIFFERENCE ? 1 : run;
        for (const { type, count, button } of buttons) {
          const total = numbers.heads.reduce((sum, _, head) => sum + (numbers.type(head, shown) === type ? 1 : 0), 0);
          const before = run === DIFFERENCE ? numbers.heads.reduce((sum, _, head) => sum + (numbers.type(head, 0) === type ? 1 : 0), 0) : total;
          count.textContent = before === total ? String(total) : `${before} \u2192 ${total}`;
          button.hidden = total === 0 && before === 0;
          button.setAttribute("aria-pressed", String(types.includes(type)));
        }
      }
    };
  }

  // report/report_page.js
  var NARROW = "(max-width: 900px)";
  async function startReport(page, manifest) {
    const fragment = readFragment();
    const report = new ReportPage(page, await openCollection(manifest), fragment);
    await report.begin();
  }
  var ReportPage = class {
    constructor(page, numbers, fragment) {
      this.page = page;
      this.numbers = numbers;
      this.pane = null;
      this.opened = "";
      this.store = createStore(reportOfFragment(numbers, fragment), (state) => settledReport(numbers, state));
      this.build();
      page.prefix = () => reportFragment(numbers, this.store.get());
      page.restore = (next) => this.restore(next);
      page.themed = () => this.paint();
      const help = createReportHelp(page.main, numbers);
      const ofViewer = page.openHelp.bind(page);
      page.openHelp = () => this.pane ? ofViewer() : help.open();
      document.addEventListener("keydown", (event) => this.key(event));
      this.store.subscribe((state, changed) => this.follow(state, changed));
    }
    build() {
      const { numbers, page, store } = this;
      this.back = make("button", { type: "button", class: "text-button report-back", "data-testid": "back-to-heads", hidden: true, onclick: () => this.close() }, icon("back"), "All heads");
      this.link = createIconButton("copy-report-link", "link", "Copy a link to this view", () => page.copyLink());
      this.link.hidden = !hasAddress();
      page.actionHost.prepend(this.back, this.link);
      this.bar = make("div", { class: "report-top" }, ...factLines(numbers));
      this.toolbar = createToolbar(this.bar, numbers, store);
      this.legend = createLegend(this.toolbar.legend);
      this.gridHost = make("section", { class: "report-grid", "aria-label": "Heads" });
      this.panelHost = make("section", { class: "report-panel", "aria-label": "The chosen head", tabindex: "0" });
      this.element = make("div", { class: "report" }, this.bar, make("div", { class: "report-body" }, this.gridHost, this.panelHost));
      page.main.append(this.element);
      this.grid = createHeadsGrid2(this.gridHost, numbers, store, page.tooltip);
      this.ranking = createRanking(this.gridHost, numbers, store);
      this.panel = createHeadPanel(this.panelHost, numbers, { open: (run, head, number, query) => this.openExample(run, head, number, query), copy: (command) => this.copy(command) });
    }
    async begin() {
      this.grid.resize();
      this.paint();
      this.grid.choose(this.store.get().at);
      await this.panel.update(this.store.get(), this.colours());
      if (this.store.get().example) await this.openNamed(this.store.get().example);
      this.page.drawn();
    }
    colours() {
      return palette(this.page.theme);
    }
    /** The grid, the table and all that names what is shown. */
    paint() {
      const state = this.store.get();
      const scale = scaleOf(this.numbers, state);
      const isRanked = state.order !== "layers";
      this.gridHost.toggleAttribute("data-ranked", isRanked);
      this.ranking.element.hidden = !isRanked;
      if (isRanked) this.ranking.update(state, scale);
      else this.grid.update(state, scale, this.colours());
      this.toolbar.update(state);
      this.toolbar.legend.hidden = !scale;
      if (scale) this.legend.show(scale.peak, scale.signed, "linear", this.colours());
      this.toolbar.meaning(meaningOf(this.numbers, state));
      this.panel.update(state, this.colours());
    }
    follow(state, changed) {
      if (changed.some((key) => key !== "at" && key !== "example")) this.paint();
      else if (changed.includes("at")) this.panel.update(state, this.colours());
      if (changed.includes("at")) {
        this.grid.choose(state.at);
        this.ranking.choose(state.at);
        this.panelHost.scrollTop = 0;
        const { layer, head } = this.numbers.heads[state.at];
        this.page.announce(`layer ${layer}, head ${head}`);
        const isPointed = !this.gridHost.contains(document.activeElement) || document.activeElement?.matches(".head-link");
        if (isPointed && globalThis.matchMedia(NARROW).matches) this.panelHost.scrollIntoView({ block: "start" });
      }
      this.page.changed();
    }
    key(event) {
      if (this.pane || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.target.closest?.("input, textarea, select") || document.querySelector("dialog[open]")) return;
      if (event.key === "t") this.page.nextTheme();
      else if (event.key === "?") this.page.openHelp();
      else return;
      event.preventDefault();
    }
    restore(fragment) {
      const next = reportOfFragment(this.numbers, fragment);
      const { example } = this.store.get();
      this.store.set(next);
      if (next.example === example) return;
      if (next.example) this.openNamed(next.example);
      else if (this.pane) this.close();
    }
    // -- examples
    /** The example of a link, as "run/head/document". */
    openNamed(example) {
      const [run, head, number] = example.split("/").map(Number);
      const known = this.numbers.runs[run]?.scenes[`${this.numbers.heads[head]?.site}/${number}`];
      return known ? this.openExample(run, head, number, null) : this.store.set({ example: "" });
    }
    /** Shows the attention over a text in the viewer; the report waits behind it. */
    async openExample(run, head, number, query) {
      const { site, head: own } = this.numbers.heads[head];
      const manifest = await this.numbers.readJson(this.numbers.runs[run].scenes[`${site}/${number}`]);
      this.pane?.destroy();
      this.element.hidden = true;
      this.back.hidden = false;
      this.link.hidden = true;
      const scene = openScene(manifest, inlineLoader(manifest.first_chunk));
      const state = query === null ? {} : { view: "lines", layer: 0, head: own, selected: [query], pinned: true };
      this.page.tooltip.hide();
      this.pane = this.page.openPane(this.page.main, scene, { tabs: this.page.tabHost, actionHost: this.page.actionHost, state });
      this.store.set({ at: head, example: `${run}/${head}/${number}` });
      this.back.focus();
    }
    close() {
      this.pane?.destroy();
      this.pane = null;
      this.element.hidden = false;
      this.back.hidden = true;
      this.link.hidden = !hasAddress();
      this.store.set({ example: "" });
      this.grid.resize();
      this.grid.focus();
    }
    async copy(command) {
      const isCopied = await this.page.copyText(command);
      this.page.say(isCopied ? "The command was copied" : `Copying is not allowed here. The command is ${command}`);
    }
  };
  function factLines(numbers) {
    return numbers.runs.map((run) => {
      const facts = [counted(run.documents, "text"), counted(run.tokens, "token"), counted(numbers.layers.length, "layer"), counted(numbers.heads.length, "head")];
      if (run.model) facts.unshift(run.model);
      if (run.cut) facts.push(`${counted(run.cut, "text")} cut`);
      if (run.failures) facts.push(`${counted(run.failures, "text")} left out`);
      if (run.left_out.length) facts.push(`${counted(run.left_out.length, "attention")} left out`);
      if (run.not_shown.length) facts.push(`not shown here: ${run.not_shown.join(", ")} (regard.corpus.load reads them)`);
      if (!run.complete) facts.push("not finished: these are the shards so far");
      const name = numbers.isPair ? [make("b", {}, `${run.name}: `)] : [];
      return make("p", { class: "report-facts", "data-testid": `facts-${run.place}`, title: run.left_out.join("\n") || null }, ...name, facts.join(" \xB7 "));
    });
  }
  function meaningOf(numbers, { by, run }) {
    const difference = numbers.isPair && run === "difference" ? ` Shown is ${numbers.runs[1].name} less ${numbers.runs[0].name}.` : "";
    if (by === TYPE) {
      const changed = numbers.heads.filter((_, head) => numbers.isChanged(head)).length;
      return difference ? `What most of the attention of a head does; ${changed} of ${numbers.heads.length} heads have another type in ${numbers.runs[1].name}.` : "What most of the attention of a head does, over all texts.";
    }
    const quantity = numbers.quantity(by);
    const words = numbers.quantities[quantity].meaning;
    const clear = difference ? numbers.heads.filter((_, head) => numbers.isClear(quantity, head)).length : 0;
    return `${words.charAt(0).toUpperCase()}${words.slice(1)}.${difference}${difference ? ` ${clear} of ${numbers.heads.length} differences are clear.` : ""}`;
  }

  // report.js
  async function startPage() {
    const root = document.getElementById("root");
    try {
      const manifest = JSON.parse(document.getElementById("manifest").textContent);
      await startReport(new ViewerPage(root, manifest), manifest);
    } catch (problem) {
      root.append(make("p", { class: "problem", role: "alert", "data-testid": "status" }, `The page cannot be shown: ${problem.message}`));
      document.documentElement.dataset.ready = "1";
      throw problem;
    }
  }
  startPage();
})();
