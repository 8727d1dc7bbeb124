// Reads the manifest of a report and opens it.

import { make } from "./drawing/elements.js";
import { ViewerPage } from "./page/page.js";
import { startReport } from "./report/report_page.js";

async function startPage() {
  const root = document.getElementById("root");
  try {
    const manifest = JSON.parse(document.getElementById("manifest").textContent);
    await startReport(new ViewerPage(root, manifest), manifest);
  } catch (problem) {
    root.append(make("p", { class: "problem", role: "alert", "data-testid": "status" }, `The page cannot be shown: ${problem.message}`));
    document.documentElement.dataset.ready = "1";
    throw problem;
  }
}

startPage();
