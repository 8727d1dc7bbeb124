// The live page: a form above each pane, models behind it.

import { loaderOf, openScene } from "../data/scene.js";
import { make } from "../drawing/elements.js";
import { inputOfFragment, patchOfFragment, readFragment } from "../state/fragment.js";
import { initialState } from "../state/state.js";
import { createComparison } from "./comparison.js";
import { Drafts } from "./drafts.js";
import { createLikely } from "./likely.js";
import { createLiveForm } from "./form.js";
import { Growth } from "./growth.js";
import { imageType, inputName, isRequestedInput, isSameInput } from "./input.js";
import { fetchJson, fetchLines, jsonRequest } from "./requests.js";

const GROWTH_PAUSE = 250; // milliseconds between two pictures of a map that grows
const DRAFT_PAUSE = 60; // between two drafts of a translation, so that each can be seen

/** Builds the live page in an element; `openPane(host, scene, options)` opens a scene, `page` has the address and a place for buttons. */
export async function startLive(root, openPane, page) {
  root.classList.add("live");
  const fragment = readFragment(); // before the first picture puts its own there
  try {
    const [{ models, limits }, { traces }] = await Promise.all([fetchJson("/api/models"), fetchJson("/api/traces")]);
    const catalogue = { models, limits, traces };
    const columns = createComparison(root, page.actionHost, (suffix, peers) => new LiveColumn(catalogue, suffix, openPane, peers, () => page.changed()));
    page.inputs = () => columns.all().map((column) => column.shownInput);
    page.restore = (nextFragment) => restoreInputs(columns, nextFragment);
    await columns.first.begin(inputOfFragment(fragment));
    await restoreInputs(columns, fragment, [1]);
  } catch (problem) {
    root.append(make("p", { class: "problem", role: "alert", "data-testid": "live-error" }, problem.message));
    document.documentElement.dataset.ready = "1";
  }
}

/** Looks at what an address asks for, where that is not shown yet. */
async function restoreInputs(columns, fragment, indices = [0, 1]) {
  for (const index of indices) {
    const input = inputOfFragment(fragment, index);
    if (!input) continue;
    if (!columns.all()[index]) {
      columns.toggle();
      columns.second.state = patchOfFragment(fragment, index);
    }
    const column = columns.all()[index];
    if (!isRequestedInput(input, column.shownInput)) await column.form.runInput(input);
  }
}

/** One input and what came of it. */
class LiveColumn {
  constructor(catalogue, suffix, openPane, peers, changed) {
    this.catalogue = catalogue;
    this.openPane = openPane;
    this.peers = peers;
    this.changed = changed;
    this.pane = null;
    this.hasClosed = false; // a pane of another kind
    this.shownInput = null; // the input of what is in the pane
    this.running = null;
    this.note = make("p", { class: "live-note", hidden: true, "data-testid": `live-note${suffix}` });
    this.likely = createLikely(suffix);
    this.host = make("div", { class: "live-pane" }, this.note, this.likely.element);
    this.hint = make("p", { class: "empty" }, suffix ? "Choose a model and press Look." : "Press Look to see what the model attends to.");
    this.host.append(this.hint);
    const actions = {
      look: (model, text) => this.look(model, text),
      image: (model, file) => this.image(model, file),
      generate: (model, text, count) => this.generate(model, text, count),
      translate: (model, text) => this.translate(model, text),
      open: (trace) => this.open(trace),
      cancel: () => this.running?.abort(),
      edited: () => this.followForm(),
    };
    this.form = createLiveForm(catalogue, suffix, actions);
    this.element = make("section", { class: "live-column", "aria-label": suffix ? "Second column" : "First column" }, this.form.element, this.host);
  }

  /** A first picture, where there is something to look at. */
  begin(input = null) {
    if (input) return this.form.runInput(input);
    const opened = this.form.choose();
    const model = this.form.model();
    return model?.kind === "text" && model.example ? this.form.run() : opened;
  }

  /** What is shown but is no longer what the form has is dimmed, and named. */
  followForm() {
    const isOld = this.pane !== null && (this.hasFailed || !isSameInput(this.form.current(), this.shownInput));
    this.host.toggleAttribute("data-old", isOld);
    this.note.hidden = !isOld;
    this.note.textContent = isOld ? `Shown: ${inputName(this.shownInput)}` : "";
  }

  look(model, text) {
    return this.work(`${model.title} is looking…`, async (signal) => {
      const manifest = await fetchJson("/api/look", { ...jsonRequest({ model: model.name, text }), signal });
      this.showManifest(manifest, { model: model.name, title: model.title, text });
    });
  }

  image(model, file) {
    return this.work(`${model.title} is looking…`, async (signal) => {
      const headers = { "Content-Type": await imageType(file) };
      const path = `/api/image?model=${encodeURIComponent(model.name)}`;
      const manifest = await fetchJson(path, { method: "POST", headers, body: file, signal });
      this.showManifest(manifest, { model: model.name, title: model.title, file });
    });
  }

