// SVG as text, whatever a token says.

// XML 1.0 has no way to write most control characters, not even escaped, and half a surrogate pair is no character.
const NOT_IN_XML = /[^\t\n\r\u{20}-\u{D7FF}\u{E000}-\u{FFFD}\u{10000}-\u{10FFFF}]/gu;
const XML_ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;" };

/** A text as it may stand in an SVG file. */
export function svgEscape(text) {
  return String(text).replace(NOT_IN_XML, "").replace(/[&<>"']/g, (character) => XML_ESCAPES[character]);
}

/** An SVG file of the given size; sizes are in CSS pixels. */
export function svgDocument(width, height, background, parts) {
  const [across, down] = [Math.ceil(width), Math.ceil(height)];
  const font = 'font-family="system-ui, -apple-system, Segoe UI, Roboto, Noto Sans, sans-serif"';
  const ground = `<rect width="100%" height="100%" fill="${background}"/>`;
  const size = `width="${across}" height="${down}" viewBox="0 0 ${across} ${down}"`;
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${font}>${ground}${parts.join("")}</svg>`;
}

/** The attribute of SVG text that marks what the model wrote. */
export function underlineAttribute(isWritten) {
  return isWritten ? ' text-decoration="underline"' : "";
}
