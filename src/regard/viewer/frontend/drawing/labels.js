// Labels of tokens as people read them.

import { make } from "./elements.js";

/** A label that can be seen: blank tokens are named, marks of spaces are not shown. */
export function visibleLabel(token) {
  const label = unmarked(token);
  if (label === "") return "∅";
  if (label.trim() !== "") return label;
  return label.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/[^\u21B5\u21E5]/g, "␣");
}

/** The space that a piece of a word begins with, as byte-level (Ġ) and sentence pieces (▁) mark it, goes; lines end in ↵. */
function unmarked(label) {
  if (/^[\u0120\u2581\u010A]+$/.test(label)) return label.replace(/[\u0120\u2581]/g, " ").replace(/\u010A/g, "\n");
  const plain = label.replace(/\u010A+$/, (ends) => "↵".repeat(ends.length));
  return /^[\u0120\u2581]{2}/.test(plain) ? plain.replace(/^[\u0120\u2581]+/, (marks) => "␣".repeat(marks.length)) : plain.replace(/^[\u0120\u2581]/, "");
}

/** A text in which controls of direction, which could reorder what stands beside it, are shown as codes. */
export function withoutControls(text) {
  return text.replace(/[\u202A-\u202E\u2066-\u2069]/g, (control) => `\\u${control.charCodeAt(0).toString(16)}`);
}

/** A label marked to keep its own direction inside a sentence of another; `textWithLabels` reads the marks. */
export function isolated(label) {
  return `\u2068${withoutControls(visibleLabel(label))}\u2069`;
}

/** The nodes of a text in which labels were marked by `isolated`. */
export function textWithLabels(text) {
  return text.split(/(\u2068[^\u2069]*\u2069)/).filter(Boolean).map((part) => (part.startsWith("\u2068") ? make("bdi", {}, part.slice(1, -1)) : part));
}

/** A text with a capital first letter. */
export function capitalised(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
