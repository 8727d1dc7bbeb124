// The texts in which a head is strongest, with the pair of tokens that is meant.

import { isolated, textWithLabels, visibleLabel } from "../drawing/labels.js";
import { make } from "../drawing/elements.js";
import { rowOf } from "./collection.js";

const AROUND = 14; // tokens to either side of the pair that are shown at first

/** Examples of a head as an element; `actions` are {open(key, example), copy(text)}. */
export async function exampleList(numbers, head, run, label, strongest, own, actions) {
  const documents = await numbers.documents(run);
  const places = rowOf(strongest.places, own);
  const scores = rowOf(strongest.scores, own);
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
  const line = make("p", { class: "example-pair" }, make("b", { class: "example-score" }, score.toFixed(2)), ...textWithLabels(` ${named(query)} → ${named(key)}`), make("span", { class: "quiet" }, ` · text ${source.number}`));
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

/** The tokens with the pair marked; of a long text those around it, and a button for the rest. */
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
      if (first > 0) nodes.unshift("… ");
      if (last < tokens.length) nodes.push(" …");
      nodes.push(" ", make("button", { type: "button", class: "head-link", onclick: () => show(true) }, `${rest} more tokens`));
    }
    box.replaceChildren(...nodes);
  };
  show(tokens.length <= 6 * AROUND && Math.abs(query - key) < tokens.length);
  return box;
}

/** How tokens say that a word begins: by a mark before it, or by "##" before what goes on. */
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

/** The command that shows the attention of a text. */
function lookCommand(numbers, head, model, words) {
  const { place, head: own } = numbers.heads[head];
  return `regard look ${quoted(words)} --model ${quoted(model)} --layer ${place} --head ${own} --html look.html`;
}

function quoted(words) {
  return /^[\w./:-]+$/.test(words) ? words : `'${words.replaceAll("'", "'\\''")}'`;
}
