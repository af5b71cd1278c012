// The sounds: made, shown, heard, edited and kept, and what the visitor does with them.

import "./menu.js";
import { acceptedFields, fetchBlob, keepClip, serverIsBack } from "./api.js";
import { compare, leaveComparison, switchSides } from "./compare.js";
import { openCopy } from "./copy.js";
import { byId, say, toast } from "./dom.js";
import { showExamples } from "./examples.js";
import { setFiles } from "./files.js";
import { Jobs, Stopped } from "./jobs.js";
import { setVolume } from "./playing.js";
import { fromAddress } from "./recipe.js";
import { Results } from "./results.js";

const VOLUME = "diffsound-volume";
const EDITS = { inpaint: "new selection", extend: "longer", vary: "variation" };

const clock = () => new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

export class Studio {
  static async open(composer, server, library) {
    const opened = new Studio(composer, server, library, await acceptedFields());
    await opened.results.restore();
    return opened;
  }

  constructor(composer, { bundles }, library, fields) {
    this.composer = composer;
    [this.bundle] = bundles;
    this.results = new Results(library, (card) => this.#wireCard(card));
    this.jobs = new Jobs(this.results, fields);
    this.#wire();
  }

  // What a visitor finds: examples to hear, and the sound of the link that led here.
  async welcome() {
    await showExamples(this.bundle, (example) => this.composer.suggest(example));
    await this.#openShared();
  }

  generate(values) {
    if (!values.prompt?.trim()) {
      this.composer.complain("Describe a sound first, for example: a dog barks");
      this.composer.prompt.focus();
      return null;
    }
    const length = values.duration === "auto" ? "auto length" : `${values.duration} s`;
    const takes = values.num_candidates || 1;
    const made = values.variations ? ` · ${values.variations} variations` : "";
    const chosen = values.keep == null ? made : ` · best ${values.keep} of ${takes}`;
    return this.#attempt(this.#complain, () => this.jobs.generate(values, values.prompt.trim(), `${length}${chosen} · ${clock()}`));
  }

  async openFiles(files) {
    for (const file of files) await this.#open(file);
  }

  #complain = (message) => this.composer.complain(message);

  // Do something that may fail; what went wrong is said where it was asked for.
  async #attempt(complain, act) {
    complain("");
    this.composer.busy(true);
    try {
      return await act();
    } catch (error) {
      if (error instanceof Stopped) {
        toast(error.message);
      } else {
        complain(error.message);
        if (error.status === 0) serverIsBack().then(() => complain(""));
      }
      return null;
    } finally {
      this.composer.busy(this.jobs.running != null);
    }
  }

  #edit(card, operation, values) {
    const title = `${values.prompt} (${EDITS[operation]})`;
    return this.#attempt((message) => card.complain(message), async () => {
      const entries = await this.jobs.edit(card.entry, operation, values, title, `from “${card.entry.name}” · ${clock()}`);
      byId("results").scrollIntoView({ block: "start" });
      return entries;
    });
  }

  #wireCard(card) {
    const { composer } = this;
    card.addEventListener("edit", ({ detail }) => this.#edit(card, detail.operation, { ...composer.editSettings(), ...detail.fields }));
    card.addEventListener("copy", () => openCopy(card.entry, this.bundle.defaults));
    card.addEventListener("reuse", () => {
      composer.fill(card.entry.steps[0]);
      composer.prompt.focus();
      toast("The settings of this sound are in the form");
    });
    card.addEventListener("files", () => composer.openFiles());
    card.addEventListener("compare", () => compare(card));
    card.addEventListener("removed", () => leaveComparison(card));
  }

  async #open(file) {
    if (/\.zip$/i.test(file.name)) {
      await this.#attempt(this.#complain, () => this.results.import(file));
      return;
    }
    await this.#attempt(this.#complain, async () => {
      const sound = await keepClip(file);
      const group = this.results.open(file.name, `your recording · ${clock()}`, 1);
      const blob = await fetchBlob(sound.url);
      await this.results.finish(group, group.cards[0], 0, sound, { blob, steps: null });
      say(`${file.name} is ready to edit`);
    });
  }

  // Make the sound of a link again, step by step.
  async #openShared() {
    const { steps, files } = fromAddress(this.jobs.fields) ?? {};
    if (!steps) return;
    const [{ take = 0, ...first }, ...edits] = steps;
    if (Object.keys(files).length) setFiles(files);
    this.composer.fill({ ...first, num_candidates: 1 });
    let entry = (await this.generate(first))?.[take];
    for (const { edit: operation, ...values } of edits) {
      if (!entry) return;
      const made = entry;
      entry = (await this.#attempt(this.#complain, () => this.jobs.edit(
        made, operation, { ...values, num_candidates: 1 }, `${values.prompt} (${EDITS[operation]})`, clock(),
      )))?.[0];
    }
  }

  #wire() {
    byId("stop").addEventListener("click", () => this.jobs.stop());
    byId("volume").value = localStorage.getItem(VOLUME) ?? 1;
    setVolume(Number(byId("volume").value));
    byId("volume").addEventListener("input", ({ target }) => {
      setVolume(Number(target.value));
      localStorage.setItem(VOLUME, target.value);
    });
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape") this.jobs.stop();
      if (event.target.closest?.("input, textarea, select")) return;
      if (event.key === "x") switchSides();
      if (event.key === "/") {
        event.preventDefault();
        this.composer.prompt.focus();
      }
    });
    addEventListener("pagehide", () => this.jobs.stop());
    addEventListener("hashchange", () => this.#openShared());
  }
}
