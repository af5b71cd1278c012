// A sound to look at and listen to: waveform and spectrogram by wavesurfer.js, with axes, zoom, a
// selection in time and frequency, and a playhead.
// Pointer: click to go there, drag to select; on the spectrogram a drag draws a box.
// Keys: arrows move, Shift+arrows select, Space plays, L loops, + and − zoom, Escape clears.

import Hover from "../vendor/wavesurfer/hover.esm.js";
import Regions from "../vendor/wavesurfer/regions.esm.js";
import Spectrogram from "../vendor/wavesurfer/spectrogram.esm.js";
import Timeline from "../vendor/wavesurfer/timeline.esm.js";
import WaveSurfer from "../vendor/wavesurfer/wavesurfer.esm.js";
import { colour, magma } from "./colours.js";
import { Looper } from "./looper.js";
import { claim, join, leave, volume } from "./playing.js";

const STEP = 0.1; // seconds an arrow key moves
const SHORTEST = 0.02; // seconds of a selection
const NARROWEST = 14; // pixels: a flatter drag means all frequencies
const WAVE_HEIGHT = 96;
const SPECTROGRAM_HEIGHT = 136;
const MOST_ZOOM = 16;
const TICKS = [100, 500, 1000, 2000, 5000, 10_000, 20_000];

const mel = (hertz) => 2595 * Math.log10(1 + hertz / 700);
const hertz = (value) => 700 * (10 ** (value / 2595) - 1);
const nonce = document.querySelector("link[nonce]")?.nonce;

