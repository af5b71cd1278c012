// A sound's picture: spectrogram above, waveform below, a region to select, a playhead.
// Pointer: click to go there, drag to select. Keys: arrows move, Shift+arrows select,
// Space plays, Escape clears.

const STEP = 0.1; // seconds an arrow key moves
const DRAG = 4; // pixels before a click becomes a selection

export class Scope extends EventTarget {
  constructor(element) {
    super();
    this.element = element;
    this.image = element.querySelector(".spectrogram");
    this.canvas = element.querySelector(".wave");
    this.regionBox = element.querySelector(".region");
    this.playhead = element.querySelector(".playhead");
    this.seconds = 0;
    this.position = 0;
    this.anchor = null;
    this.region = null;
    this.waveform = [];
    element.addEventListener("pointerdown", (event) => this.#press(event));
    element.addEventListener("keydown", (event) => this.#key(event));
    new ResizeObserver(() => this.draw()).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(sound, label) {
    this.seconds = sound.seconds;
    this.waveform = sound.waveform;
    this.element.setAttribute(
      "aria-label",
      `${label}, ${sound.seconds.toFixed(1)} seconds. Arrow keys move, with Shift they select a region, Space plays.`,
    );
    this.move(0);
    this.draw();
  }

  move(seconds) {
    this.position = Math.min(Math.max(seconds, 0), this.seconds);
    this.playhead.hidden = this.seconds === 0;
    this.playhead.style.left = `${(100 * this.position) / (this.seconds || 1)}%`;
    this.draw();
  }

  select(start, end) {
    const a = Math.max(0, Math.min(start, end));
    const b = Math.min(this.seconds, Math.max(start, end));
    this.region = b - a > 0.02 ? [a, b] : null;
    this.regionBox.hidden = !this.region;
    if (this.region) {
      this.regionBox.style.left = `${(100 * a) / this.seconds}%`;
      this.regionBox.style.width = `${(100 * (b - a)) / this.seconds}%`;
    }
    this.dispatchEvent(new CustomEvent("region", { detail: this.region }));
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width || !this.waveform.length) return;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    const points = this.waveform.length;
    const played = (this.position / this.seconds) * points;
    // Quiet sounds fill the picture too; how loud they are is for the ear.
    const peak = Math.max(0.05, ...this.waveform.map(([low, high]) => Math.max(-low, high)));
    for (let i = 0; i < points; i += 1) {
      const [low, high] = this.waveform[i];
      const top = height / 2 - (high / peak) * (height / 2 - 3);
      const bottom = height / 2 - (low / peak) * (height / 2 - 3);
      context.fillStyle = i < played ? "#fec28c" : "#b5367a";
      context.fillRect((i * width) / points, top, Math.max(1, width / points - 0.4), Math.max(1, bottom - top));
    }
  }

  #time(event) {
    const box = this.element.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * this.seconds;
  }

  #press(event) {
    if (!this.seconds || event.button !== 0) return;
    const from = this.#time(event);
    const startX = event.clientX;
    let dragged = false;
    const abort = new AbortController();
    const { signal } = abort;
    this.element.setPointerCapture(event.pointerId);
    this.element.addEventListener("pointermove", (move) => {
      dragged ||= Math.abs(move.clientX - startX) > DRAG;
      if (dragged) this.select(from, this.#time(move));
    }, { signal });
    this.element.addEventListener("pointerup", () => {
      abort.abort();
      if (dragged) return;
      this.select(0, 0);
      this.#seek(from);
    }, { signal });
    // The browser took the gesture over, to scroll.
    this.element.addEventListener("pointercancel", () => abort.abort(), { signal });
  }

  #seek(seconds) {
    this.move(seconds);
    this.dispatchEvent(new CustomEvent("seek", { detail: this.position }));
  }

  #key(event) {
    if (!this.seconds || event.target !== this.element) return;
    const by = { ArrowLeft: -STEP, ArrowRight: STEP, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined) {
      if (event.shiftKey) this.anchor ??= this.position;
      else this.anchor = null;
      this.#seek(this.position + by);
      if (event.shiftKey) this.select(this.anchor, this.position);
    } else if (event.key === " ") {
      this.dispatchEvent(new Event("toggle"));
    } else if (event.key === "Escape" && this.region) {
      event.stopPropagation();
      this.select(0, 0);
    } else {
      return;
    }
    event.preventDefault();
  }
}
