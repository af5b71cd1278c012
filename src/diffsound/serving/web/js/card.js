// One sound: its picture while it is made, then a player with downloads, sharing and edits.

import { fetchBlob } from "./api.js";
import { Scope } from "./scope.js";
import { fileName, link, recipe } from "./share.js";

let playing = null; // only one card plays at a time

export class Card extends EventTarget {
  constructor(title) {
    super();
    const template = document.getElementById("card-template");
    this.element = template.content.firstElementChild.cloneNode(true);
    this.title = title;
    this.sound = null;
    this.audio = this.#find("audio");
    this.playButton = this.#find(".play");
    this.progress = this.#find("progress");
    this.scope = new Scope(this.#find(".scope"));
    this.element.classList.add("making");
    this.element.setAttribute("aria-label", title);
    this.scope.image.alt = `Spectrogram of ${title}`;
    this.#wire();
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }

  preview(image) {
    if (!this.sound) this.scope.image.src = image;
  }

  advance(share) {
    this.progress.value = share;
  }

  // Show a finished sound; resolves when it can be played.
  async finish(sound, title = this.title) {
    this.sound = sound;
    this.title = title;
    this.#find(".seed").textContent = sound.prompt ? `seed ${sound.seed}` : "";
    this.#find(".seed").hidden = !sound.prompt;
    this.#find(".share").hidden = !sound.prompt || "edit" in sound.settings;
    this.#find(".edit-panel [name=prompt]").value = sound.prompt;
    this.#find(".edit-panel [name=end]").max = sound.seconds;
    this.#showCoverage(sound.coverage);
    this.#showLayers(sound.layers);
    try {
      const [audio, picture] = await Promise.all([fetchBlob(sound.url), fetchBlob(sound.spectrogram_url)]);
      this.blob = audio;
      this.audio.src = URL.createObjectURL(audio);
      this.scope.image.src = URL.createObjectURL(picture);
    } catch (error) {
      this.fail(error.message);
      return;
    }
    this.scope.show(sound, title);
    this.#showTime();
    this.progress.hidden = true;
    this.playButton.disabled = false;
    this.element.classList.remove("making");
    this.element.dataset.state = "ready";
  }

  fail(message) {
    const problem = this.#find(".problem");
    problem.textContent = message;
    problem.hidden = false;
    this.progress.hidden = true;
    this.element.classList.remove("making");
    this.element.dataset.state = "failed";
  }

  // Play from the playhead, or the selected region alone.
  async play() {
    if (playing && playing !== this) playing.audio.pause();
    playing = this;
    const [start, end] = this.scope.region || [0, this.sound.seconds];
    if (this.audio.currentTime < start || this.audio.currentTime >= end - 0.05) {
      this.audio.currentTime = start;
    }
    // Before the first click on the page a browser may refuse to make noise: then the button is there.
    await this.audio.play().catch(() => {});
  }

  toggle() {
    if (!this.sound || this.playButton.disabled) return;
    if (this.audio.paused) this.play();
    else this.audio.pause();
  }

  #wire() {
    this.playButton.addEventListener("click", () => this.toggle());
    this.audio.addEventListener("play", () => {
      this.#showPlaying(true);
      this.#follow();
    });
    this.audio.addEventListener("pause", () => this.#showPlaying(false));
    this.scope.addEventListener("toggle", () => this.toggle());
    this.scope.addEventListener("seek", (event) => {
      this.audio.currentTime = event.detail;
      this.#showTime();
    });
    this.scope.addEventListener("region", (event) => this.#showRegion(event.detail));
    this.#find(".seed").addEventListener("click", () => this.#tell("seed", this.sound.seed));
    for (const button of this.element.querySelectorAll("[data-format]")) {
      button.addEventListener("click", () => this.#download(button.dataset.format));
    }
    this.#find(".share").addEventListener("click", () => this.#share());
    this.#find(".copy").addEventListener("click", () => this.#copy());
    this.#find(".edit").addEventListener("click", () => this.#openEdit(this.#find(".edit-panel").hidden));
    this.#find(".edit-panel").addEventListener("submit", (event) => event.preventDefault());
    for (const name of ["start", "end"]) {
      this.#field(name).addEventListener("change", () => {
        const [start, end] = [this.#field("start").value, this.#field("end").value];
        if (start !== "" && end !== "") this.scope.select(Number(start), Number(end));
      });
    }
    for (const button of this.element.querySelectorAll("[data-edit]")) {
      button.addEventListener("click", () => this.#edit(button.dataset.edit));
    }
  }

  #field(name) {
    return this.#find(`.edit-panel [name=${name}]`);
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  // Move the playhead with the sound, and stop where the selected region ends.
  #follow() {
    this.scope.move(this.audio.currentTime);
    this.#showTime();
    if (this.scope.region && this.audio.currentTime >= this.scope.region[1]) this.audio.pause();
    if (!this.audio.paused && !this.audio.ended) requestAnimationFrame(() => this.#follow());
  }

  #showPlaying(on) {
    this.element.classList.toggle("playing", on);
    this.playButton.setAttribute("aria-label", on ? "Pause" : "Play");
  }

  #showTime() {
    this.#find(".time").textContent = `${this.scope.position.toFixed(1)} / ${this.sound.seconds.toFixed(1)} s`;
  }

  #showCoverage(coverage) {
    if (!coverage) return;
    const nearest = [].concat(coverage.nearest ?? []).slice(0, 3).map((one) => one.caption ?? one);
    const note = coverage.note ?? (nearest.length ? `Nearest the model knows: ${nearest.join(" · ")}` : "");
    const line = this.#find(".coverage");
    line.textContent = note;
    line.hidden = !note;
  }

