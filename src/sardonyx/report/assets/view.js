// The part of a drawn graph that a canvas shows: where it is, how large, and how the reader moves it.

const SMALLEST = 0.01;
const LARGEST = 3;

class View {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.pointers = new Map();
    this.moved = 0;
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.lift(event));
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  get width() { return this.canvas.clientWidth; }
  get height() { return this.canvas.clientHeight; }

  toGraph(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left - this.x) / this.scale, (event.clientY - box.top - this.y) / this.scale];
  }

  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(LARGEST, Math.max(SMALLEST, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
    this.changed();
  }

  // Shows all of a box, or at a readable size its top.
  fit(box, isWhole) {
    const width = Math.max(1, box.right - box.left);
    const height = Math.max(1, box.bottom - box.top);
    const across = (this.width - 40) / width;
    const whole = Math.min(across, (this.height - 40) / height, 1.25);
    this.scale = Math.max(SMALLEST, isWhole ? whole : Math.max(whole, Math.min(across, 1), 0.8));
    this.x = this.width / 2 - ((box.left + box.right) / 2) * this.scale;
    this.y = height * this.scale > this.height - 40 ? 20 - box.top * this.scale
      : this.height / 2 - ((box.top + box.bottom) / 2) * this.scale;
    this.changed();
  }

  showsHeight(y) {
    const at = y * this.scale + this.y;
    return at >= 0 && at <= this.height;
  }

  // Moves sideways so that most of these places are shown.
  centerAcross(places) {
    if (!places.length) return;
    const sorted = [...places].sort((a, b) => a - b);
    const [first, last] = [sorted[0], sorted[sorted.length - 1]];
    const doFit = this.scale * (last - first) < this.width - 200;
    this.x = this.width / 2 - (doFit ? (first + last) / 2 : sorted[Math.floor(sorted.length / 2)]) * this.scale;
    this.changed();
  }

  center(x, y) {
    this.scale = Math.max(this.scale, 0.75);
    this.x = this.width / 2 - x * this.scale;
    this.y = this.height / 2 - y * this.scale;
    this.changed();
  }

  press(event) {
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.clientX, event.clientY]);
    if (this.pointers.size === 1) this.moved = 0;
  }

  move(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = [event.clientX, event.clientY];
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (others.length) {
      const box = this.canvas.getBoundingClientRect();
      const [other] = others;
      const factor = Math.hypot(now[0] - other[0], now[1] - other[1])
        / Math.max(1, Math.hypot(before[0] - other[0], before[1] - other[1]));
      this.zoom(factor, (now[0] + other[0]) / 2 - box.left, (now[1] + other[1]) / 2 - box.top);
    } else {
      this.x += now[0] - before[0];
      this.y += now[1] - before[1];
      this.changed();
    }
    this.pointers.set(event.pointerId, now);
  }

  lift(event) {
    this.pointers.delete(event.pointerId);
  }

  // The wheel zooms once the reader has turned to the graph; before, it scrolls the page past it.
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.002)), event.clientX - box.left, event.clientY - box.top);
  }
}
