// The text itself: chosen words colour the others by what they attend to, or by what attends to them.

import { NEAR, markedWeight, readableWeight } from "../../data/numbers.js";
import { inkOnWeight, weightColour } from "../../drawing/colour.js";
import { make } from "../../drawing/elements.js";
import { isolated, textWithLabels, visibleLabel } from "../../drawing/labels.js";
import { svgDocument, svgEscape } from "../../export/svg.js";
import { unitName } from "../../state/state.js";

const SHORT_TEXT = 40;
const MOST_NAMED = 6;

/** The text view. */
export function createTextView(host, context) {
  const view = new TextView(host, context);
  return {
    update: (frame, state) => view.update(frame, state),
    picture: () => ({ svg: view.picture() }),
    resize() {},
    destroy: () => view.destroy(),
    focus: () => view.focusCurrent(),
    keys: view.keys(),
  };
}

class TextView {
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
    return isReady && this.labelAt(this.hovered) !== undefined ? this.hovered : null;
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
      flow.dir = "auto"; // only now: a browser looks for the direction anew at each word that is added
      flow.toggleAttribute("data-short", axis.labels.length <= SHORT_TEXT);
      if (axis.labels.length === 0) flow.textContent = "(no tokens)";
      const label = title ?? "The text";
      return make("section", { class: "text-block", "aria-label": label }, ...(title ? [make("h2", {}, title)] : []), flow);
    };
    this.words.column = [];
    const sections = frame.square
      ? [block("row", frame.rows, site.query_sequence, null)]
      : [block("row", frame.rows, site.query_sequence, frame.rows.name ?? "Target (queries)"), block("column", frame.columns, site.key_sequence, frame.columns.name ?? "Source (keys)")];
    if (frame.columns.name) sections.reverse(); // named texts stand in the order they are read in
    this.blocks.replaceChildren(...sections);
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
    const round = (this.round += 1);
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
    const parts = await Promise.all(chosen.map((index) => (isFrom ? frame.row(index) : frame.column(index))));
    const values = new Float32Array(parts[0].length);
    for (const part of parts) part.forEach((value, index) => { values[index] += value; });
    const largest = largestSize(values);
    const peak = this.canPoint() ? Math.max(largest, frame.peak) : largest; // so that words can be compared in passing
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
        const value = values?.[index] || 0; // one that is not stored has the colour of nothing
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
    const names = chosen.slice(0, MOST_NAMED).map((index) => `“${isolated(labels[index])}”`).join(", ") + more;
    const added = chosen.length > 1 ? ", added up" : "";
    const verb = chosen.length > 1 ? "attend to" : "attends to";
    const isExact = this.isExact(this.weights.values.findIndex((value) => Math.abs(value) === this.weights.largest));
    const largest = this.isLargestKnown(chosen, isFrom) ? ` Largest: ${isExact ? "" : "≈ "}${readableWeight(this.weights.largest)}.` : "";
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
    if (chosen.length === 0) return `${measure}, mean over all words · ${position}`;
    return `${measure}${chosen.length > 1 ? ", sum over chosen words" : ""} · ${position}`;
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
    const beyond = boxes.filter(({ box }) => (direction > 0 ? box.top > here.bottom - 4 : box.bottom < here.top + 4));
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
      Escape: () => (this.state?.selected.length ? this.context.store.set({ selected: [], pinned: false }) : false),
    };
  }

  picture() {
    const colours = this.context.palette();
    const frame = this.blocks.getBoundingClientRect();
    const parts = [...this.words.row, ...this.words.column].map((word) => wordAsSvg(word, frame, colours));
    for (const heading of this.blocks.querySelectorAll("h2")) {
      const box = heading.getBoundingClientRect();
      const place = `x="${box.left - frame.left + 24}" y="${box.top - frame.top + 38}"`;
      parts.push(`<text ${place} font-size="12" fill="${colours.muted}">${svgEscape(heading.textContent)}</text>`);
    }
    return svgDocument(frame.width + 48, frame.height + 48, colours.surface, parts);
  }

  destroy() {
    this.round += 1;
    this.context.tooltip.hide();
    this.scroller.remove();
  }
}

function wordButtons(side, axis, sequence, state) {
  const pieces = state.unit === "pieces" ? sequence?.words?.pieces : null;
  return axis.labels.map((label, index) => {
    const word = index > 0 ? wordOf(pieces, axis.members[index]) : null;
    const isSame = word !== null && word === wordOf(pieces, axis.members[index - 1]);
    const name = side === "row" ? `text-word-${index}` : `text-source-${index}`;
    return make("button", {
      type: "button", class: `word${axis.special[index] ? " word-special" : ""}${axis.written[index] ? " word-written" : ""}${isSame ? " word-joined" : ""}`, tabindex: "-1",
      "data-side": side, "data-index": index, "data-testid": name, "aria-pressed": "false",
    }, make("bdi", { dir: "auto" }, visibleLabel(label)));
  });
}

function wordOf(pieces, members) {
  return pieces && members.length === 1 ? pieces[members[0]] ?? null : null;
}

function withSpaces(words) {
  return words.flatMap((word) => (word.classList.contains("word-joined") ? [word] : [" ", word]));
}

/** The mean over all words, where it can be told. */
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
