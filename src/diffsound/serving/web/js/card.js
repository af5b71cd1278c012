// One sound: a picture while it is made, then a player with marks, downloads and edits.

import { fetchBlob } from "./api.js";
import { clone, fileName, isPressed, press, save, seconds } from "./dom.js";
import { EditPanel } from "./edit.js";
import { fileOf, fileSettings, fileWords } from "./files.js";
import { Scope } from "./scope.js";
import { coverageWords, fitWords } from "./words.js";

export class Card extends EventTarget {
  // name: what the sound is called; short: what its heading says below the heading of its group.
  constructor(name, short = name) {
    super();
    [this.given, this.short] = [name, short];
    this.element = clone("card-template");
    this.entry = null; // what the library keeps of it, once it is finished
    this.progress = this.#find("progress");
    this.playButton = this.#find(".play");
    this.scope = new Scope(this.#find(".scope"), this.#find("audio"));
    this.panel = new EditPanel(this.#find(".edit-panel"), this.#find(".edit"), this.scope);
    this.element.dataset.state = "making";
    this.#name(name);
    this.#wire();
  }

  #find(selector) {
    return this.element.querySelector(selector);
  }

  preview(image) {
    if (this.entry) return;
    const picture = this.#find(".preview");
    picture.src = image;
    picture.hidden = false;
  }

  advance(share) {
    this.progress.value = share;
    this.#find(".time").textContent = share < 1 ? `making · ${Math.round(100 * share)} %` : "almost there";
  }

  // Show a finished sound; resolves when it can be played.
  async finish(entry) {
    this.entry = entry;
    const { sound } = entry;
    this.#name(entry.name);
    this.#showWords(".fit", fitWords(sound.score));
    this.#showWords(".coverage", coverageWords(sound.coverage));
    this.#showLayers(sound.layers);
    this.panel.show(sound);
    press(this.#find(".favourite"), entry.favourite);
    this.#find(".reuse").hidden = !entry.steps;
    this.#find(".copy-as").hidden = !entry.steps;
    await this.scope.load(entry.blob, { seconds: sound.seconds, sampleRate: sound.sample_rate, label: entry.name });
    this.#showTime(0);
    this.progress.hidden = true;
    this.#find(".preview").hidden = true;
    this.playButton.disabled = false;
    for (const controls of this.element.querySelectorAll("fieldset.bar, fieldset.marks")) controls.disabled = false;
    this.element.dataset.state = "ready";
  }

  // Say what went wrong with it, or that nothing does any more.
  complain(message) {
    const problem = this.#find(".problem");
    problem.textContent = message;
    problem.hidden = !message;
  }

  remove() {
    this.scope.destroy();
    this.element.remove();
  }

  matches(words, onlyFavourites) {
    if (!this.entry) return true;
    const text = `${this.entry.name} ${this.entry.title} ${this.entry.sound.prompt}`.toLowerCase();
    return (!onlyFavourites || this.entry.favourite) && words.every((word) => text.includes(word));
  }

  #wire() {
    this.playButton.addEventListener("click", () => this.scope.toggle());
    this.scope.addEventListener("playing", (event) => {
      this.element.classList.toggle("playing", event.detail);
      this.playButton.setAttribute("aria-label", `${event.detail ? "Pause" : "Play"} ${this.entry.name}`);
    });
    this.scope.addEventListener("move", (event) => this.#showTime(event.detail));
    this.scope.addEventListener("loop", () => this.#find(".loop").click());
    this.#on(".loop", (button) => {
      press(button, !isPressed(button));
      this.scope.setLoop(isPressed(button));
    });
    this.#on(".zoom-in", () => this.scope.zoom(2));
    this.#on(".zoom-out", () => this.scope.zoom(0.5));
    this.#on(".favourite", (button) => {
      this.entry.favourite = !this.entry.favourite;
      press(button, this.entry.favourite);
      this.#tell("change");
    });
    this.#on(".compare-button", () => this.#tell("compare"));
    this.#on(".copy-as", () => this.#tell("copy"));
    this.#on(".reuse", () => this.#tell("reuse"));
    this.#on(".rename", () => this.#rename());
    this.#on(".delete", () => this.#tell("delete"));
    const formats = [...this.element.querySelectorAll("[data-format]")];
    this.#on(".download", () => formats.forEach((button) => {
      button.querySelector("small").textContent = fileWords(this.entry, button.dataset.format);
    }));
    for (const button of formats) {
      button.addEventListener("click", () => this.#download(button.dataset.format));
    }
    this.#on(".file-settings", () => this.#tell("files"));
    this.#on(".grip", () => this.#download("wav"));
    this.#find(".grip").addEventListener("pointerenter", () => this.#prepare());
    this.#find(".grip").addEventListener("dragstart", (event) => this.#dragOut(event));
    this.panel.addEventListener("edit", (event) => this.#tell("edit", event.detail));
  }

  #on(selector, act) {
    const button = this.#find(selector);
    button.addEventListener("click", () => act(button));
  }

  #tell(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  #name(name) {
    this.#find(".name").textContent = name === this.given ? this.short : name;
    this.element.setAttribute("aria-label", name);
    this.playButton.setAttribute("aria-label", `Play ${name}`);
    this.#find(".preview").alt = `Spectrogram of ${name}, unfinished`;
  }

  #showTime(at) {
    this.#find(".time").textContent = `${at.toFixed(1)} / ${seconds(this.entry.sound.seconds)}`;
  }

  #showWords(selector, words) {
    const tip = this.#find(selector);
    tip.hidden = !words;
    if (!words) return;
    tip.querySelector(".tip-word").textContent = words.word;
    tip.querySelector(".tip-text").textContent = words.text;
    tip.dataset.verdict = words.verdict ?? "";
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
      take.className = "link";
      take.textContent = "WAV";
      take.setAttribute("aria-label", `Download this layer: ${layer.text}`);
      take.addEventListener("click", () => this.#saveLayer(layer.url, index + 1));
      item.append(take);
      return item;
    }));
  }

  async #saveLayer(url, number) {
    try {
      save(await fetchBlob(`${url}?${new URLSearchParams(fileSettings())}`), this.#file("wav").replace(/\.wav$/, `-layer${number}.wav`));
      this.complain("");
    } catch (error) {
      this.complain(error.status === 404 ? "The server no longer has the layers of this sound. Generate it again to get them." : error.message);
    }
  }

  // The title becomes a field; Enter keeps the new name, Escape the old one.
  #rename() {
    const title = this.#find(".name");
    const field = document.createElement("input");
    field.className = "name-field";
    field.value = this.entry.name;
    field.maxLength = 200;
    field.setAttribute("aria-label", "New name");
    let done = false;
    const finish = (name) => {
      if (done) return;
      done = true;
      if (name.trim() && name !== this.entry.name) {
        this.entry.name = name.trim();
        this.#tell("change");
      }
      field.replaceWith(title);
      this.#name(this.entry.name);
    };
    field.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key !== "Enter" && event.key !== "Escape") return;
      event.preventDefault(); // the button that gets the focus is not pressed
      finish(event.key === "Enter" ? field.value : this.entry.name);
      this.#find(".more").focus();
    });
    field.addEventListener("blur", () => finish(field.value));
    title.replaceWith(field);
    field.select();
  }

  #file(format) {
    return fileName(this.entry.name, this.entry.sound.seed, format);
  }

  async #download(format) {
    try {
      save(await fileOf(this.entry, format), this.#file(format));
      this.complain("");
    } catch (error) {
      this.complain(error.message);
    }
  }

  // A drag cannot wait for the server: the file is made when the pointer comes near.
  async #prepare() {
    if (this.dragged) URL.revokeObjectURL(this.dragged.url);
    this.dragged = null;
    const blob = await fileOf(this.entry).catch(() => this.entry.blob);
    this.dragged = { blob, url: URL.createObjectURL(blob) };
  }

  // Out of the page: a file for the desktop where the browser can, the file itself for other pages.
  #dragOut(event) {
    const { blob, url } = this.dragged ?? { blob: this.entry.blob, url: this.scope.audio.src };
    const file = new File([blob], this.#file("wav"), { type: "audio/wav" });
    event.dataTransfer.effectAllowed = "copy";
    event.dataTransfer.setData("DownloadURL", `audio/wav:${file.name}:${url}`);
    event.dataTransfer.setData("application/x-diffsound", this.entry.id);
    event.dataTransfer.items.add(file);
  }
}