  open(trace) {
    return this.work(`Opening ${trace.title}…`, async (signal) => {
      const manifest = await fetchJson(`/api/traces/${encodeURIComponent(trace.id)}`, { signal });
      this.showManifest(manifest, { trace: trace.title, title: trace.title });
    });
  }

  /** The map grows as the rows come; at the end the whole trace takes its place. */
  generate(model, text, count) {
    return this.work(`${model.title} is reading…`, async (signal) => {
      const input = { model: model.name, title: model.title, text, tokens: count };
      const growth = new Growth(inputName(input));
      let lastShown = 0;
      await this.stream("/api/generate", { model: model.name, text, tokens: count }, signal, input, async (event) => {
        growth.take(event);
        if (event.event !== "step") return;
        this.likely.show(growth.likely);
        this.form.showProgress(`${event.step} of ${count} tokens: ${tokenText(growth.chosen)}`);
        if (performance.now() - lastShown < GROWTH_PAUSE) return;
        this.show(growth.scene(), input);
        await nextFrame();
        lastShown = performance.now();
      });
      return `${count === growth.chosen.length ? "" : "It ended by itself. "}It went on: ${tokenText(growth.chosen)}`;
    });
  }

  /** The alignment grows word by word, and words may change; at the end the whole trace takes its place. */
  translate(model, text) {
    return this.work(`${model.title} is reading…`, async (signal) => {
      const input = { model: model.name, title: model.title, text };
      const drafts = new Drafts(inputName(input));
      const done = await this.stream("/api/translate", { model: model.name, text }, signal, input, async (event) => {
        if (event.event !== "draft") return;
        drafts.take(event);
        this.form.showProgress(event.text);
        this.show(drafts.scene(), input);
        await nextFrame();
        await new Promise((resolve) => setTimeout(resolve, DRAFT_PAUSE));
      });
      return `Translation: ${done.text}`;
    });
  }

  /** Takes the events of a model that writes, then shows the whole trace; returns the last event. */
  async stream(path, body, signal, input, take) {
    let done = null;
    await fetchLines(path, body, signal, async (event) => {
      if (event.event === "error") throw new Error(event.error.message);
      if (event.event === "done") done = event;
      await take(event);
    });
    if (done === null) throw new Error("The generation broke off; what is shown is what there was.");
    this.showManifest(await fetchJson(`/api/traces/${encodeURIComponent(done.id)}`, { signal }), input);
    return done;
  }

  /** Runs one thing at a time; a new one takes the place of the last. */
  async work(text, job) {
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    this.likely.show([]);
    this.form.setBusy(text);
    this.hasFailed = false;
    let message = "";
    try {
      message = (await job(running.signal)) ?? "";
    } catch (problem) {
      if (this.running === running && problem.name !== "AbortError") this.fail(problem);
      if (problem.name === "AbortError") message = "Cancelled.";
    }
    if (this.running !== running) return;
    this.running = null;
    this.form.setBusy(null);
    this.form.showProgress(message);
  }

  fail(problem) {
    this.hasFailed = true;
    this.form.showError(problem.message);
    this.followForm();
  }

  showManifest(manifest, input) {
    this.show(openScene({ ...manifest, title: inputName(input) }, loaderOf(manifest)), input);
  }

  /** Puts a scene into the pane; one of another kind gets a pane of its own, a picture with its own view. */
  show(scene, input) {
    this.shownInput = input;
    if (this.pane && !isSameKind(this.pane.scene(), scene)) this.close();
    if (this.pane) this.pane.show(scene);
    else this.openNew(scene);
    this.followForm();
    this.changed();
  }

  openNew(scene) {
    this.hint.remove();
    const view = scene.image ? { view: "image" } : {};
    const start = this.hasClosed ? startFields(patchOfFragment(scene.start), this.state) : {};
    this.pane = this.openPane(this.host, scene, { ...this.peers.options(this), state: { ...this.state, ...start, ...view } });
    this.peers.opened();
  }

  close() {
    if (!this.pane) return;
    const { view, unit, special, colour, limit } = this.pane.store.get();
    this.state = { view: view === "image" ? "map" : view, unit, special, colour, limit };
    this.hasClosed = true;
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

/** What a scene starts with, where nobody has chosen otherwise in the one before. */
function startFields(start, state) {
  const initial = initialState();
  return Object.fromEntries(Object.entries(start).filter(([key]) => state[key] === undefined || state[key] === initial[key]));
}

function isSameKind(before, after) {
  return Boolean(before.steps) === Boolean(after.steps) && Boolean(before.image) === Boolean(after.image);
}

/** Tokens as text; marks of byte-level and sentence pieces are the spaces they stand for. */
function tokenText(tokens) {
  return tokens.join("").replace(/[\u0120\u2581]/g, " ").replace(/\u010A/g, "↵").trim();
}

function nextFrame() {
  return new Promise((/** @type {(value?: void) => void} */ resolve) => {
    const wait = setTimeout(resolve, 100); // a page in the background draws no frames
    requestAnimationFrame(() => {
      clearTimeout(wait);
      resolve();
    });
  });
}
