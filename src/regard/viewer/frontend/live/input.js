// What a column of the live page was given: {model, title} with a text, a text and tokens to write, or a file; or {trace, title}.

import { withoutControls } from "../drawing/labels.js";

const LONGEST_NAME = 60;
const SIGNATURES = { "image/png": [0x89, 0x50, 0x4e, 0x47], "image/jpeg": [0xff, 0xd8, 0xff] };

/**
 * An input in a few words, such as “MiniLM: “The cat sat…””.
 * @param {{title: string, text?: string, file?: File}} input
 */
export function inputName({ title, text, file }) {
  const content = text ?? file?.name;
  if (content === undefined) return title;
  const line = [...withoutControls(content).replace(/\s+/g, " ").trim()];
  return `${title}: “${line.length > LONGEST_NAME ? `${line.slice(0, LONGEST_NAME - 1).join("")}…` : line.join("")}”`;
}

/** Whether what a form has now is what was looked at; how many tokens it would write makes no difference. */
export function isSameInput(current, previous) {
  return ["model", "trace", "text", "file"].every((key) => (current[key] ?? null) === (previous[key] ?? null));
}

/** Whether a link asks for what is shown; it may have left out a text that is long. */
export function isRequestedInput(requested, current) {
  if (!current || requested.model !== current.model || requested.trace !== current.trace) return false;
  const isSameText = requested.text === undefined || requested.text === current.text;
  return isSameText && (requested.tokens ?? "") === String(current.tokens ?? "");
}

/** The type of a picture by its first bytes, whatever its name is; an error for anything else. */
export async function imageType(file) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  const signature = Object.entries(SIGNATURES).find(([, bytes]) => bytes.every((byte, index) => start[index] === byte));
  if (!signature) throw new Error(`This file is no PNG or JPEG picture: ${file.name}`);
  return signature[0];
}
