// What stands below an exported picture: the colour scale with its numbers, and what is shown.

import { svgDocument, svgEscape } from "./svg.js";

const CAPTION = { margin: 20, line: 17, letter: 6.3, least: 460 };
const SCALE = { width: 160, height: 8, room: 44 };

/** An SVG picture with its caption; `scale` is {stops: [colour], texts: [three numbers]}, or null for none. */
export function captionedSvg(svg, title, text, scale, colours) {
  const [, width, height] = svg.match(/width="(\d+)" height="(\d+)"/).map(Number);
  const across = Math.max(width, CAPTION.least);
  const lines = [title, ...wrappedLines(text, (across - 2 * CAPTION.margin) / CAPTION.letter)];
  const top = height + CAPTION.margin + (scale ? SCALE.room : 0);
  const parts = [svg, scale ? scaleAsSvg(scale, height + CAPTION.margin, colours) : ""];
  lines.forEach((line, index) => {
    const look = index === 0 ? `font-weight="600" fill="${colours.ink}"` : `fill="${colours.muted}"`;
    parts.push(`<text x="${CAPTION.margin}" y="${top + index * CAPTION.line}" font-size="12" ${look}>${svgEscape(line)}</text>`);
  });
  return svgDocument(across, top + lines.length * CAPTION.line + 4, colours.surface, parts);
}

function scaleAsSvg({ stops, texts }, y, colours) {
  const steps = stops.map((colour, index) => `<stop offset="${index / (stops.length - 1)}" stop-color="${colour}"/>`).join("");
  const gradient = `<defs><linearGradient id="regard-scale">${steps}</linearGradient></defs>`;
  const bar = `<rect x="${CAPTION.margin}" y="${y}" width="${SCALE.width}" height="${SCALE.height}" rx="3" fill="url(#regard-scale)"/>`;
  const anchors = ["start", "middle", "end"];
  const numbers = texts.map((number, index) => {
    const x = CAPTION.margin + (SCALE.width * index) / (texts.length - 1);
    return `<text x="${x}" y="${y + SCALE.height + 13}" font-size="11" text-anchor="${texts.length === 3 ? anchors[index] : anchors[2 * index]}" fill="${colours.muted}">${svgEscape(number)}</text>`;
  });
  return gradient + bar + numbers.join("");
}

function wrappedLines(text, lineLength) {
  const lines = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last === undefined || last.length + word.length >= lineLength) lines.push(word);
    else lines[lines.length - 1] = `${last} ${word}`;
  }
  return lines;
}
