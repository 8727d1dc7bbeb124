// Mouse, touch and wheel on an element, told apart as panning, zooming, hovering and tapping.

const TAP_DISTANCE = 5;
const WHEEL_SPEED = 0.0022;

/** Listens on an element; positions given to handlers are relative to it. Returns a function that stops. */
export function watchGestures(target, handlers) {
  const pointers = new Map();
  let [travelled, spread] = [0, 0];
  const place = (event) => {
    const box = target.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const listeners = {
    wheel(event) {
      event.preventDefault();
      const { x, y } = place(event);
      const lines = event.deltaMode === 1 ? 16 : 1;
      const delta = Math.max(-240, Math.min(240, event.deltaY * lines));
      handlers.zoom(Math.exp(-delta * WHEEL_SPEED * (event.ctrlKey ? 4 : 1)), x, y);
    },
    pointerdown(event) {
      if (event.button !== 0) return;
      capture(target, event.pointerId);
      pointers.set(event.pointerId, place(event));
      if (pointers.size === 1) travelled = 0;
      spread = distanceOf(pointers);
    },
    pointermove(event) {
      const now = place(event);
      const before = pointers.get(event.pointerId);
      if (!before) {
        if (event.pointerType !== "touch") handlers.hover(now.x, now.y);
        return;
      }
      travelled += Math.hypot(now.x - before.x, now.y - before.y);
      if (travelled < TAP_DISTANCE) return;
      handlers.start();
      target.dataset.dragging = "";
      pointers.set(event.pointerId, now);
      handlers.pan((now.x - before.x) / pointers.size, (now.y - before.y) / pointers.size);
      if (pointers.size === 2) spread = pinch(pointers, spread, handlers);
    },
    pointerup(event) {
      const known = pointers.delete(event.pointerId);
      delete target.dataset.dragging;
      const { x, y } = place(event);
      if (known && pointers.size === 0 && travelled < TAP_DISTANCE) handlers.tap(x, y);
    },
    pointercancel(event) {
      pointers.delete(event.pointerId);
      delete target.dataset.dragging;
    },
    pointerleave() {
      if (pointers.size === 0) handlers.leave();
    },
  };
  const entries = Object.entries(listeners);
  for (const [name, listener] of entries) target.addEventListener(name, listener, { passive: false });
  return () => entries.forEach(([name, listener]) => target.removeEventListener(name, listener));
}

function capture(target, pointer) {
  try {
    target.setPointerCapture(pointer);
  } catch {
    // The pointer was already gone; its moves then simply end at the edge.
  }
}

function distanceOf(pointers) {
  const [first, second] = [...pointers.values()];
  return second ? Math.hypot(first.x - second.x, first.y - second.y) : 0;
}

function pinch(pointers, spread, handlers) {
  const [first, second] = [...pointers.values()];
  const now = distanceOf(pointers);
  if (spread > 0 && now > 0) handlers.zoom(now / spread, (first.x + second.x) / 2, (first.y + second.y) / 2);
  return now;
}
