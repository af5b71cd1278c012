// The list of sounds, newest first, in groups of takes: shown, searched, deleted, downloaded, kept.

import { exportLibrary, importLibrary, zip } from "./archive.js";
import { Card } from "./card.js";
import { byId, clone, fileName, isPressed, press, save, toast } from "./dom.js";
import { fileOf } from "./files.js";

const nameOf = (entry) => fileName(entry.name, entry.sound.seed, "wav");

export class Results {
  constructor(library, wireCard) {
    this.library = library;
    this.wireCard = wireCard;
    this.groups = []; // { id, created, cards, element }, newest first
    // Waveforms are drawn when they come near the screen: a library may be long.
    this.waiting = new Map();
    this.observer = new IntersectionObserver((seen) => {
      for (const { target } of seen.filter((one) => one.isIntersecting)) this.#mount(target);
    }, { rootMargin: "800px" });
    this.#wire();
  }

  // A group with cards for takes that are still to be made.
  open(title, note, count) {
    const group = this.#group(crypto.randomUUID?.() ?? String(Math.random()), title, note, Date.now());
    for (let i = 0; i < count; i += 1) {
      const short = `Take ${i + 1}`;
      const card = count > 1 ? new Card(`${title}, take ${i + 1}`, short) : new Card(title);
      card.advance(0);
      this.#insert(group, card, i);
    }
    this.#show();
    return group;
  }

  // A finished sound: shown in its card, and kept.
  async finish(group, card, take, sound, { blob, steps }) {
    const entry = {
      id: crypto.randomUUID?.() ?? String(Math.random()), group: group.id, title: group.title, note: group.note,
      created: group.created, take, name: card.element.getAttribute("aria-label"), favourite: false,
      sound, steps, blob,
    };
    await card.finish(entry);
    if (!(await this.library.put(entry))) toast("This browser does not keep the sound: download it before you leave");
    this.#show();
    return entry;
  }

  async restore() {
    for (const entry of await this.library.all()) this.place(entry);
    this.#show();
  }

  // A kept sound back into its group.
  place(entry) {
    const group = this.groups.find(({ id }) => id === entry.group)
      ?? this.#group(entry.group, entry.title, entry.note, entry.created);
    const isTake = entry.name === `${entry.title}, take ${entry.take + 1}`;
    const card = new Card(entry.name, isTake ? `Take ${entry.take + 1}` : entry.name);
    card.entry = entry;
    card.element.dataset.state = "waiting";
    this.waiting.set(card.element, card);
    this.#insert(group, card, entry.take);
    this.observer.observe(card.element);
    this.#show();
  }

  async remove(card, { undo = true } = {}) {
    const { entry } = card;
    const group = this.groups.find(({ cards }) => cards.includes(card));
    group.cards.splice(group.cards.indexOf(card), 1);
    card.dispatchEvent(new Event("removed"));
    card.remove();
    if (!group.cards.length) {
      group.element.remove();
      this.groups.splice(this.groups.indexOf(group), 1);
    }
    this.#show();
    if (!entry) return;
    await this.library.remove(entry.id);
    if (undo) toast(`Deleted “${entry.name}”`, () => this.#bringBack([entry]));
  }

  get entries() {
    return this.groups.flatMap(({ cards }) => cards.map((card) => card.entry).filter(Boolean));
  }

  async import(file) {
    const known = new Set(this.entries.map(({ id }) => id));
    const news = (await importLibrary(file)).filter(({ id }) => !known.has(id));
    await this.#bringBack(news);
    toast(`Imported ${news.length} ${news.length === 1 ? "sound" : "sounds"}`);
  }

  async #bringBack(entries) {
    for (const entry of entries) {
      await this.library.put(entry);
      this.place(entry);
    }
  }

  #group(id, title, note, created) {
    const element = clone("group-template");
    element.querySelector("h3").textContent = title;
    element.querySelector(".quiet").textContent = note;
    const group = { id, title, note, created, cards: [], element };
    const place = this.groups.findIndex((other) => other.created <= created);
    if (place < 0) {
      this.groups.push(group);
      byId("results").append(element);
    } else {
      this.groups[place].element.before(element);
      this.groups.splice(place, 0, group);
    }
    element.querySelector(".zip").addEventListener("click", () => {
      this.#zip(group.cards.map((card) => card.entry).filter(Boolean), fileName(title, "takes", "zip"));
    });
    return group;
  }

  #insert(group, card, take) {
    const next = group.cards.findIndex((other) => (other.entry?.take ?? -1) > take);
    if (next < 0) group.element.querySelector(".cards").append(card.element);
    else group.cards[next].element.before(card.element);
    group.cards.splice(next < 0 ? group.cards.length : next, 0, card);
    card.addEventListener("change", async () => {
      await this.library.put(card.entry);
      this.#show();
    });
    card.addEventListener("delete", () => this.remove(card));
    this.wireCard(card);
  }

  #mount(element) {
    const card = this.waiting.get(element);
    this.observer.unobserve(element);
    this.waiting.delete(element);
    card?.finish(card.entry);
  }

  #show() {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const favourites = isPressed(byId("only-favourites"));
    let found = 0;
    for (const group of this.groups) {
      const shown = group.cards.filter((card) => {
        card.element.hidden = !card.matches(words, favourites);
        return !card.element.hidden;
      });
      group.element.hidden = !shown.length;
      group.element.querySelector(".zip").hidden = group.cards.filter((card) => card.entry).length < 2;
      const [first] = group.cards;
      group.element.classList.toggle("single", group.cards.length === 1 && first.short === first.given);
      found += shown.length;
    }
    const any = this.groups.length > 0;
    byId("library").hidden = !any;
    byId("import-first").hidden = any;
    byId("none-found").hidden = !any || found > 0;
    const { entries } = this;
    byId("library-count").textContent = entries.length || "";
    byId("search").parentElement.hidden = entries.length < 3 && !words.length;
    byId("only-favourites").hidden = !favourites && !entries.some((entry) => entry.favourite);
    document.body.classList.toggle("has-results", any);
  }

  async #zip(entries, name) {
    const files = [];
    try {
      for (const entry of entries) files.push({ name: nameOf(entry), blob: await fileOf(entry) });
      save(await zip(files), name);
    } catch (error) {
      toast(error.message);
    }
  }

  async #clear() {
    const { entries } = this;
    const cards = this.groups.flatMap((group) => group.cards).filter((card) => card.entry);
    for (const card of cards) await this.remove(card, { undo: false });
    toast(`Deleted ${entries.length} ${entries.length === 1 ? "sound" : "sounds"}`, () => this.#bringBack(entries));
  }

  #wire() {
    byId("search").addEventListener("input", () => this.#show());
    byId("only-favourites").addEventListener("click", ({ currentTarget }) => {
      press(currentTarget, !isPressed(currentTarget));
      this.#show();
    });
    byId("zip-all").addEventListener("click", () => this.#zip(this.entries, "diffsound-sounds.zip"));
    byId("export").addEventListener("click", async () => save(await exportLibrary(this.entries, nameOf), "diffsound-library.zip"));
    byId("clear").addEventListener("click", () => this.#clear());
    byId("import").addEventListener("click", () => byId("import-file").click());
  }
}
