// The elements that the image view is made of.

import { make } from "../../drawing/elements.js";
import { visibleLabel } from "../../drawing/labels.js";

export function buildImage(image) {
  const picture = make("img", { class: "image-picture", alt: "", src: image.source, draggable: "false" });
  const canvas = make("canvas", { class: "image-canvas", tabindex: 0, role: "application", "aria-roledescription": "picture of patches", "data-testid": "image-canvas" });
  const frame = make("div", { class: "image-frame" }, picture, canvas);
  frame.style.aspectRatio = `${image.width} / ${image.height}`;
  frame.style.maxWidth = `min(100%, max(280px, calc((100cqh - 40px) * ${image.width / image.height})))`;
  const direction = imageSegments("What is shown", [["from", "Looks at"], ["to", "Is looked at by"]]);
  const grain = imageSegments("Colour layer", [["smooth", "Smooth"], ["blocks", "Blocks"]]);
  const opacity = make("input", { type: "range", min: 0, max: 100, value: 60, "data-testid": "image-opacity" });
  const strength = make("label", { class: "image-opacity" }, make("span", {}, "Opacity"), opacity);
  const tools = make("div", { class: "image-tools" }, direction.element, grain.element, strength);
  const title = make("p", { class: "image-title" });
  const facts = make("ul", { class: "image-facts" });
  const legend = buildLegend();
  const chipsLabel = make("p", { class: "image-chips-label" });
  const chips = make("div", { class: "image-chips", role: "group", "aria-label": "Tokens without a patch" });
  const panel = make("div", { class: "image-panel" }, title, legend.element, facts, tools, chipsLabel, chips);
  const message = make("p", { class: "image-message", hidden: true }, "Neither side of this attention is made of patches of the picture. Choose another part or layer.");
  const body = make("div", { class: "image-body" }, message, frame, panel);
  const root = make("div", { class: "image-view", role: "group", "aria-label": "Attention over the picture", "data-scrolls": true }, body);
  return { root, picture, canvas, frame, direction, grain, opacity, title, facts, legend, chipsLabel, chips, panel, message };
}

function imageSegments(label, choices) {
  const buttons = choices.map(([value, name]) =>
    make("button", { type: "button", class: "image-tool", "data-value": value, "data-testid": `image-${value}`, "aria-pressed": "false" }, name));
  const element = make("div", { class: "image-segments", role: "group", "aria-label": label }, ...buttons);
  const show = (value) => buttons.forEach((button) => button.setAttribute("aria-pressed", button.dataset.value === value));
  const listen = (chosen) => buttons.forEach((button) => button.addEventListener("click", () => chosen(button.dataset.value)));
  return { element, show, listen };
}

function buildLegend() {
  const bar = make("canvas", { class: "image-legend-bar", width: 256, height: 1, "aria-hidden": "true" });
  const least = make("span", {}, "0");
  const most = make("span", {});
  const element = make("div", { class: "image-legend" }, least, bar, most);
  return { element, bar, least, most };
}

export function tokenChip(token, label, isChosen, hasTabStop) {
  const chip = make("button", { type: "button", class: "image-chip", "data-token": token, "data-testid": `image-token-${token}`, "aria-pressed": String(isChosen), tabindex: hasTabStop ? 0 : -1 });
  chip.append(make("bdi", {}, visibleLabel(label)));
  return chip;
}
