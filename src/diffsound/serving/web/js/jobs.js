// A request from its start to its last sound, shown in the cards of a group.

import { cancelJob, events, fetchBlob, startEdit, startJob, withSound } from "./api.js";
import { say } from "./dom.js";
import { stepsOf } from "./recipe.js";

export class Stopped extends Error {}

export class Jobs {
  constructor(results, fields) {
    this.results = results;
    this.fields = fields; // what the server accepts, by operation
    this.running = null;
  }

  generate(values, title, note) {
    const { keep, variations } = values;
    const takes = variations || values.num_candidates || 1;
    return this.#follow(() => startJob(values), "generate", { title, note, takes, keep, variations, before: null });
  }

  edit(entry, operation, values, title, note) {
    const start = () => withSound(entry, (id) => startEdit(operation, { ...values, sound: id }));
    return this.#follow(start, operation, { title, note, takes: values.num_candidates || 1, before: entry.steps });
  }

  async stop() {
    if (this.running?.job) await cancelJob(this.running.job);
  }

  // Resolves to the new entries. When only the best takes are kept, which ones is known at the end:
  // until then all cards show how far the whole job is.
  async #follow(start, operation, { title, note, takes, keep, variations, before }) {
    await this.stop();
    const mine = { job: null };
    this.running = mine;
    let group = null;
    try {
      mine.job = await start();
      group = this.results.open(title, note, keep ?? takes);
      const cards = [...group.cards];
      say(`Making ${title}`);
      const finished = [];
      let first = null;
      for await (const { event, data } of events(mine.job)) {
        if (event === "progress") {
          if (keep == null) cards[data.item].advance(data.share);
          else cards.forEach((card) => card.advance(data.progress));
        }
        if (event === "preview") cards[data.item]?.preview(data.image);
        if (event === "sound") {
          const { item, sound } = data;
          first ??= sound; // the one that variations are made of: its recipe makes them all
          const varied = variations && { variations, take: item };
          const steps = stepsOf(varied ? first : sound, operation, before, this.fields, varied);
          const shown = fetchBlob(sound.url).then((blob) => this.results.finish(group, cards[item], item, sound, { blob, steps }));
          finished.push(shown);
          if (finished.length === 1) shown.then(() => cards[item].scope.play(), () => {});
        }
        if (event === "failed") throw new Error(data.detail);
        if (event === "cancelled") throw new Stopped("Stopped.");
      }
      const entries = await Promise.all(finished);
      say(`${title} is ready`);
      return entries;
    } finally {
      for (const card of group ? [...group.cards] : []) {
        if (!card.entry) this.results.remove(card);
      }
      if (this.running === mine) this.running = null;
    }
  }
}
