// Building elements without markup strings: tokens are data and only ever become text nodes.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

const ICON_PATHS = {
  auto: "M8 1.75a6.25 6.25 0 1 0 0 12.5a6.25 6.25 0 1 0 0-12.5M8 1.75v12.5M8 4.5l4.9-.6M8 8h6.2M8 11.5l4.9.6",
  light: "M8 5a3 3 0 1 0 0 6a3 3 0 1 0 0-6M8 1v1.6M8 13.4V15M1 8h1.6M13.4 8H15M3 3l1.2 1.2M11.8 11.8 13 13M3 13l1.2-1.2M11.8 4.2 13 3",
  dark: "M13.6 9.9A6 6 0 0 1 6.1 2.4a6 6 0 1 0 7.5 7.5z",
  link: "M6.6 9.4l2.8-2.8M7.2 4.6l1.5-1.5a2.9 2.9 0 0 1 4.2 4.2l-1.5 1.5M8.8 11.4l-1.5 1.5a2.9 2.9 0 0 1-4.2-4.2l1.5-1.5",
  help: "M8 1.75a6.25 6.25 0 1 0 0 12.5a6.25 6.25 0 1 0 0-12.5M6.2 6.3a1.9 1.9 0 1 1 2.6 1.8c-.6.25-.8.6-.8 1.2M8 11.4v.1",
  more: "M2 4.5h12M2 8h12M2 11.5h12M5 3v3M10.5 6.5v3M6.5 10v3",
  download: "M8 2v8M4.8 7 8 10.2 11.2 7M2.5 13.5h11",
  back: "M13 8H3.5M7.5 3.5 3 8l4.5 4.5",
  plus: "M8 3.5v9M3.5 8h9",
  minus: "M3.5 8h9",
  fit: "M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  hide: "M1.5 8C3 5.2 5.3 3.8 8 3.8s5 1.4 6.5 4.2C13 10.8 10.7 12.2 8 12.2S3 10.8 1.5 8ZM6 8a2 2 0 1 0 4 0a2 2 0 1 0-4 0M2.5 13.5l11-11",
  play: "M4.5 2.8v10.4l8.6-5.2z",
  pause: "M5 3v10M11 3v10",
  next: "M3.5 3v10l6.5-5zM12.5 3v10",
};

/** Creates an element; `on…` attributes are listeners, null attributes are left out. */
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children);
  return node;
}

/** Creates an element of a drawing; null attributes are left out. */
export function makeSvg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG_NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** A 16-pixel line icon, hidden from screen readers. */
export function icon(name) {
  return makeSvg("svg", { viewBox: "0 0 16 16", class: "icon", "aria-hidden": "true" }, makeSvg("path", { d: ICON_PATHS[name] }));
}
