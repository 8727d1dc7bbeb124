// Mouse, touch and wheel on an element, told apart as panning, zooming, hovering and tapping.

const TAP_DISTANCE = 5;
const WHEEL_SPEED = 0.0022;

/** Listens on an element; positions given to handlers are relative to it. Returns a function that stops. */
export function watchGestures(target, handlers) {
  const pointers = new Map();
  let [travelled, spread] = [0, 0];
  const positionOf = (event) => {
    const box = target.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };
  const listeners = {
    wheel(event) {
      event.preventDefault();
      const { x, y } = positionOf(event);
      const lines = event.deltaMode === 1 ? 16 : 1;
      const delta = Math.max(-240, Math.min(240, event.deltaY * lines));
      handlers.zoom(Math.exp(-delta * WHEEL_SPEED * (event.ctrlKey ? 4 : 1)), x, y);
    },
    pointerdown(event) {
      if (event.button !== 0) return;
      capturePointer(target, event.pointerId);
      pointers.set(event.pointerId, positionOf(event));
      if (pointers.size === 1) travelled = 0;
      spread = distanceOf(pointers);
    },
    pointermove(event) {
      const position = positionOf(event);
      const previous = pointers.get(event.pointerId);
      if (!previous) {
        if (event.pointerType !== "touch") handlers.hover(position.x, position.y);
        return;
      }
      travelled += Math.hypot(position.x - previous.x, position.y - previous.y);
      if (travelled < TAP_DISTANCE) return;
      handlers.start();
      target.dataset.dragging = "";
      pointers.set(event.pointerId, position);
      handlers.pan((position.x - previous.x) / pointers.size, (position.y - previous.y) / pointers.size);
      if (pointers.size === 2) spread = pinch(pointers, spread, handlers);
    },
    pointerup(event) {
      const wasDown = pointers.delete(event.pointerId);
      delete target.dataset.dragging;
      const { x, y } = positionOf(event);
      if (wasDown && pointers.size === 0 && travelled < TAP_DISTANCE) handlers.tap(x, y);
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

function capturePointer(target, pointer) {
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
  const distance = distanceOf(pointers);
  if (spread > 0 && distance > 0) handlers.zoom(distance / spread, (first.x + second.x) / 2, (first.y + second.y) / 2);
  return distance;
}
