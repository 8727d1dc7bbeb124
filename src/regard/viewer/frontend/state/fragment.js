// A state in the fragment of the address: written, read, and as a link.

import { CHOICES, MOST_HEADS, SHARED_KEYS, initialState } from "./state.js";
import { sameValue } from "./store.js";

const INPUT_KEYS = ["model", "text", "tokens", "trace"];
const LONGEST_IN_LINK = 1000; // characters of a text

/**
 * The fragment of one or two states, leaving out what any page starts with; `inputs` are those of a live page.
 * `starts` are what their scenes start with instead: what differs from that cannot be left out.
 */
export function fragmentOf(states, inputs = [], starts = []) {
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
  return value !== undefined && value !== null && String(value).length <= LONGEST_IN_LINK;
}

/** Whether all of an input can be in a link. */
export function isWholeInLink(input) {
  return input === null || (!input.file && INPUT_KEYS.every((key) => input[key] === undefined || fitsLink(input[key])));
}

/** The input that a fragment asks of column `index` of a live page, as texts, or null. */
export function inputOfFragment(fragment, index = 0) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const named = INPUT_KEYS.map((key) => [key, fields.get(index === 0 ? key : `${key}.${index}`)]);
  const input = Object.fromEntries(named.filter(([, value]) => value !== null));
  return input.model !== undefined || input.trace !== undefined ? input : null;
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

/** The patch that a fragment asks for, of pane `index`; what it cannot read it leaves out. */
export function patchOfFragment(fragment, index = 0) {
  const patch = {};
  const shared = new Set(SHARED_KEYS);
  for (const [name, text] of new URLSearchParams(fragment.replace(/^#/, ""))) {
    const [key, owner] = name.split(".");
    const own = Number(owner ?? 0) === index;
    if (!own && !(owner === undefined && shared.has(key))) continue;
    const value = fieldValue(key, text);
    if (value !== undefined) patch[key] = value;
  }
  return patch;
}

function fieldValue(key, text) {
  if (CHOICES[key]) return CHOICES[key].includes(text) ? text : undefined;
  if (key === "layer" && text === "all") return "all";
  if (key === "step" && text === "") return null;
  if (["part", "layer", "head", "step"].includes(key)) return /^\d{1,9}$/.test(text) ? Number(text) : undefined;
  if (key === "heads") return /^(\d{1,5}\.\d{1,5}(,|$))*$/.test(text) ? text.split(",").filter(Boolean).slice(0, MOST_HEADS) : undefined;
  if (key === "type") return /^[a-z]*$/.test(text) ? text : undefined;
  if (["selected", "hidden", "pair"].includes(key)) return text === "" ? [] : numbersOf(text, Number.isInteger);
  if (key === "pinned") return text === "true";
  if (key === "zoom") return zoomValue(text);
  if (key === "limit") return limitValue(text);
  return undefined;
}

function numbersOf(text, accepted) {
  const numbers = text.split(",").map(Number);
  return numbers.every((number) => accepted(number) && number >= 0) ? numbers : undefined;
}

function zoomValue(text) {
  if (text === "") return null;
  const edges = text.split(",").map(Number);
  const valid = edges.length === 4 && edges.every(Number.isFinite) && edges[2] > edges[0] && edges[3] > edges[1];
  return valid ? edges : undefined;
}

function limitValue(text) {
  const [kind, amount] = text.split(":");
  const value = Number(amount);
  const valid = (kind === "top" || kind === "threshold") && Number.isFinite(value) && value >= 0;
  return valid ? { kind, value } : undefined;
}

/** The fragment of the page's address; empty where the frame may not read it. */
export function readFragment() {
  try {
    return globalThis.location.hash.slice(1);
  } catch {
    return "";
  }
}

let fragmentTimer = 0;

/** Puts the fragment that a function gives into the address after a pause, without a new history entry; one that was changed meanwhile is read, not overwritten. */
export function writeFragment(fragment, pause = 200) {
  clearTimeout(fragmentTimer);
  const before = readFragment();
  fragmentTimer = setTimeout(() => {
    if (readFragment() !== before) return;
    try {
      globalThis.history.replaceState(null, "", `#${fragment()}`);
    } catch {
      // A frame without an address of its own (about:srcdoc, sandbox) still works, it only has no link.
    }
  }, pause);
}

/** The address of the page with a fragment. */
export function linkTo(fragment) {
  return `${pageAddress()}#${fragment}`;
}

/** Whether a link to the page leads anywhere: a frame of a notebook has no address of its own. */
export function hasAddress() {
  return !/^(about:|$)/.test(pageAddress());
}

function pageAddress() {
  try {
    return globalThis.location.href.split("#")[0];
  } catch {
    return ""; // a frame that may not read it
  }
}
