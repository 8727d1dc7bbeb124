// The lines view as an SVG file.

import { visibleLabel } from "../../drawing/labels.js";
import { svgDocument, svgEscape, underlineAttribute } from "../../export/svg.js";
import { linkPaths, placedLinks } from "./links.js";
import { weightText } from "./weights.js";

const WHOLE_UNTIL = 200;
const LINES_EDGE = 16;
const NUMBERS_WIDTH = 56;

/** All tokens where they fit a page, otherwise those in sight. */
export function linesSvg(view) {
  const { left, right } = view.columns;
  const isWhole = Math.max(left.shown.length, right.shown.length) <= WHOLE_UNTIL;
  const height = isWhole ? Math.max(left.height, right.height) : view.parts.scroller.clientHeight;
  const offsets = isWhole ? { left: 0, right: 0 } : { left: view.offset("left"), right: view.offset("right") };
  const active = view.active();
  const [beside, between] = [left.element.clientWidth, view.parts.canvas.clientWidth];
  const colours = view.context.palette();
  const paths = view.sources().flatMap(({ weights, peak, colour, shift }) => {
    const geometry = view.geometry(height, offsets, shift);
    const { lines } = placedLinks(view.linksOf(active, offsets, height, weights), geometry, peak, view.state.colour);
    return linkPaths(lines, geometry, colours, view.frame.signed, colour);
  });
  const parts = [
    `<clipPath id="sight"><rect x="0" y="0" width="${between}" height="${height}"/></clipPath>`,
    `<g transform="translate(${LINES_EDGE + beside} ${LINES_EDGE})" clip-path="url(#sight)">`,
    ...paths,
    "</g>",
    ...["left", "right"].flatMap((side) => sideAsSvg(view, side, offsets[side], height, active, colours)),
  ];
  return svgDocument(2 * (LINES_EDGE + beside) + between, height + 2 * LINES_EDGE, colours.surface, parts);
}

function sideAsSvg(view, side, offset, height, active, colours) {
  const sideWeights = view.sideWeights(active);
  const weights = sideWeights?.side === side ? sideWeights.weights : null;
  const column = view.columns[side];
  const isLeft = column.place === "left";
  const [away, anchor] = isLeft ? [-1, "end"] : [1, "start"];
  const inner = LINES_EDGE + column.element.clientWidth + (isLeft ? 0 : view.parts.canvas.clientWidth) + 10 * away;
  return column.inSight(offset, height).flatMap((token) => {
    const y = (column.middle(token, offset) + LINES_EDGE + 4.5).toFixed(1);
    const isChosen = active?.side === side && active.tokens.includes(token);
    const ink = active && !isChosen && !weights ? colours.muted : colours.ink;
    const style = `font-size="13"${isChosen ? ' font-weight="700"' : ""}${underlineAttribute(column.axis.written[token])}`;
    const words = [`<text x="${inner}" y="${y}" text-anchor="${anchor}" ${style} fill="${ink}">${svgEscape(shortenedLabel(visibleLabel(column.axis.labels[token])))}</text>`];
    if (!weights) return words;
    const outer = inner + away * (column.element.clientWidth - NUMBERS_WIDTH / 2);
    return [...words, `<text x="${outer}" y="${y}" text-anchor="middle" font-size="11" fill="${colours.muted}">${svgEscape(weightText(weights[token], sideWeights.decimals))}</text>`];
  });
}

// A file has no ellipsis of its own: what does not fit would run into the lines or out of the picture.
function shortenedLabel(label) {
  const letters = [...label];
  return letters.length > 24 ? `${letters.slice(0, 23).join("")}…` : label;
}
