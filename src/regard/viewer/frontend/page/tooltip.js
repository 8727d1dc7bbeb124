// One small floating label for numbers under the pointer.

import { make } from "../drawing/elements.js";
import { textWithLabels } from "../drawing/labels.js";

const DISTANCE = 14;

/** The tooltip of the page: `show(x, y, lines)` at viewport coordinates, a line being a text or {text, kind}; `hide()`. */
export function createTooltip(host) {
  const box = make("div", { class: "tooltip", role: "tooltip", "data-testid": "tooltip", hidden: true });
  host.append(box);
  return {
    show(x, y, lines) {
      box.replaceChildren(...lines.map(tooltipLine));
      box.hidden = false;
      placeBeside(box, x, y);
    },
    hide() {
      box.hidden = true;
    },
  };
}

function tooltipLine(line, index) {
  const { text, kind } = typeof line === "string" ? { text: line, kind: index === 0 ? "strong" : "plain" } : line;
  return make("div", { class: `tooltip-${kind ?? "plain"}`, dir: "auto" }, ...textWithLabels(text));
}

function placeBeside(box, x, y) {
  const { offsetWidth: width, offsetHeight: height } = box;
  const fitsRight = x + DISTANCE + width < window.innerWidth - 4;
  const fitsBelow = y + DISTANCE + height < window.innerHeight - 4;
  const left = fitsRight ? x + DISTANCE : x - DISTANCE - width;
  const top = fitsBelow ? y + DISTANCE : y - DISTANCE - height;
  box.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
}
