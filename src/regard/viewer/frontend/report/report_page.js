// The report of one corpus, or of two: the grid of heads beside the head that is chosen.

import { createIconButton } from "../controls/fields.js";
import { createLegend } from "../controls/legend.js";
import { inlineLoader } from "../data/chunks.js";
import { openScene } from "../data/scene.js";
import { palette } from "../drawing/colour.js";
import { icon, make } from "../drawing/elements.js";
import { hasAddress, readFragment } from "../state/fragment.js";
import { createStore } from "../state/store.js";
import { openCollection } from "./collection.js";
import { createHeadPanel } from "./head_panel.js";
import { createHeadsGrid, scaleOf } from "./heads_grid.js";
import { counted } from "./numbers.js";
import { createRanking } from "./ranking.js";
import { createReportHelp } from "./report_help.js";
import { TYPE, reportFragment, reportOfFragment, settledReport } from "./state.js";
import { createToolbar } from "./toolbar.js";

const NARROW = "(max-width: 900px)";

/** Builds the report inside a page. */
export async function startReport(page, manifest) {
  const fragment = readFragment(); // before the first picture puts its own there
  const report = new ReportPage(page, await openCollection(manifest), fragment);
  await report.begin();
}

class ReportPage {
  constructor(page, numbers, fragment) {
    this.page = page;
    this.numbers = numbers;
    this.pane = null;
    this.opened = "";
    this.store = createStore(reportOfFragment(numbers, fragment), (state) => settledReport(numbers, state));
    this.build();
    page.prefix = () => reportFragment(numbers, this.store.get());
    page.restore = (next) => this.restore(next);
    page.themed = () => this.paint();
    const help = createReportHelp(page.main, numbers);
    const ofViewer = page.openHelp.bind(page);
    page.openHelp = () => (this.pane ? ofViewer() : help.open());
    document.addEventListener("keydown", (event) => this.key(event));
    this.store.subscribe((state, changed) => this.follow(state, changed));
  }

  build() {
    const { numbers, page, store } = this;
    this.back = make("button", { type: "button", class: "text-button report-back", "data-testid": "back-to-heads", hidden: true, onclick: () => this.close() }, icon("back"), "All heads");
    this.link = createIconButton("copy-report-link", "link", "Copy a link to this view", () => page.copyLink());
    this.link.hidden = !hasAddress();
    page.actionHost.prepend(this.back, this.link);
    this.bar = make("div", { class: "report-top" }, ...factLines(numbers));
    this.toolbar = createToolbar(this.bar, numbers, store);
    this.legend = createLegend(this.toolbar.legend);
    this.gridHost = make("section", { class: "report-grid", "aria-label": "Heads" });
    this.panelHost = make("section", { class: "report-panel", "aria-label": "The chosen head", tabindex: "0" });
    this.element = make("div", { class: "report" }, this.bar, make("div", { class: "report-body" }, this.gridHost, this.panelHost));
    page.main.append(this.element);
    this.grid = createHeadsGrid(this.gridHost, numbers, store, page.tooltip);
    this.ranking = createRanking(this.gridHost, numbers, store);
    this.panel = createHeadPanel(this.panelHost, numbers, { open: (run, head, number, query) => this.openExample(run, head, number, query), copy: (command) => this.copy(command) });
  }

  async begin() {
    this.grid.resize();
    this.paint();
    this.grid.choose(this.store.get().at);
    await this.panel.update(this.store.get(), this.colours());
    if (this.store.get().example) await this.openNamed(this.store.get().example);
    this.page.drawn();
  }

  colours() {
    return palette(this.page.theme);
  }

  /** The grid, the table and all that names what is shown. */
  paint() {
    const state = this.store.get();
    const scale = scaleOf(this.numbers, state);
    const isRanked = state.order !== "layers";
    this.gridHost.toggleAttribute("data-ranked", isRanked);
    this.ranking.element.hidden = !isRanked;
    if (isRanked) this.ranking.update(state, scale);
    else this.grid.update(state, scale, this.colours());
    this.toolbar.update(state);
    this.toolbar.legend.hidden = !scale;
    if (scale) this.legend.show(scale.peak, scale.signed, "linear", this.colours());
    this.toolbar.meaning(meaningOf(this.numbers, state));
    this.panel.update(state, this.colours());
  }

