// Labels of tokens as people read them.

import { make } from "./elements.js";

/** A label that can be seen: blank tokens are named, marks of spaces are not shown. */
export function visibleLabel(token) {
  const label = unmarked(token);
  if (label === "") return "∅";
  if (label.trim() !== "") return label;
  return label.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(/[^↵⇥]/g, "␣");
}

/** The space that a piece of a word begins with, as byte-level (Ġ) and sentence pieces (▁) mark it, goes; lines end in ↵. */
function unmarked(label) {
  if (/^[Ġ▁Ċ]+$/.test(label)) return label.replace(/[Ġ▁]/g, " ").replace(/Ċ/g, "\n");
  const plain = label.replace(/Ċ+$/, (ends) => "↵".repeat(ends.length));
  return /^[Ġ▁]{2}/.test(plain) ? plain.replace(/^[Ġ▁]+/, (marks) => "␣".repeat(marks.length)) : plain.replace(/^[Ġ▁]/, "");
}

/** A label marked to keep its own direction inside a sentence of another; `textWithLabels` reads the marks. */
export function isolated(label) {
  return `\u2068${visibleLabel(label)}\u2069`;
}

/** The nodes of a text in which labels were marked by `isolated`. */
export function textWithLabels(text) {
  return text.split(/(\u2068[^\u2069]*\u2069)/).filter(Boolean).map((part) => (part.startsWith("\u2068") ? make("bdi", {}, part.slice(1, -1)) : part));
}

/** A text with a capital first letter. */
export function capitalised(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
