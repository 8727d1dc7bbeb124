// Asking the server that sent the page.

import { refusal } from "../data/chunks.js";

/** The answer as JSON; an error has the server's own message. */
export async function askJson(path, options = {}) {
  return (await askServer(path, options)).json();
}

/** Posts JSON and hands each line of the answer, as it comes, to a function. */
export async function askLines(path, body, signal, take) {
  const answer = await askServer(path, { ...jsonRequest(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
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

async function askServer(path, options) {
  let answer;
  try {
    answer = await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Error("The server cannot be reached. Is it still running?");
  }
  if (!answer.ok) throw new Error(await refusal(answer));
  return answer;
}
