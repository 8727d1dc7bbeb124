// The live page: a form above each pane, models behind it.

import { createCompare } from "./compare.js";
import { loaderOf, openScene } from "./data.js";
import { make } from "./dom.js";
import { askJson, askLines, jsonRequest } from "./live_ask.js";
import { createLiveForm } from "./live_form.js";
import { Growth } from "./live_growth.js";

const PAUSE = 250; // milliseconds between two pictures of a map that grows

/** Builds the live page in an element; `openPane(host, scene, options)` opens a scene. */
export async function startLive(root, manifest, openPane) {
  root.classList.add("live");
  try {
    const [{ models, limits }, { traces }] = await Promise.all([askJson("/api/models"), askJson("/api/traces")]);
    const offered = { models, limits, traces: traces.filter((trace) => trace.pinned) };
    const columns = createCompare(root, (suffix, peers) => new LiveColumn(offered, suffix, openPane, peers));
    columns.first.begin();
  } catch (problem) {
    root.append(make("p", { class: "problem", role: "alert", "data-testid": "live-error" }, problem.message));
    document.documentElement.dataset.ready = "1";
  }
}

/** One input and what came of it. */
class LiveColumn {
  constructor(offered, suffix, openPane, peers) {
    this.offered = offered;
    this.openPane = openPane;
    this.peers = peers;
    this.pane = null;
    this.running = null;
    this.host = make("div", { class: "live-pane" });
    this.hint = make("p", { class: "empty" }, "Press Look to see what the model attends to.");
    this.host.append(this.hint);
    const actions = {
      look: (model, text) => this.look(model, text),
      image: (model, file) => this.image(model, file),
      generate: (model, text, count) => this.generate(model, text, count),
      open: (trace) => this.open(trace),
      cancel: () => this.running?.abort(),
    };
    this.form = createLiveForm(offered, suffix, actions);
    this.element = make("section", { class: "live-column", "aria-label": suffix ? "Second column" : "First column" }, this.form.element, this.host);
  }

  /** A first picture, where there is something to look at. */
  begin() {
    this.form.choose();
    const model = this.form.model();
    if (model?.kind === "text" && model.example) this.form.run();
  }

  look(model, text) {
    return this.work(`${model.title} is looking…`, async (signal) => {
      const found = await askJson("/api/look", { ...jsonRequest({ model: model.name, text }), signal });
      this.show(openScene(found, loaderOf(found)));
    });
  }

  image(model, file) {
    return this.work(`${model.title} is looking…`, async (signal) => {
      const path = `/api/image?model=${encodeURIComponent(model.name)}`;
      const found = await askJson(path, { method: "POST", headers: { "Content-Type": file.type }, body: file, signal });
      this.show(openScene(found, loaderOf(found)));
    });
  }

  open(trace) {
    return this.work(`Opening ${trace.title}…`, async (signal) => {
      const found = await askJson(`/api/traces/${encodeURIComponent(trace.id)}`, { signal });
      this.show(openScene(found, loaderOf(found)));
    });
  }

  /** The map grows as the rows come; at the end the whole trace takes its place. */
  generate(model, text, count) {
    return this.work(`${model.title} is reading…`, async (signal) => {
      const growth = new Growth(model.title);
      let shown = 0;
      let whole = null;
      await askLines("/api/generate", { model: model.name, text, tokens: count }, signal, async (event) => {
        if (event.event === "error") throw new Error(event.error.message);
        if (event.event === "done") whole = event.id;
        growth.take(event);
        if (event.event !== "step") return;
        this.form.showProgress(`${event.step} of ${count} tokens: ${said(growth.chosen)}`);
        if (performance.now() - shown < PAUSE) return;
        this.show(growth.scene());
        await nextFrame();
        shown = performance.now();
      });
      if (whole === null) throw new Error("The generation broke off; what is shown is what there was.");
      const found = await askJson(`/api/traces/${encodeURIComponent(whole)}`, { signal });
      this.show(openScene(found, loaderOf(found)));
      return `${count === growth.chosen.length ? "" : "It ended by itself. "}It went on: ${said(growth.chosen)}`;
    });
  }

  /** Runs one thing at a time; a new one takes the place of the last. */
  async work(text, job) {
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.form.setBusy(text);
    let last = "";
    try {
      last = (await job(running.signal)) ?? "";
    } catch (problem) {
      if (this.running === running && problem.name !== "AbortError") this.form.showError(problem.message);
      if (problem.name === "AbortError") last = "Cancelled.";
    }
    if (this.running !== running) return;
    this.running = null;
    this.form.setBusy(null);
    this.form.showProgress(last);
  }

  /** Puts a scene into the pane; one of another kind gets a pane of its own. */
  show(scene) {
    if (this.pane && !isAlike(this.pane.scene(), scene)) this.close();
    if (this.pane) {
      this.pane.show(scene);
      return;
    }
    this.hint.remove();
    this.pane = this.openPane(this.host, scene, { ...this.peers.options(this), state: this.state });
    this.peers.opened();
  }

  close() {
    if (!this.pane) return;
    const { view, unit, special, colour, limit } = this.pane.store.get();
    this.state = { view, unit, special, colour, limit };
    this.peers.closing();
    this.pane.destroy();
    this.pane = null;
  }

  destroy() {
    this.running?.abort();
    this.running = null;
    this.close();
    this.element.remove();
  }
}

function isAlike(before, after) {
  return Boolean(before.steps) === Boolean(after.steps) && Boolean(before.image) === Boolean(after.image);
}

/** Tokens as text; marks of byte-level and sentence pieces are the spaces they stand for. */
function said(tokens) {
  return tokens.join("").replace(/[Ġ▁]/g, " ").replace(/Ċ/g, "↵").trim();
}

function nextFrame() {
  return new Promise((resolve) => {
    const wait = setTimeout(resolve, 100); // a page in the background draws no frames
    requestAnimationFrame(() => {
      clearTimeout(wait);
      resolve();
    });
  });
}
