// A store of one state, and two of them that follow each other.

/** A store of one state: `set` merges a patch, settles it and tells subscribers which keys changed. */
export function createStore(initial, settled) {
  let state = settled({ ...initial }, {});
  const listeners = new Set();
  return {
    get: () => state,
    set(patch) {
      const next = settled({ ...state, ...patch }, patch);
      const changed = Object.keys(next).filter((key) => !sameValue(next[key], state[key]));
      if (changed.length === 0) return;
      state = next;
      for (const listener of [...listeners]) listener(state, changed);
    },
    subscribe(listener) {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
  };
}

/** What is chosen in one of two stores, the other takes as far as it has it; returns a function that parts them. */
export function linkStores(first, second, keys) {
  let isFollowing = false; // what the other one made of it does not come back
  const follow = (target) => (state, changed) => {
    const shared = changed.filter((key) => keys.includes(key));
    if (isFollowing || shared.length === 0) return;
    isFollowing = true;
    try {
      target.set(Object.fromEntries(shared.map((key) => [key, state[key]])));
    } finally {
      isFollowing = false;
    }
  };
  const stops = [first.subscribe(follow(second)), second.subscribe(follow(first))];
  return () => stops.forEach((stop) => stop());
}

export function sameValue(left, right) {
  if (left === right) return true;
  return typeof left === "object" && typeof right === "object" && JSON.stringify(left) === JSON.stringify(right);
}