export class Scope extends EventTarget {
  constructor(element, audio) {
    super();
    this.element = element;
    this.audio = audio;
    this.seconds = 0;
    this.loops = false;
    this.selection = null; // { start, end, low, high }: seconds and hertz, low and high may be null
    this.anchor = null;
    this.zoomed = 1;
    this.looper = null;
    this.gone = new AbortController();
    element.addEventListener("keydown", (event) => this.#key(event));
  }

  // Show a file; resolves when it can be played.
  async load(blob, { seconds, sampleRate, label }) {
    this.top = sampleRate / 2;
    this.regions = Regions.create();
    this.spectrogram = Spectrogram.create({
      height: SPECTROGRAM_HEIGHT, fftSamples: 1024, scale: "mel", frequencyMax: this.top,
      colorMap: magma(), autoGain: true, rangeDB: 70,
    });
    this.surfer = WaveSurfer.create({
      container: this.element.querySelector(".wave"), media: this.audio, sampleRate, cspNonce: nonce,
      height: WAVE_HEIGHT, normalize: true, barWidth: 2, barGap: 1, barRadius: 2, barMinHeight: 1,
      cursorWidth: 2, ...this.#colours(),
      plugins: [
        this.spectrogram,
        Timeline.create({ height: 18, ...this.#ticks(seconds), formatTimeCallback: (time) => `${+time.toFixed(2)} s` }),
        this.regions,
        Hover.create({ lineColor: colour("--cursor"), labelBackground: colour("--ink"), labelColor: colour("--card"), formatTimeCallback: (time) => `${time.toFixed(2)} s` }),
      ],
    });
    this.surfer.on("timeupdate", () => this.#moved());
    this.surfer.on("interaction", () => this.#sought());
    const { signal } = this.gone;
    for (const name of ["play", "pause"]) this.audio.addEventListener(name, () => this.#tellPlaying(), { signal });
    await this.surfer.loadBlob(blob);
    this.seconds = this.surfer.getDuration();
    this.element.setAttribute("aria-label", `${label}. Arrow keys move, with Shift they select, Space plays.`);
    this.element.setAttribute("aria-valuemax", this.seconds.toFixed(2));
    this.element.tabIndex = 0;
    this.#wireSelection();
    this.#drawAxis();
    this.#moved();
    const dark = matchMedia("(prefers-color-scheme: dark)");
    dark.addEventListener("change", () => this.surfer.setOptions(this.#colours()), { signal });
    join(this);
  }

  destroy() {
    if (!this.surfer) return;
    this.pause();
    this.gone.abort();
    leave(this);
    this.surfer.destroy();
    this.surfer = null;
    URL.revokeObjectURL(this.audio.src);
  }

  get isPlaying() {
    return this.looper !== null || !this.audio.paused;
  }

  get position() {
    return this.looper ? this.looper.position : this.audio.currentTime;
  }

  get span() {
    return this.selection ? [this.selection.start, this.selection.end] : [0, this.seconds];
  }

  // Play from the playhead, or the selection alone.
  async play() {
    claim(this);
    const [start, end] = this.span;
    if (this.position < start || this.position >= end - 0.05) this.seek(start);
    if (this.loops) {
      this.looper = new Looper(this.surfer.getDecodedData(), [start, end], this.audio.currentTime, volume());
      this.#tellPlaying();
      this.#followLoop();
    } else {
      // Before the first click on the page a browser may refuse to play: then the button is there.
      await this.audio.play().catch(() => {});
    }
  }

  pause() {
    if (this.looper) {
      const { position } = this.looper;
      this.looper.stop();
      this.looper = null;
      this.seek(position);
      this.#tellPlaying();
    }
    this.audio.pause();
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  setLoop(on) {
    this.loops = on;
    this.#restart();
  }

  seek(time) {
    this.surfer.setTime(Math.min(Math.max(time, 0), this.seconds));
    this.#moved();
  }

  zoom(factor) {
    this.zoomed = Math.min(Math.max(this.zoomed * factor, 1), MOST_ZOOM);
    const width = this.element.clientWidth;
    this.surfer.zoom(this.zoomed === 1 ? 0 : (width / this.seconds) * this.zoomed);
  }

  // Select a span of time and, if both are given, a band of frequencies; nothing if it is too short.
  select(start, end, low = null, high = null) {
    const [a, b] = [Math.max(0, Math.min(start, end)), Math.min(this.seconds, Math.max(start, end))];
    this.regions.clearRegions();
    this.selection = b - a > SHORTEST ? { start: a, end: b, low, high } : null;
    if (this.selection) {
      const region = this.regions.addRegion({ start: a, end: b, color: colour("--selection"), minLength: SHORTEST });
      this.#placeBand(region);
    }
    this.#selected();
  }

  applyVolume() {
    this.audio.volume = volume();
    if (this.looper) this.looper.volume = volume();
  }

  #colours() {
    return { waveColor: colour("--wave"), progressColor: colour("--played"), cursorColor: colour("--cursor") };
  }

  // Marks at steps a reader expects, however long the sound is.
  #ticks(seconds) {
    return seconds > 12
      ? { timeInterval: 1, primaryLabelInterval: 5, secondaryLabelInterval: 0 }
      : { timeInterval: 0.5, primaryLabelInterval: 1, secondaryLabelInterval: 0 };
  }

  #drawAxis() {
    const axis = this.element.querySelector(".hertz");
    axis.replaceChildren(...TICKS.filter((tick) => tick < this.top * 0.98).map((tick) => {
      const mark = document.createElement("li");
      mark.textContent = tick < 1000 ? `${tick} Hz` : `${tick / 1000} kHz`;
      mark.style.top = `${this.#share(tick) * SPECTROGRAM_HEIGHT}px`;
      return mark;
    }));
  }

  // Where a frequency lies on the spectrogram, 0 at its top and 1 at its bottom; and back.
  #share(frequency) {
    return 1 - mel(Math.min(frequency, this.top)) / mel(this.top);
  }

  #frequency(share) {
    return hertz((1 - Math.min(Math.max(share, 0), 1)) * mel(this.top));
  }

  #placeBand(region) {
    const { low, high } = this.selection;
    if (!region.element || (low === null && high === null)) return;
    const from = WAVE_HEIGHT + this.#share(high ?? this.top) * SPECTROGRAM_HEIGHT;
    const to = WAVE_HEIGHT + this.#share(low ?? 0) * SPECTROGRAM_HEIGHT;
    region.element.style.top = `${from}px`;
    region.element.style.height = `${to - from}px`;
  }

  // Wavesurfer selects spans of time; a drag that begins on the spectrogram also selects a band.
  #wireSelection() {
    const wrapper = this.surfer.getWrapper();
    let drag = null;
    this.regions.enableDragSelection({ color: colour("--selection"), minLength: SHORTEST });
    wrapper.addEventListener("pointerdown", (event) => {
      const y = event.clientY - wrapper.getBoundingClientRect().top - WAVE_HEIGHT;
      const inside = y >= 0 && y <= SPECTROGRAM_HEIGHT;
      drag = event.button === 0 && !this.#isRegion(event) ? { from: inside ? y : null, to: y } : null;
    });
    wrapper.ownerDocument.addEventListener("pointermove", (event) => {
      if (!drag?.region) return;
      drag.to = event.clientY - wrapper.getBoundingClientRect().top - WAVE_HEIGHT;
      const { from, to } = drag;
      const isBox = from !== null && Math.abs(to - from) >= NARROWEST;
      const [top, bottom] = isBox ? [Math.min(from, to), Math.max(from, to)] : [null, null];
      this.selection = {
        start: drag.region.start, end: drag.region.end,
        low: isBox ? this.#frequency(bottom / SPECTROGRAM_HEIGHT) : null,
        high: isBox ? this.#frequency(top / SPECTROGRAM_HEIGHT) : null,
      };
      Object.assign(drag.region.element.style, { top: "0", height: "100%" });
      this.#placeBand(drag.region);
    }, { capture: true, signal: this.gone.signal });
    this.regions.on("region-initialized", (region) => {
      if (!drag || drag.region) return;
      this.regions.clearRegions();
      drag.region = region;
    });
    this.regions.on("region-created", (region) => {
      if (!drag?.region) return;
      const { low = null, high = null } = this.selection ?? {};
      drag = null;
      this.select(region.start, region.end, low, high);
    });
    this.regions.on("region-updated", (region) => {
      this.selection = { ...this.selection, start: region.start, end: region.end };
      this.#selected();
    });
    wrapper.addEventListener("click", (event) => {
      drag = null;
      if (!this.#isRegion(event) && this.selection) this.select(0, 0);
    });
  }

  #isRegion(event) {
    return event.composedPath().some((node) => node.part?.contains?.("region"));
  }

  #selected() {
    this.#restart();
    this.dispatchEvent(new CustomEvent("select", { detail: this.selection }));
  }

  // A loop that is playing takes on the new selection or mode.
  #restart() {
    if (!this.isPlaying) return;
    this.pause();
    this.play();
  }

