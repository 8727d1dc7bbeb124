// Asking the server that sent the page.

import { refusalMessage } from "../data/chunks.js";

/** The answer as JSON; an error has the server's own message. */
export async function fetchJson(path, options = {}) {
  return (await fetchResponse(path, options)).json();
}

/** Posts JSON and hands each line of the answer, as it comes, to a function. */
export async function fetchLines(path, body, signal, take) {
  const response = await fetchResponse(path, { ...jsonRequest(body), signal });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let partialLine = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (partialLine + value).split("\n");
      partialLine = lines.pop();
      for (const line of lines) await take(JSON.parse(line));
    }
  } finally {
    reader.cancel().catch(() => {}); // who stops reading lets the server know
  }
}

/** The options of a request that posts JSON. */
export function jsonRequest(body) {
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
}

async function fetchResponse(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Error("The server cannot be reached. Is it still running?");
  }
  if (!response.ok) throw new Error(await refusalMessage(response));
  return response;
}