  // What a scene is mixed of: each layer with its time, and a file to take away.
  #showLayers(layers = []) {
    const list = this.#find(".layers");
    list.hidden = !layers.length;
    list.replaceChildren(...layers.map((layer, index) => {
      const item = document.createElement("li");
      const place = layer.distant ? ", far away" : layer.background ? ", behind" : "";
      item.textContent = `${layer.start.toFixed(1)}–${layer.end.toFixed(1)} s  ${layer.text}${place} `;
      const take = document.createElement("button");
      take.type = "button";
      take.textContent = "WAV";
      take.setAttribute("aria-label", `Download this layer: ${layer.text}`);
      take.addEventListener("click", () => this.#saveLayer(layer.url, index + 1));
      item.append(take);
      return item;
    }));
  }

  async #saveLayer(url, number) {
    try {
      save(await fetchBlob(url), fileName(this.sound, "wav").replace(/\.wav$/, `-layer${number}.wav`));
    } catch (error) {
      this.fail(error.message);
    }
  }

  #showRegion(region) {
    const button = this.#find("[data-edit=inpaint]");
    button.disabled = !region;
    this.#field("start").value = region ? region[0].toFixed(2) : "";
    this.#field("end").value = region ? region[1].toFixed(2) : "";
    if (region) this.#openEdit(true);
  }

  #openEdit(open) {
    this.#find(".edit-panel").hidden = !open;
    this.#find(".edit").setAttribute("aria-expanded", String(open));
  }

  #edit(operation) {
    const names = { inpaint: ["start", "end", "low", "high"], extend: ["seconds"], vary: ["strength"] };
    const fields = { prompt: this.#field("prompt").value };
    for (const name of names[operation]) {
      if (this.#field(name).value !== "") fields[name] = this.#field(name).value;
    }
    if (!fields.prompt.trim()) {
      this.#field("prompt").focus();
      this.#field("prompt").reportValidity();
      return;
    }
    this.#tell("edit", { operation, fields });
  }

  async #download(format) {
    this.#find(".download").open = false;
    const path = this.sound.url + `?format=${format}`;
    try {
      save(format === "wav" ? this.blob : await fetchBlob(path), fileName(this.sound, format));
    } catch (error) {
      this.fail(error.message);
    }
  }

  #share() {
    const panel = this.#find(".share-panel");
    panel.hidden = !panel.hidden;
    this.#find(".link").value = link(recipe(this.sound));
    this.#find(".json").value = JSON.stringify(recipe(this.sound));
    if (!panel.hidden) this.#find(".link").select();
  }

  async #copy() {
    const field = this.#find(".link");
    field.select();
    // Off this machine and without TLS there is no clipboard; the link is selected then.
    await navigator.clipboard?.writeText(field.value).catch(() => {});
    this.#find(".copy").textContent = "Copied";
  }
}

function save(blob, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
}
