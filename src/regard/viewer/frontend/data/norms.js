// Whether weights can be told times the lengths of the values that they are of.

const WHOLE_FORMS = ["dense", "codes", "factors"];

/** Whether weights can be multiplied by the lengths of the values that they are of: where those were captured. */
export function hasNorms(scene, state) {
  const site = scene.sites[scene.parts[state.part].sites[state.layer === "all" ? 0 : state.layer]];
  return Boolean(site?.norms) && state.mode === "head" && state.layer !== "all" && WHOLE_FORMS.includes(site.maps[state.head]?.kind);
}
