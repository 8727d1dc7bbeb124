// Asking the server that sent the page.

import { refusalMessage } from "../data/chunks.js";

const ATTEMPTS = 6; // of a request that a full server refuses
const PAUSE = 2; // seconds between them, where the server names none

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

/** A server that is full says after how many seconds to come again. */
async function fetchResponse(path, options) {
  for (let attempt = 1; ; attempt += 1) {
    const response = await fetchOnce(path, options);
    if (response.ok) return response;
    if (response.status !== 503 || attempt === ATTEMPTS) throw new Error(await refusalMessage(response));
    await pause(Number(response.headers.get("Retry-After")) || PAUSE, options.signal);
  }
}

async function fetchOnce(path, options) {
  try {
    return await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Error("The server cannot be reached. Is it still running?");
  }
}

function pause(seconds, signal) {
  return new Promise((/** @type {(value?: void) => void} */ resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, 1000 * seconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