  #sought() {
    if (!this.looper) return;
    const at = this.audio.currentTime;
    this.looper.stop();
    this.looper = new Looper(this.surfer.getDecodedData(), this.span, at, volume());
  }

  #followLoop() {
    if (!this.looper) return;
    this.surfer.setTime(this.looper.position);
    this.#moved();
    requestAnimationFrame(() => this.#followLoop());
  }

  #moved() {
    const at = this.audio.currentTime;
    if (this.selection && !this.looper && !this.audio.paused && at >= this.selection.end) this.audio.pause();
    this.element.setAttribute("aria-valuenow", at.toFixed(2));
    this.element.setAttribute("aria-valuetext", `${at.toFixed(1)} of ${this.seconds.toFixed(1)} seconds`);
    this.dispatchEvent(new CustomEvent("move", { detail: at }));
  }

  #tellPlaying() {
    this.dispatchEvent(new CustomEvent("playing", { detail: this.isPlaying }));
  }

  #key(event) {
    if (!this.surfer || event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const by = { ArrowLeft: -STEP, ArrowRight: STEP, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined) {
      if (event.shiftKey) this.anchor ??= this.position;
      else this.anchor = null;
      this.seek(this.position + by);
      this.#sought();
      if (event.shiftKey) this.select(this.anchor, this.position, this.selection?.low, this.selection?.high);
    } else if (event.key === " ") {
      this.toggle();
    } else if (event.key === "l") {
      this.dispatchEvent(new Event("loop"));
    } else if (event.key === "+" || event.key === "=") {
      this.zoom(2);
    } else if (event.key === "-") {
      this.zoom(0.5);
    } else if (event.key === "Escape" && this.selection) {
      event.stopPropagation();
      this.select(0, 0);
    } else {
      return;
    }
    event.preventDefault();
  }
}
