// All layers × heads at once, with the name of each head's type.

import { layerName } from "../../data/scene.js";
import { make } from "../../drawing/elements.js";
import { svgDocument, svgEscape } from "../../export/svg.js";
import { createHeadsGrid } from "./heads_grid.js";

const PICTURE = { side: 96, gap: 16, left: 84, top: 16, caption: 34 };

/** The map view. */
export function createMapView(host, context) {
  const box = make("div", { class: "map-view" });
  const scroller = make("div", { class: "scroller", "data-scrolls": true }, box);
  host.append(scroller);
  const open = (layer, head) => {
    context.store.set({ layer, head, mode: "head", view: "matrix" });
    context.announce(`${layerName(context.scene, context.store.get().part, layer)}, head ${head}, opened as a matrix`);
  };
  const heads = createHeadsGrid(box, context, "map", open);
  const moveToGrid = () => heads.focus();
  return {
    update: (_frame, state) => heads.update(state),
    picture: () => ({ svg: mapPicture(context, heads) }),
    resize() {},
    focus: moveToGrid,
    keys: { ArrowLeft: moveToGrid, ArrowRight: moveToGrid, ArrowUp: moveToGrid, ArrowDown: moveToGrid },
    destroy() {
      heads.destroy();
      scroller.remove();
    },
  };
}

function mapPicture(context, heads) {
  const { side, gap, left, top, caption } = PICTURE;
  const colours = context.palette();
  const { part } = context.store.get();
  const cells = [...heads.cells.values()];
  const columns = Math.max(...cells.map((cell) => cell.head)) + 1;
  const rows = Math.max(...cells.map((cell) => cell.layer)) + 1;
  const parts = [];
  for (let layer = 0; layer < rows; layer += 1) {
    const y = top + layer * (side + caption + gap) + side / 2;
    parts.push(`<text x="16" y="${y}" font-size="13" fill="${colours.ink}">${svgEscape(layerName(context.scene, part, layer))}</text>`);
  }
  for (const cell of cells) parts.push(...cellPicture(cell, colours));
  return svgDocument(left + columns * (side + gap), top + rows * (side + caption + gap), colours.surface, parts);
}

function cellPicture(cell, colours) {
  const { side, gap, left, top, caption } = PICTURE;
  const x = left + cell.head * (side + gap);
  const y = top + cell.layer * (side + caption + gap);
  const source = cell.data ? cell.canvas.toDataURL("image/png") : null;
  const place = `x="${x}" y="${y}" width="${side}" height="${side}"`;
  const rendering = cell.canvas.classList.contains("pixelated") ? "pixelated" : "auto";
  const image = source
    ? `<image ${place} preserveAspectRatio="none" image-rendering="${rendering}" href="${source}"/>`
    : `<rect ${place} fill="${colours.line}"/>`;
  const type = svgEscape(cell.site.types?.[cell.head] ?? "");
  return [
    image,
    `<text x="${x}" y="${y + side + 14}" font-size="11" fill="${colours.ink}">${cell.head}</text>`,
    `<text x="${x + side}" y="${y + side + 14}" font-size="11" text-anchor="end" fill="${colours.muted}">${type}</text>`,
  ];
}
