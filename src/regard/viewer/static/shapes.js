// Line icons of the lines view and the slider.

const ICON_SHAPES = {
  hide: "M1.5 8C3 5.2 5.3 3.8 8 3.8s5 1.4 6.5 4.2C13 10.8 10.7 12.2 8 12.2S3 10.8 1.5 8ZM6 8a2 2 0 1 0 4 0a2 2 0 1 0-4 0M2.5 13.5l11-11",
  play: "M4.5 2.8v10.4l8.6-5.2z",
  pause: "M5 3v10M11 3v10",
  next: "M3.5 3v10l6.5-5zM12.5 3v10",
};

/** A 16-pixel line icon, hidden from screen readers. */
export function shapeIcon(name) {
  const space = "http://www.w3.org/2000/svg";
  const drawing = document.createElementNS(space, "svg");
  drawing.setAttribute("viewBox", "0 0 16 16");
  drawing.setAttribute("class", "icon");
  drawing.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", ICON_SHAPES[name]);
  drawing.append(path);
  return drawing;
}
