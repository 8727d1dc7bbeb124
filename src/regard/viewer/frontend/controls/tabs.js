// The views of a pane as tabs.

import { make } from "../drawing/elements.js";
import { capitalised } from "../drawing/labels.js";
import { VIEWS } from "../state/state.js";

/** A list of tabs that sets `view`; arrow keys move along it. */
export function createTabs(host, context, panelId) {
  const list = make("div", { class: "tabs", role: "tablist", "aria-label": "Views" });
  const tabs = new Map(VIEWS.map((view, index) => [view, tabOf(context, view, index, panelId)]));
  list.append(...tabs.values());
  list.addEventListener("keydown", (event) => moveFocus(event, [...tabs.values()].filter((tab) => !tab.hidden)));
  host.append(list);
  return {
    update(state) {
      for (const [view, tab] of tabs) {
        tab.hidden = view === "image" && !context.scene.image;
        tab.setAttribute("aria-selected", String(view === state.view));
        tab.tabIndex = view === state.view ? 0 : -1;
      }
    },
    destroy: () => list.remove(),
  };
}

function tabOf(context, view, index, panelId) {
  return make("button", {
    type: "button", class: "tab", role: "tab", "aria-controls": panelId, "data-testid": `view-tab-${view}`,
    title: `${capitalised(view)} (${index + 1})`, onclick: () => context.store.set({ view }),
  }, capitalised(view));
}

function moveFocus(event, tabs) {
  const change = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!change) return;
  event.preventDefault();
  event.stopPropagation();
  const next = tabs[(tabs.indexOf(event.target) + change + tabs.length) % tabs.length];
  next.focus();
  next.click();
}
