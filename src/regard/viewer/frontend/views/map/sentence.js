// The text above the map: a word chosen as the query and another as the key rank the heads.

import { indexOfPosition } from "../../data/ranking.js";
import { make } from "../../drawing/elements.js";
import { visibleLabel, withoutControls } from "../../drawing/labels.js";
import { unitName } from "../../state/state.js";
import { pairText } from "./arrangement.js";

const STEPS = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };

/** The text of a map; `show(frame, state)` has its words, `tell(ranking)` what was found. */
export function createSentence(host, context) {
  const sentence = new Sentence(context);
  host.append(sentence.element);
  return sentence;
}

class Sentence {
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
    this.mark("query", query, frame.square ? key : undefined);
    if (!frame.square) this.mark("key", undefined, key);
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
    const chosen = { query: query === undefined ? -1 : indexOfPosition(axis, query), key: key === undefined ? -1 : indexOfPosition(axis, key) };
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
    buttons.forEach((button) => { button.tabIndex = button === stop ? 0 : -1; });
  }

  press(button) {
    if (!button) return;
    const side = button.closest("[data-side]").dataset.side;
    const axis = side === "query" ? this.frame.rows : this.frame.columns;
    const [position] = axis.members[Number(button.dataset.index)];
    const [query, key] = this.state.pair;
    if (side === "key") return this.choose(key === position ? [query] : [query, position]);
    if (query === position) return this.choose([]);
    const isSecond = this.frame.square && query !== undefined && key === undefined;
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
    if (query === undefined) {
      const keys = frame.square ? `then another for what it gives that ${unit}` : `then one of the other text for what it gives that`;
      return [`Choose a ${unit} to see which heads attend from it most clearly, ${keys}.`];
    }
    const hidden = this.hiddenToken();
    if (hidden !== null) return ["“", bdi(hidden), "” is not shown."];
    const [from, to] = [frame.rows.labels[indexOfPosition(frame.rows, query)], key === undefined ? null : frame.columns.labels[indexOfPosition(frame.columns, key)]];
    const [best] = ranking;
    const open = ranking.filter(({ weight }) => weight === null);
    if (best.weight === null && to === null) return ["The largest weight from “", bdi(from), `” to another ${unit} is not stored in any head.`];
    if (best.weight === null) return ["What “", bdi(from), "” gives “", bdi(to), "” is not stored in any head."];
    if (best.weight === 0 && to === null && !open.length) return ["No head attends from “", bdi(from), `” to another ${unit}.`];
    const isLess = open.every(({ most }) => most <= best.weight);
    const note = open.length ? ` In ${open.length} head${open.length === 1 ? "" : "s"} this is not stored${isLess ? "" : ", and may be more"}.` : "";
    const share = frame.isRenormalised ? ", of its row renormalised without special tokens" : "";
    const partner = to ?? best.partner;
    const pair = partner === null ? [bdi(from), ` → no other ${unit}`] : [bdi(from), " → ", bdi(partner), ` ${pairText(best.weight, frame.isNormed)}${frame.isNormed ? ` as ${frame.measure}` : ""}`];
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
}

function bdi(label) {
  return make("bdi", {}, visibleLabel(label));
}

function textOf(side, axis, isOnly) {
  const name = axis.name ?? (isOnly ? null : side === "query" ? "Queries" : "Keys");
  const words = axis.labels.map((label, index) => make("button", {
    type: "button", class: `map-word${axis.special[index] ? " is-special" : ""}${axis.written[index] ? " is-written" : ""}`,
    "data-index": index, "data-testid": `map-${side}-${index}`, "aria-pressed": "false", tabindex: "-1",
  }, make("bdi", {}, visibleLabel(label))));
  const box = make("div", { class: "map-words", role: "group", "data-side": side, "data-scrolls": true, "aria-label": name ?? "Words" }, ...words);
  return name === null ? box : make("div", { class: "map-text" }, make("span", { class: "map-text-name" }, name), box);
}
