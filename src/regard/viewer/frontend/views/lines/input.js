// Pointer and keyboard of the lines view.

import { measuredWeight, readableWeight } from "../../data/numbers.js";
import { strongest } from "./links.js";
import { isolated, visibleLabel } from "../../drawing/labels.js";

export const OTHER_SIDE = { left: "right", right: "left" };
const TOKENS_A_PAGE = 10;

export function listenToLines(view) {
  const { root, stage, scroller, pin, clear, showAll } = view.parts;
  scroller.addEventListener("scroll", () => view.scrolled(), { passive: true });
  stage.addEventListener("pointerover", (event) => hoverToken(view, event));
  stage.addEventListener("pointerleave", () => leaveTokens(view));
  stage.addEventListener("focusin", (event) => focusToken(view, event));
  stage.addEventListener("focusout", () => view.setHover(null));
  root.addEventListener("click", (event) => clickInside(view, event));
  root.addEventListener("keydown", (event) => pressLinesKey(view, event));
  pin.addEventListener("click", () => view.pin());
  clear.addEventListener("click", () => view.clear());
  for (const button of Object.values(view.parts.beyond)) button.addEventListener("click", () => view.reveal(button.goal));
  view.parts.compare.addEventListener("click", () => view.keepHead());
  view.parts.headList.addEventListener("click", (event) => {
    const place = event.target.closest?.("[data-drops]")?.dataset.drops;
    if (place) view.dropHead(place);
  });
  showAll.addEventListener("click", () => view.context.store.set({ hidden: [] }));
}

function tokenAt(element) {
  const button = element.closest?.(".lines-item")?.querySelector(".lines-token");
  return button ? { side: button.dataset.side, token: Number(button.dataset.token) } : null;
}

function hoverToken(view, event) {
  if (event.pointerType === "touch") return;
  const hover = tokenAt(event.target);
  view.setHover(hover);
  if (hover) showExactWeight(view, hover, event);
  else view.context.tooltip.hide();
}

function leaveTokens(view) {
  view.setHover(null);
  view.context.tooltip.hide();
}

// With one token pinned, a token of the other side tells the weight between the two.
async function showExactWeight(view, hover, event) {
  const active = view.active();
  view.context.tooltip.hide();
  if (active?.tokens.length !== 1 || hover.side !== OTHER_SIDE[active.side]) return;
  const [row, column] = active.side === "left" ? [active.tokens[0], hover.token] : [hover.token, active.tokens[0]];
  const weight = await view.frame.value(row, column);
  if (view.hover?.token !== hover.token || view.hover.side !== hover.side) return;
  const names = `${isolated(view.frame.rows.labels[row])} → ${isolated(view.frame.columns.labels[column])}`;
  view.context.tooltip.show(event.clientX, event.clientY, [names, { text: measuredWeight(view.frame, weight), kind: "number" }]);
}

function focusToken(view, event) {
  const token = tokenAt(event.target);
  if (!token || !event.target.matches(".lines-token")) return;
  view.focus = token;
  if (event.target.matches(":focus-visible")) view.setHover(token);
}

function clickInside(view, event) {
  const shows = event.target.closest("[data-shows]");
  if (shows) view.unhide(Number(shows.dataset.shows));
  const token = tokenAt(event.target);
  if (!token) return;
  if (event.target.closest(".lines-eye")) view.hide(token.side, token.token);
  else view.select(token.side, token.token);
}

/** What each key does while the view has the keyboard. */
export function linesKeys(view) {
  return {
    ArrowUp: () => stepToken(view, -1),
    ArrowDown: () => stepToken(view, 1),
    PageUp: () => stepToken(view, -TOKENS_A_PAGE),
    PageDown: () => stepToken(view, TOKENS_A_PAGE),
    Home: () => stepToken(view, -Infinity),
    End: () => stepToken(view, Infinity),
    ArrowLeft: () => changeTokenSide(view, view.sideAt("left")),
    ArrowRight: () => changeTokenSide(view, view.sideAt("right")),
    Enter: () => pinFocused(view),
    " ": () => selectPointed(view),
    Escape: () => undoSelection(view),
    h: () => hidePointed(view),
  };
}

function pressLinesKey(view, event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !event.target.matches(".lines-token")) return;
  const action = linesKeys(view)[event.key];
  if (!action || action() === false) return;
  event.preventDefault();
  event.stopPropagation();
}

function stepToken(view, distance) {
  const { side, token } = view.focus;
  const { shown, slots } = view.columns[side];
  const slot = Math.min(Math.max(slots[token] + distance, 0), shown.length - 1);
  if (shown.length) arriveAtToken(view, { side, token: shown[slot] });
}

// The token across that stands nearest on screen.
function changeTokenSide(view, side) {
  if (side === view.focus.side) return;
  const height = view.columns[view.focus.side].middle(view.focus.token, view.offset(view.focus.side)) ?? 0;
  const { shown } = view.columns[side];
  const slot = view.columns[side].slotAt(height + view.offset(side));
  if (shown.length) arriveAtToken(view, { side, token: shown[Math.min(Math.max(slot, 0), shown.length - 1)] });
}

function arriveAtToken(view, target) {
  view.moveFocus(target);
  view.hover = view.focus;
  view.renderNow(); // the next key may come before the next picture
  view.context.announce(sentenceOf(view, view.focus));
}

function sentenceOf(view, { side, token }) {
  const other = view.axis(OTHER_SIDE[side]).labels;
  const weights = view.weights.of(side, token);
  const role = view.axis(side).name ?? (side === "left" ? "Query" : "Key");
  const name = `${role} ${visibleLabel(view.axis(side).labels[token])}`;
  if (!weights?.length) return name;
  const [best] = strongest(weights, { kind: "top", value: 1 }, [], Infinity);
  if (best === undefined) return name;
  if (Number.isNaN(view.weights.certain(side, token)[best])) return `${name}, strongest not stored`;
  return `${name}, strongest ${visibleLabel(other[best])} ${readableWeight(weights[best])}`;
}

// The token under the pointer, else that of the keyboard while it is in the view.
function pointedToken(view) {
  return view.hover ?? (view.parts.stage.contains(document.activeElement) ? view.focus : null);
}

function hidePointed(view) {
  const pointed = pointedToken(view);
  if (pointed) view.hide(pointed.side, pointed.token);
  return pointed !== null;
}

function undoSelection(view) {
  const { pinned, selected } = view.context.store.get();
  if (pinned) view.context.store.set({ pinned: false });
  else if (selected.length) view.clear();
  return pinned || selected.length > 0;
}

function selectPointed(view) {
  const pointed = pointedToken(view);
  if (pointed) view.select(pointed.side, pointed.token);
  return pointed !== null;
}

function pinFocused(view) {
  const pointed = pointedToken(view);
  if (!pointed) return false;
  const { side, token } = pointed;
  const isSelected = side === view.selectedSide() && view.state.selected.includes(token);
  if (!isSelected) view.select(side, token);
  view.context.store.set({ pinned: isSelected ? !view.state.pinned : true });
  return true;
}
