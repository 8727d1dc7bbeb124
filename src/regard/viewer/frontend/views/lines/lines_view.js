// Lines between two columns of tokens: who looks (left) and what is looked at (right); two texts that have names stand
// the other way round, as a translation is read.

import { frameOf } from "../../data/frame.js";
import { layerName } from "../../data/scene.js";
import { fitCanvas } from "../../drawing/canvas.js";
import { scaleShare } from "../../drawing/colour.js";
import { make } from "../../drawing/elements.js";
import { visibleLabel } from "../../drawing/labels.js";
import { MOST_HEADS, headPlace, unitName } from "../../state/state.js";
import { buildLines, columnHead, headChip, hiddenChip } from "./elements.js";
import { OTHER_SIDE, linesKeys, listenToLines } from "./input.js";
import { MOST_WHILE_SCROLLING, allLinks, drawLines, fadeEdges, linksAt, placedLinks, strongest } from "./links.js";
import { linesSvg } from "./svg.js";
import { TokenColumn } from "./token_column.js";
import { FrameWeights, weightText } from "./weights.js";

const HEAD_SHIFT = 5; // pixels between the lines of two heads with the same ends
const ROOMY_COUNT = 24;
const SCROLL_REST = 120;
const NARROW_COLUMN = 180;
const LINE_SIDES = ["left", "right"];
const CANNOT_HOVER = globalThis.matchMedia?.("(hover: none)").matches;
const SIDE_ROLES = { left: "that look", right: "looked at" };

/** The lines view. */
export function createLinesView(host, context) {
  const view = new LinesView(host, context);
  return {
    update: (frame, state) => view.update(frame, state),
    picture: () => ({ svg: linesSvg(view) }),
    resize: () => view.schedule(),
    focus: () => view.moveFocus(view.focus),
    destroy: () => view.destroy(),
    keys: linesKeys(view),
  };
}

