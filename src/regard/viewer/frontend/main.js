// Reads the manifest and opens the page.

import { loaderOf, openScene } from "./data/scene.js";
import { make } from "./drawing/elements.js";
import { startLive } from "./live/live_page.js";
import { ViewerPage } from "./page/page.js";

function startPage() {
  const root = document.getElementById("root");
  try {
    const manifest = JSON.parse(document.getElementById("manifest").textContent);
    const page = new ViewerPage(root, manifest);
    const open = (scene) => openScene(scene, loaderOf(scene));
    if (manifest.live) startLive(page.main, (host, scene, options) => page.openPane(host, scene, options), page);
    else page.openScenes(manifest.scenes.map(open));
    if (!manifest.live && manifest.scenes.length === 0) page.main.append(make("p", { class: "empty" }, "This page holds no attention."));
  } catch (problem) {
    root.append(make("p", { class: "problem", role: "alert", "data-testid": "status" }, `The page cannot be shown: ${problem.message}`));
    document.documentElement.dataset.ready = "1";
    throw problem;
  }
}

startPage();