  follow(state, changed) {
    if (changed.some((key) => key !== "at" && key !== "example")) this.paint();
    else if (changed.includes("at")) this.panel.update(state, this.colours());
    if (changed.includes("at")) {
      this.grid.choose(state.at);
      this.ranking.choose(state.at);
      this.panelHost.scrollTop = 0;
      const { layer, head } = this.numbers.heads[state.at];
      this.page.announce(`layer ${layer}, head ${head}`);
      const isPointed = !this.gridHost.contains(document.activeElement) || document.activeElement?.matches(".head-link");
      if (isPointed && globalThis.matchMedia(NARROW).matches) this.panelHost.scrollIntoView({ block: "start" });
    }
    this.page.changed();
  }

  key(event) {
    if (this.pane || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest?.("input, textarea, select") || document.querySelector("dialog[open]")) return;
    if (event.key === "t") this.page.nextTheme();
    else if (event.key === "?") this.page.openHelp();
    else return;
    event.preventDefault();
  }

  restore(fragment) {
    const next = reportOfFragment(this.numbers, fragment);
    const { example } = this.store.get();
    this.store.set(next);
    if (next.example === example) return;
    if (next.example) this.openNamed(next.example);
    else if (this.pane) this.close();
  }

  // -- examples

  /** The example of a link, as "run/head/document". */
  openNamed(example) {
    const [run, head, number] = example.split("/").map(Number);
    const known = this.numbers.runs[run]?.scenes[`${this.numbers.heads[head]?.site}/${number}`];
    return known ? this.openExample(run, head, number, null) : this.store.set({ example: "" });
  }

  /** Shows the attention over a text in the viewer; the report waits behind it. */
  async openExample(run, head, number, query) {
    const { site, head: own } = this.numbers.heads[head];
    const manifest = await this.numbers.readJson(this.numbers.runs[run].scenes[`${site}/${number}`]);
    this.pane?.destroy();
    this.element.hidden = true;
    this.back.hidden = false;
    this.link.hidden = true; // the viewer has one of its own
    const scene = openScene(manifest, inlineLoader(manifest.first_chunk));
    const state = query === null ? {} : { view: "lines", layer: 0, head: own, selected: [query], pinned: true };
    this.page.tooltip.hide();
    this.pane = this.page.openPane(this.page.main, scene, { tabs: this.page.tabHost, actionHost: this.page.actionHost, state });
    this.store.set({ at: head, example: `${run}/${head}/${number}` });
    this.back.focus();
  }

  close() {
    this.pane?.destroy();
    this.pane = null;
    this.element.hidden = false;
    this.back.hidden = true;
    this.link.hidden = !hasAddress();
    this.store.set({ example: "" });
    this.grid.resize();
    this.grid.focus();
  }

  async copy(command) {
    const isCopied = await this.page.copyText(command);
    this.page.say(isCopied ? "The command was copied" : `Copying is not allowed here. The command is ${command}`);
  }
}

/** What was collected, in a line for each run. */
function factLines(numbers) {
  return numbers.runs.map((run) => {
    const facts = [counted(run.documents, "text"), counted(run.tokens, "token"), counted(numbers.layers.length, "layer"), counted(numbers.heads.length, "head")];
    if (run.model) facts.unshift(run.model);
    if (run.cut) facts.push(`${counted(run.cut, "text")} cut`);
    if (run.failures) facts.push(`${counted(run.failures, "text")} left out`);
    if (run.left_out.length) facts.push(`${counted(run.left_out.length, "attention")} left out`);
    if (run.not_shown.length) facts.push(`not shown here: ${run.not_shown.join(", ")} (regard.corpus.load reads them)`);
    if (!run.complete) facts.push("not finished: these are the shards so far");
    const name = numbers.isPair ? [make("b", {}, `${run.name}: `)] : [];
    return make("p", { class: "report-facts", "data-testid": `facts-${run.place}`, title: run.left_out.join("\n") || null }, ...name, facts.join(" · "));
  });
}

function meaningOf(numbers, { by, run }) {
  const difference = numbers.isPair && run === "difference" ? ` Shown is ${numbers.runs[1].name} less ${numbers.runs[0].name}.` : "";
  if (by === TYPE) {
    const changed = numbers.heads.filter((_, head) => numbers.isChanged(head)).length;
    return difference ? `What most of the attention of a head does; ${changed} of ${numbers.heads.length} heads have another type in ${numbers.runs[1].name}.` : "What most of the attention of a head does, over all texts.";
  }
  const quantity = numbers.quantity(by);
  const words = numbers.quantities[quantity].meaning;
  const clear = difference ? numbers.heads.filter((_, head) => numbers.isClear(quantity, head)).length : 0;
  return `${words.charAt(0).toUpperCase()}${words.slice(1)}.${difference}${difference ? ` ${clear} of ${numbers.heads.length} differences are clear.` : ""}`;
}