class LinesView {
  constructor(host, context) {
    this.context = context;
    this.parts = buildLines();
    this.columns = { left: new TokenColumn("left"), right: new TokenColumn("right") };
    this.isMirrored = null;
    this.kept = [];
    this.colour = null;
    this.hover = null;
    this.focus = { side: "left", token: 0 };
    listenToLines(this);
    host.append(this.parts.root);
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.parts.scroller);
  }

  destroy() {
    this.observer.disconnect();
    cancelAnimationFrame(this.due);
    clearTimeout(this.rest);
    this.parts.root.remove();
  }

  update(frame, state) {
    const isFirst = !this.frame;
    const isNewFrame = frame !== this.frame;
    const isNewLayout = isNewFrame || state.hidden !== this.state?.hidden;
    if (isNewFrame) this.weights = this.weightsOfFrame(frame);
    if (isNewLayout || state.limit !== this.state?.limit) this.overview = null;
    const { theme } = this.context.palette();
    const isOtherHeads = isNewFrame || state.heads !== this.state?.heads || theme !== this.theme;
    this.theme = theme;
    this.frame = frame;
    this.state = state;
    if (isOtherHeads) this.keepHeads();
    if (isNewLayout) this.layOut();
    if (isFirst) this.isArriving = state.selected.length > 0;
    this.schedule();
  }

  weightsOfFrame(frame) {
    const isShown = () => frame === this.frame;
    return new FrameWeights(frame, () => isShown() && this.schedule(), (problem) => isShown() && this.context.fail(problem));
  }

  /** The heads that are kept, beside the one that is chosen: their frames come later. */
  keepHeads() {
    const { frame, state, context } = this;
    const chosen = `${state.layer}.${state.head}`;
    const isHead = state.mode === "head" && state.layer !== "all";
    const places = state.heads.filter((place) => !(isHead && place === chosen));
    const name = (layer, head) => `${layerName(context.scene, state.part, layer)}, head ${head}`;
    const { heads: colours } = context.palette();
    const colourOf = (place) => colours[(state.heads.includes(place) ? state.heads.indexOf(place) + 1 : 0) % colours.length];
    this.colour = state.heads.length ? colourOf(chosen) : null;
    this.kept = places.map((place) => ({ place, colour: colourOf(place), frame: null, weights: null }));
    const chips = this.kept.map(({ place, colour }) => headChip(place, name(...headPlace(place)), colour));
    const current = isHead ? name(state.layer, state.head) : "All heads shown together";
    this.parts.headList.replaceChildren(...(state.heads.length ? [headChip(state.heads.includes(chosen) && isHead ? chosen : null, current, this.colour)] : []), ...chips);
    this.parts.headList.hidden = state.heads.length === 0;
    const { sites } = context.scene.parts[state.part];
    this.parts.compare.hidden = sites.reduce((sum, number) => sum + context.scene.sites[number].heads, 0) === 1;
    this.parts.compare.disabled = !isHead || state.heads.includes(chosen) || state.heads.length >= MOST_HEADS;
    for (const kept of this.kept) this.loadKept(kept, frame);
  }

  async loadKept(kept, frame) {
    const [layer, head] = headPlace(kept.place);
    try {
      const own = await frameOf(this.context.scene, { ...this.state, layer, head, mode: "head" });
      if (frame !== this.frame || !this.kept.includes(kept)) return;
      kept.frame = own;
      kept.weights = new FrameWeights(own, () => this.schedule(), (problem) => this.context.fail(problem));
      this.schedule();
    } catch (problem) {
      if (this.kept.includes(kept)) this.context.fail(problem);
    }
  }

  /** What lines are drawn from: the chosen map, then the heads that are kept; all on one scale. */
  sources() {
    const kept = this.kept.filter(({ weights }) => weights);
    const peak = Math.max(this.frame.peak, ...kept.map(({ frame }) => frame.peak));
    const heads = [{ weights: this.weights, colour: this.colour }, ...kept.map(({ weights, colour }) => ({ weights, colour }))];
    return heads.map((head, index) => ({ ...head, peak, shift: HEAD_SHIFT * (index - (heads.length - 1) / 2) }));
  }

  keepHead() {
    const { layer, head, heads } = this.context.store.get();
    this.context.store.set({ heads: [...heads, `${layer}.${head}`] });
  }

  dropHead(place) {
    this.context.store.set({ heads: this.context.store.get().heads.filter((other) => other !== place) });
  }

  layOut() {
    const { frame, state } = this;
    const rows = frame.rows.labels.length;
    const columns = frame.columns.labels.length;
    this.isHidden = { left: new Uint8Array(rows), right: new Uint8Array(columns) };
    for (const number of state.hidden) this.markHidden(number, rows);
    // Tokens are put in anew, and the one that had the keyboard should have it again.
    this.wantsFocus ||= this.parts.stage.contains(document.activeElement);
    this.arrange();
    const rowHeight = Math.max(rows, columns) <= ROOMY_COUNT ? 32 : 26;
    this.columns.left.setTokens(frame.rows, this.isHidden.left, rowHeight);
    this.columns.right.setTokens(frame.columns, this.isHidden.right, rowHeight);
    if (this.hover && !this.isShown(this.hover.side, this.hover.token)) this.hover = null;
    this.focus = this.nearestShown(this.focus);
    this.listHidden();
  }

  // Named texts stand in the order they are read in, what is looked at first.
  arrange() {
    const { parts, columns, frame } = this;
    const names = { left: frame.rows.name ?? "Queries", right: frame.columns.name ?? "Keys" };
    for (const side of LINE_SIDES) {
      parts.roles[side].textContent = names[side];
      columns[side].strip.setAttribute("aria-label", names[side]);
    }
    parts.root.setAttribute("aria-label", `Lines between ${names.left} and ${names.right}`);
    const isMirrored = !frame.square && Boolean(frame.columns.name);
    if (isMirrored === this.isMirrored) return;
    this.isMirrored = isMirrored;
    const [first, second] = LINE_SIDES.map((place) => this.sideAt(place));
    columns[first].standAt("left");
    columns[second].standAt("right");
    parts.stage.append(columns[first].element, parts.canvas, columns[second].element);
    parts.heads.replaceChildren(...[first, second].map((side) => columnHead(parts.roles[side], parts.captions[side])));
  }

  /** The side of the links that stands at a place of the window. */
  sideAt(place) {
    return this.isMirrored ? OTHER_SIDE[place] : place;
  }

  nearestShown({ side, token }) {
    const { shown } = this.columns[side];
    return { side, token: shown.find((other) => other >= token) ?? shown.at(-1) ?? 0 };
  }

  // A token of a sequence that looks at itself is hidden on both sides. Otherwise keys are numbered after the queries.
  markHidden(number, rows) {
    if (this.frame.square || number < rows) this.isHidden.left[number] = 1;
    if (this.frame.square) this.isHidden.right[number] = 1;
    else if (number >= rows) this.isHidden.right[number - rows] = 1;
  }

  hiddenNumber(side, token) {
    return side === "left" || this.frame.square ? token : token + this.frame.rows.labels.length;
  }

  listHidden() {
    const { frame, state } = this;
    const rows = frame.rows.labels.length;
    const chips = state.hidden.map((number) => {
      const label = number < rows ? frame.rows.labels[number] : frame.columns.labels[number - rows];
      return { number, label: label ?? String(number) };
    });
    this.parts.hidden.hidden = chips.length === 0;
    this.parts.hiddenList.replaceChildren(...chips.map(hiddenChip));
  }

  // What the lines belong to: the token under the pointer or the keyboard, else what was selected, else nothing.
  active() {
    const { selected, pinned } = this.state;
    if (this.hover && !(pinned && selected.length)) return { side: this.hover.side, tokens: [this.hover.token] };
    const side = this.selectedSide();
    const tokens = selected.filter((token) => this.isShown(side, token));
    return tokens.length ? { side, tokens } : null;
  }

  selectedSide() {
    return this.state.direction === "to" ? "right" : "left";
  }

  isShown(side, token) {
    return this.columns[side].slots[token] >= 0;
  }

  // All links, or of what is active; those with no end in the window may be missing.
  linksOf(active, offsets, height, source = this.weights) {
    if (!active) return this.overviewLinks(offsets, height, source);
    const links = { from: [], to: [], weight: [] };
    for (const token of active.tokens) this.addLinks(links, active.side, token, source);
    return links;
  }

  addLinks(links, side, token, source) {
    const weights = this.linkWeights(side, token, source);
    if (!weights) return;
    for (const other of strongest(weights, this.state.limit, this.isHidden[OTHER_SIDE[side]], Infinity)) {
      links.from.push(side === "left" ? token : other);
      links.to.push(side === "left" ? other : token);
      links.weight.push(weights[other]);
    }
  }

  /** Weights that may have lines: of the strongest, those that are so for certain. */
  linkWeights(side, token, source = this.weights) {
    return this.state.limit.kind === "top" ? source.certain(side, token) : source.of(side, token);
  }

  overviewLinks(offsets, height, source) {
    const { left, right } = this.columns;
    const rows = left.inSight(offsets.left, height);
    const weights = (row) => (this.isScrolling ? source.cached("left", row) : this.linkWeights("left", row, source));
    if (!this.frame.cut || source !== this.weights) {
      return allLinks(rows, weights, this.state.limit, this.isHidden.right);
    }
    this.overview ??= allLinks(left.shown, (row) => this.linkWeights("left", row), this.state.limit, this.isHidden.right);
    return linksAt(this.overview, rows, right.inSight(offsets.right, height));
  }

  // Rows that a server makes are asked for once the scrolling rests.
  scrolled() {
    this.isScrolling = true;
    clearTimeout(this.rest);
    this.rest = setTimeout(() => {
      this.isScrolling = false;
      this.schedule();
    }, SCROLL_REST);
    this.schedule();
  }

  schedule() {
    this.due ??= requestAnimationFrame(() => this.renderNow());
  }

  renderNow() {
    if (this.due) cancelAnimationFrame(this.due);
    this.due = null;
    if (this.frame && this.parts.root.isConnected) this.render();
  }

  // Columns of unequal length scroll in proportion, so that both reach their ends together.
  offset(side) {
    const { scroller } = this.parts;
    const range = scroller.scrollHeight - scroller.clientHeight;
    const own = Math.max(0, this.columns[side].height - scroller.clientHeight);
    return range > 0 ? Math.round((own * scroller.scrollTop) / range) : 0;
  }

  render() {
    const { parts, columns } = this;
    parts.space.style.height = `${Math.max(columns.left.height, columns.right.height)}px`;
    const height = parts.scroller.clientHeight;
    parts.stage.style.height = `${height}px`;
    if (this.isArriving) this.reveal({ side: this.selectedSide(), token: this.state.selected[0] });
    this.isArriving = false;
    const active = this.active();
    const sideWeights = this.sideWeights(active);
    const offsets = { left: this.offset("left"), right: this.offset("right") };
    for (const side of LINE_SIDES) {
      const focused = this.focus.side === side ? this.focus.token : null;
      columns[side].render(offsets[side], height, focused, (token, item) => this.decorate(side, token, item, active, sideWeights));
    }
    this.draw(active, offsets, height);
    this.caption(active, sideWeights);
    this.pointBeyond(active, offsets, height);
    if (this.wantsFocus) columns[this.focus.side].items.get(this.focus.token)?.button.focus({ preventScroll: true });
    this.wantsFocus = false;
  }

  geometry(height, offsets, shift = 0) {
    const { left, right } = this.columns;
    const width = this.parts.canvas.clientWidth;
    return {
      left: this.isMirrored ? width : 0,
      right: this.isMirrored ? 0 : width,
      height,
      leftMiddle: (row) => shifted(left.middle(row, offsets.left), shift),
      rightMiddle: (column) => shifted(right.middle(column, offsets.right), shift),
    };
  }

  draw(active, offsets, height) {
    const { canvas } = this.parts;
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    fitCanvas(canvas, Math.round(width * scale), Math.round(height * scale));
    const surface = canvas.getContext("2d");
    surface.setTransform(scale, 0, 0, scale, 0, 0);
    surface.clearRect(0, 0, width, height);
    const most = this.isScrolling ? MOST_WHILE_SCROLLING : undefined;
    this.leftOut = 0;
    for (const { weights, peak, colour, shift } of this.sources()) {
      const geometry = this.geometry(height, offsets, shift);
      const placed = placedLinks(this.linksOf(active, offsets, height, weights), geometry, peak, this.state.colour, most);
      drawLines(surface, placed.lines, geometry, this.context.palette(), this.frame.signed, colour);
      this.leftOut += placed.leftOut;
    }
    const longest = Math.max(this.columns.left.height - offsets.left, this.columns.right.height - offsets.right);
    fadeEdges(surface, width, height, Math.max(offsets.left, offsets.right) > 1, longest > height + 1);
  }

  // The weights shown beside the tokens of the other side: of one token, or the mean of several.
  sideWeights(active) {
    if (!active?.tokens.length) return null;
    const rows = active.tokens.map((token) => this.weights.of(active.side, token));
    if (rows.some((row) => !row)) return null;
    const mean = (_, place) => rows.reduce((sum, row) => sum + row[place], 0) / rows.length;
    const weights = rows.length === 1 ? rows[0] : rows[0].map(mean);
    return { side: OTHER_SIDE[active.side], weights, decimals: this.decimalsOf(weights) };
  }

  decorate(side, token, item, active, sideWeights) {
    const isChosen = active?.side === side && active.tokens.includes(token);
    const isSelected = this.selectedSide() === side && this.state.selected.includes(token);
    const weight = sideWeights?.side === side ? sideWeights.weights[token] : null;
    const share = weight === null || Number.isNaN(weight) ? 0 : scaleShare(Math.abs(weight), this.frame.peak, this.state.colour);
    item.button.setAttribute("aria-pressed", isSelected);
    item.button.tabIndex = this.focus.side === side && this.focus.token === token ? 0 : -1;
    item.element.classList.toggle("is-chosen", isChosen);
    item.element.classList.toggle("is-selected", isSelected);
    item.element.classList.toggle("is-dim", active !== null && !isChosen && share < 0.01);
    item.weight.textContent = weight === null ? "" : weightText(weight, sideWeights.decimals);
    item.element.style.setProperty("--share", share.toFixed(3));
  }

  // Where the strongest link out of sight leads, above and below: a press goes there.
  pointBeyond(active, offsets, height) {
    const side = active ? OTHER_SIDE[active.side] : "right";
    const beyond = active ? this.tokensBeyond(active, side, offsets, height) : { above: [], below: [] };
    for (const [way, tokens] of Object.entries(beyond)) {
      const button = this.parts.beyond[way];
      button.hidden = tokens.length === 0;
      button.classList.toggle("is-left", this.columns[side].place === "left");
      if (!tokens.length) continue;
      button.goal = { side, token: tokens[0] };
      const label = make("bdi", {}, visibleLabel(this.axis(side).labels[tokens[0]]));
      button.replaceChildren(way === "above" ? "↑ " : "↓ ", label, tokens.length > 1 ? ` and ${tokens.length - 1} more` : "");
    }
  }

  tokensBeyond(active, side, offsets, height) {
    const links = this.linksOf(active, offsets, height);
    const ends = side === "right" ? links.to : links.from;
    const order = [...ends.keys()].sort((a, b) => Math.abs(links.weight[b]) - Math.abs(links.weight[a]));
    const tokens = [...new Set(order.map((index) => ends[index]))];
    const middle = (token) => this.columns[side].middle(token, offsets[side]);
    return { above: tokens.filter((token) => middle(token) < 0), below: tokens.filter((token) => middle(token) > height) };
  }

  // Digits after the point that tell the largest weight to three places, one fewer where there is little room.
  decimalsOf(weights) {
    const largest = weights.reduce((most, weight) => (Math.abs(weight) > most ? Math.abs(weight) : most), 0);
    const places = largest > 0 ? 2 - Math.floor(Math.log10(largest)) : 3;
    const isNarrow = this.columns.left.element.clientWidth < NARROW_COLUMN;
    return Math.min(Math.max(places, 3), 8) - (isNarrow ? 1 : 0);
  }

  caption(active, sideWeights) {
    const { parts, state, frame } = this;
    const count = active?.tokens.length ?? 0;
    const axis = active?.side === "right" ? frame.columns : frame.rows;
    const subject = count === 1 ? [`${frame.measure} of “`, make("bdi", {}, visibleLabel(axis.labels[active.tokens[0]])), "”"] : [`${frame.measure}, mean of ${count} ${unitName(state)}s`];
    for (const side of LINE_SIDES) parts.captions[side].replaceChildren(...(sideWeights?.side === side ? subject : [`${unitName(state)}s ${SIDE_ROLES[side]}`]));
    parts.pin.disabled = parts.clear.disabled = state.selected.length === 0;
    parts.pin.setAttribute("aria-pressed", state.pinned && state.selected.length > 0);
    parts.hint.textContent = this.hint(state);
  }

  hint(state) {
    if (this.leftOut) return `${this.leftOut.toLocaleString()} weaker lines are left out.`;
    if (this.frame.partial && state.selected.length) return `${state.selected.length} selected. ${this.storedHint()}`;
    if (!state.selected.length) return CANNOT_HOVER ? `Tap ${unitName(state)}s to select their lines.` : `Hover a ${unitName(state)} for its lines. Click to select, h to hide.`;
    const pinned = state.pinned ? ", pinned" : "";
    return `${state.selected.length} selected${pinned}.`;
  }

  /** Which weights a page holds that does not hold all: others have no line and no number. */
  storedHint() {
    const { count } = this.frame.partial;
    return count ? `Stored are the ${count} largest weights of each row.` : "Stored are the largest weights of each row.";
  }

  select(side, token) {
    const { context } = this;
    const { selected: kept } = context.store.get();
    const selected = kept.join() === context.suggested?.join() ? [] : kept;
    context.suggested = null;
    const isOther = side !== this.selectedSide();
    const others = isOther ? [] : selected.filter((other) => other !== token);
    const selection = others.length === selected.length || isOther ? [...others, token] : others;
    const patch = { selected: selection.sort((a, b) => a - b), direction: side === "right" ? "to" : "from" };
    this.context.store.set(selection.length ? patch : { ...patch, pinned: false });
  }

  pin() {
    const { selected, pinned } = this.context.store.get();
    if (selected.length) this.context.store.set({ pinned: !pinned });
  }

  clear() {
    this.context.store.set({ selected: [], pinned: false });
  }

  hide(side, token) {
    const number = this.hiddenNumber(side, token);
    const isOwn = this.frame.square || side === this.selectedSide();
    const selected = isOwn ? this.state.selected.filter((other) => other !== token) : this.state.selected;
    this.context.store.set({ hidden: [...this.state.hidden, number].sort((a, b) => a - b), selected });
    this.context.announce(`${visibleLabel(this.axis(side).labels[token])} hidden`);
  }

  unhide(number) {
    this.context.store.set({ hidden: this.state.hidden.filter((other) => other !== number) });
  }

  setHover(hover) {
    this.hover = hover;
    this.schedule();
  }

  // Moves the keyboard to a token, into sight if need be.
  moveFocus({ side, token }) {
    this.focus = this.nearestShown({ side, token });
    this.reveal(this.focus);
    this.wantsFocus = true;
    this.schedule();
  }

  reveal({ side, token }) {
    const { scroller } = this.parts;
    const column = this.columns[side];
    const height = scroller.clientHeight;
    const own = column.height - height;
    if (own <= 0) return;
    const top = column.top(column.slots[token]);
    const margin = Math.min(2 * column.rowHeight, height / 4);
    const lowest = top + column.rowHeight + margin - height;
    const offset = Math.min(Math.max(this.offset(side), lowest), Math.max(0, top - margin));
    scroller.scrollTop = (offset * (scroller.scrollHeight - height)) / own;
  }

  axis(side) {
    return side === "left" ? this.frame.rows : this.frame.columns;
  }
}

/** The middle of a token moved by pixels; null of one that is hidden. */
function shifted(middle, shift) {
  return middle === null ? null : middle + shift;
}
