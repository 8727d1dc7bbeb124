// What the report shows, as one plain object, and as it stands in the address.

import { DIFFERENCE } from "./collection.js";

export const TYPE = "type";
export const ORDERS = { layers: "By layer and head", largest: "Largest first", smallest: "Smallest first" };
/** Which heads are shown strongly, besides those of the chosen types. */
export const ONLY = { "": "All heads", clear: "Clear differences", changed: "Changed types" };

/** The state a page starts with. */
function initialReport(numbers) {
  const by = numbers.hasTypes ? TYPE : numbers.quantities[0].key;
  return { by, run: numbers.isPair ? DIFFERENCE : 0, order: "layers", types: [], only: "", at: 0, example: "" };
}

/** The nearest state that a collection can show. */
export function settledReport(numbers, state) {
  const initial = initialReport(numbers);
  const next = { ...state };
  if (next.by !== TYPE && numbers.quantity(next.by) < 0) next.by = initial.by;
  if (next.by === TYPE && !numbers.hasTypes) next.by = initial.by;
  if (!ORDERS[next.order]) next.order = initial.order;
  if (ONLY[next.only] === undefined || !numbers.isPair) next.only = "";
  const runs = numbers.isPair ? [0, 1, DIFFERENCE] : [0];
  if (!runs.includes(next.run)) next.run = initial.run;
  next.types = next.types.filter((type) => numbers.typeNames.includes(type));
  next.at = Math.min(Math.max(0, next.at), numbers.heads.length - 1);
  return next;
}

/** Whether a head is one of those that were asked for. */
export function isWanted(numbers, state, head) {
  const types = state.run === DIFFERENCE ? [0, 1].map((run) => numbers.type(head, run)) : [numbers.type(head, state.run)];
  if (state.types.length > 0 && !types.some((type) => state.types.includes(type))) return false;
  if (state.only === "changed") return numbers.isChanged(head);
  if (state.only === "clear") return state.by === TYPE ? numbers.isChanged(head) : numbers.isClear(numbers.quantity(state.by), head) === true;
  return true;
}

/** The state as a fragment of the address, leaving out what any page starts with. */
export function reportFragment(numbers, state) {
  const initial = initialReport(numbers);
  const fields = new URLSearchParams();
  if (state.by !== initial.by) fields.set("by", state.by);
  if (state.run !== initial.run) fields.set("run", String(state.run));
  if (state.order !== initial.order) fields.set("order", state.order);
  if (state.only) fields.set("only", state.only);
  if (state.types.length > 0) fields.set("types", state.types.join(","));
  if (state.at !== 0) fields.set("at", `${numbers.heads[state.at].place}.${numbers.heads[state.at].head}`);
  if (state.example) fields.set("example", state.example);
  return fields.toString().replace(/%2C/g, ",").replace(/%2F/g, "/");
}

/** The state that a fragment asks for. */
export function reportOfFragment(numbers, fragment) {
  const fields = new URLSearchParams(fragment.replace(/^#/, ""));
  const state = initialReport(numbers);
  for (const name of ["by", "order", "only", "example"]) if (fields.has(name)) state[name] = fields.get(name);
  const run = fields.get("run");
  if (run !== null) state.run = run === DIFFERENCE ? run : Number(run);
  if (fields.get("types")) state.types = fields.get("types").split(",");
  const [place, head] = (fields.get("at") ?? "0.0").split(".").map(Number);
  state.at = Math.max(0, numbers.headAt(place, head));
  return settledReport(numbers, state);
}
