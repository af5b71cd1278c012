// Sounds to hear before anything is generated: made with the bundled model, shipped with the page.

import WaveSurfer from "../vendor/wavesurfer/wavesurfer.esm.js";
import { colour } from "./colours.js";
import { byId, clone } from "./dom.js";
import { claim, join, volume } from "./playing.js";

const FOLDER = "/static/examples/";
const nonce = document.querySelector("link[nonce]")?.nonce;

class Tile {
  constructor(example, onUse) {
    this.element = clone("tile-template");
    this.audio = new Audio();
    this.audio.preload = "none";
    this.surfer = WaveSurfer.create({
      container: this.element.querySelector(".tile-wave"), media: this.audio, cspNonce: nonce,
      height: 56, barWidth: 2, barGap: 2, barRadius: 2, barMinHeight: 1, cursorWidth: 0,
      waveColor: colour("--wave"), progressColor: colour("--played"),
    });
    this.surfer.load(FOLDER + example.file, [example.peaks], example.duration);
    const play = this.element.querySelector(".play");
    const label = (on) => play.setAttribute("aria-label", `${on ? "Pause" : "Play"} the example: ${example.prompt}`);
    label(false);
    play.addEventListener("click", () => (this.audio.paused ? this.play() : this.pause()));
    for (const name of ["play", "pause"]) {
      this.audio.addEventListener(name, () => {
        this.element.classList.toggle("playing", !this.audio.paused);
        label(!this.audio.paused);
      });
    }
    this.surfer.on("interaction", () => this.play());
    const use = this.element.querySelector(".use");
    use.firstElementChild.textContent = example.prompt;
    use.setAttribute("aria-label", `Use this prompt: ${example.prompt}`);
    use.addEventListener("click", () => onUse(example));
    join(this);
  }

  play() {
    claim(this);
    return this.audio.play().catch(() => {});
  }

  pause() {
    this.audio.pause();
  }

  applyVolume() {
    this.audio.volume = volume();
  }
}

// The bundle's examples as tiles if it is the model they were made with, else its prompts alone.
export async function showExamples(bundle, onUse) {
  const answer = await fetch(`${FOLDER}examples.json`).catch(() => null);
  const { bundle: maker, examples = [] } = answer?.ok ? await answer.json() : {};
  if (maker === bundle.name) {
    byId("examples").hidden = false;
    byId("examples").querySelector(".tiles").replaceChildren(
      ...examples.map((example) => new Tile(example, onUse).element),
    );
    return;
  }
  byId("ideas").hidden = false;
  byId("ideas").replaceChildren(...bundle.examples.map((text) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => onUse({ prompt: text }));
    return button;
  }));
}
