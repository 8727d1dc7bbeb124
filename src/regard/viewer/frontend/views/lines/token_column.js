// A column of tokens of which only those in sight are in the document.

import { icon, make } from "../../drawing/elements.js";
import { visibleLabel } from "../../drawing/labels.js";

const BEYOND_SIGHT = 6;
const COLUMN_MARGIN = 8;

export class TokenColumn {
  constructor(side) {
    this.side = side;
    this.strip = make("div", { class: "lines-strip", role: "list" });
    this.element = make("div", {}, this.strip);
    this.items = new Map();
    this.spare = [];
    this.setTokens({ labels: [], special: [], written: [] }, new Uint8Array(0), 24);
  }

  // On the left of the window or on its right, whichever side of the links it is.
  standAt(place) {
    for (const token of [...this.items.keys()]) this.release(token);
    this.spare = [];
    this.place = place;
    this.element.className = `lines-column lines-column-${place}`;
  }

  // Hidden tokens take no room: shown[slot] is a token, slots[token] its slot or -1.
  setTokens(axis, isHidden, rowHeight) {
    this.axis = axis;
    this.rowHeight = rowHeight;
    this.shown = [];
    this.slots = new Int32Array(axis.labels.length).fill(-1);
    for (let token = 0; token < axis.labels.length; token += 1) {
      if (isHidden[token]) continue;
      this.slots[token] = this.shown.length;
      this.shown.push(token);
    }
    for (const token of [...this.items.keys()]) this.release(token);
  }

  get height() {
    return this.shown.length * this.rowHeight + 2 * COLUMN_MARGIN;
  }

  top(slot) {
    return COLUMN_MARGIN + slot * this.rowHeight;
  }

  // Where the middle of a token is when the strip is moved up by offset; null for a token that is hidden.
  middle(token, offset) {
    const slot = this.slots[token] ?? -1;
    return slot < 0 ? null : this.top(slot + 0.5) - offset;
  }

  slotAt(distance) {
    return Math.floor((distance - COLUMN_MARGIN) / this.rowHeight);
  }

  inSight(offset, height, beyond = 0) {
    const first = Math.max(0, this.slotAt(offset) - beyond);
    return this.shown.slice(first, this.slotAt(offset + height) + 1 + beyond);
  }

  // The token of the keyboard stays in the document wherever it is: removing it would lose the focus.
  render(offset, height, focused, decorate) {
    const tokens = new Set(this.inSight(offset, height, BEYOND_SIGHT));
    if (focused !== null && this.slots[focused] >= 0) tokens.add(focused);
    for (const token of [...this.items.keys()]) if (!tokens.has(token)) this.release(token);
    for (const token of tokens) if (!this.items.has(token)) this.put(token);
    for (const [token, item] of this.items) decorate(token, item);
    this.strip.style.height = `${this.height}px`;
    this.strip.style.transform = `translateY(${-offset}px)`;
  }

  release(token) {
    const item = this.items.get(token);
    item.element.remove();
    this.items.delete(token);
    this.spare.push(item);
  }

  put(token) {
    const item = this.spare.pop() ?? makeTokenItem(this.side, this.place);
    const label = this.axis.labels[token];
    const slot = this.slots[token];
    item.element.style.top = `${this.top(slot)}px`;
    item.element.style.height = `${this.rowHeight}px`;
    item.element.setAttribute("aria-posinset", slot + 1);
    item.element.setAttribute("aria-setsize", this.shown.length);
    item.button.dataset.token = token;
    item.button.dataset.testid = `lines-${this.side === "left" ? "row" : "column"}-${token}`;
    item.button.classList.toggle("is-special", Boolean(this.axis.special[token]));
    item.button.classList.toggle("is-written", Boolean(this.axis.written[token]));
    item.name.textContent = visibleLabel(label);
    item.button.title = label;
    item.eye.dataset.hides = token;
    item.eye.setAttribute("aria-label", `Hide ${visibleLabel(label)}`);
    this.items.set(token, item);
    this.insert(slot, item.element);
  }

  // In reading order, for people who hear the page.
  insert(slot, element) {
    element.dataset.slot = slot;
    let next = null;
    let previous = this.strip.lastElementChild;
    while (previous && Number(previous.dataset.slot) > slot) {
      next = previous;
      previous = previous.previousElementSibling;
    }
    this.strip.insertBefore(element, next);
  }
}

function makeTokenItem(side, place) {
  const name = make("bdi", { class: "lines-name" });
  const weight = make("span", { class: "lines-weight" });
  const button = make("button", { type: "button", class: "lines-token", "data-side": side });
  const eye = make("button", { type: "button", class: "lines-eye", tabindex: -1, "data-side": side, title: "Hide (h)" }, icon("hide"));
  button.append(...(place === "left" ? [weight, name] : [name, weight]));
  const element = make("div", { class: "lines-item", role: "listitem" });
  element.append(...(place === "left" ? [eye, button] : [button, eye]));
  return { element, button, name, weight, eye };
}
