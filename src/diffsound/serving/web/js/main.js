// The page: the form, the running job, and the visit's history.

import { cancelJob, events, keepClip, loadBundles, startEdit, startJob } from "./api.js";
import { History } from "./history.js";
import { fromAddress } from "./share.js";

const byId = (name) => document.getElementById(name);
const form = byId("maker");
const prompt = byId("prompt");
const history = new History(byId("history"), wireCard);
let running = null; // the job at work

const NUMBERS = ["duration", "num_candidates", "keep", "seed", "guidance_scale", "num_inference_steps",
  "temperature", "top_k", "truncation"];

function settings() {
  const values = {};
  for (const [name, value] of new FormData(form)) {
    if (value === "" || value instanceof File) continue;
    values[name] = NUMBERS.includes(name) ? Number(value) : value;
  }
  return values;
}

function fill(values) {
  for (const [name, value] of Object.entries(values)) {
    const field = form.elements.namedItem(name);
    if (field) field.value = value;
  }
  const folded = ["negative_prompt", "guidance_scale", "num_inference_steps", "sampler", "temperature"];
  byId("more").open ||= folded.some((name) => values[name] != null);
  showDuration();
}

function showDuration() {
  byId("duration-shown").textContent = `${Number(byId("duration").value)} s`;
}

function complain(message) {
  byId("problem").textContent = message || "";
  byId("problem").hidden = !message;
}

function say(text) {
  byId("status").textContent = text;
}

function busy(on) {
  byId("go").hidden = on;
  byId("stop").hidden = !on;
}

// Run a job to its end, showing every step in the group's cards. When only the best of its takes
// are kept, which ones is known at the end: until then all cards show how far the whole job is.
async function follow(start, title, note, { takes, keep }) {
  if (running) await stop();
  complain("");
  busy(true);
  let group = null;
  let heard = false;
  const mine = { job: null };
  running = mine;
  try {
    mine.job = await start();
    group = history.open(title, note, keep ?? takes);
    say(`Making ${title}`);
    const finished = [];
    for await (const { event, data } of events(mine.job)) {
      const card = group.cards[data.item];
      if (event === "progress") {
        if (keep == null) card.advance(data.share);
        else group.cards.forEach((each) => each.advance(data.progress));
      }
      if (event === "preview") card?.preview(data.image);
      if (event === "sound") {
        finished.push(card.finish(data.sound).then(() => {
          if (!heard && card.element.dataset.state === "ready") {
            heard = true;
            return card.play();
          }
        }));
      }
      if (event === "failed") throw new Error(data.detail);
      if (event === "cancelled") throw new Error("Stopped.");
    }
    await Promise.all(finished);
    history.store();
    say(`${title} is ready`);
  } catch (error) {
    if (running === mine) complain(error.message);
    group?.cards.filter((card) => !card.sound).forEach((card) => card.fail(error.message));
  } finally {
    if (running === mine) {
      running = null;
      busy(false);
    }
  }
}

async function stop() {
  if (running?.job) await cancelJob(running.job);
}

function clock() {
  return new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}

function generate(changes = {}) {
  const values = { ...settings(), ...changes };
  if (!values.prompt?.trim()) {
    complain("Describe a sound first, for example: a dog barks");
    prompt.focus();
    return Promise.resolve();
  }
  const seconds = `${values.duration} s`;
  const takes = values.num_candidates || 1;
  const note = values.keep == null ? seconds : `${seconds} · best ${values.keep} of ${takes}`;
  return follow(() => startJob(values), values.prompt, `${note} · ${clock()}`, { takes, keep: values.keep });
}

function wireCard(card) {
  card.addEventListener("seed", (event) => {
    byId("seed").value = event.detail;
    prompt.value = card.sound.prompt;
    byId("seed").focus();
  });
  card.addEventListener("edit", (event) => edit(card, event.detail));
}

const EDITS = { inpaint: "region anew", extend: "longer", vary: "another take" };

function edit(card, { operation, fields }) {
  const shared = settings();
  const more = Object.fromEntries(
    ["num_candidates", "seed", "negative_prompt", "guidance_scale", "num_inference_steps", "sampler",
      "temperature", "top_k", "truncation", "bundle"]
      .filter((name) => shared[name] != null).map((name) => [name, shared[name]]),
  );
  const start = async () => {
    try {
      return await startEdit(operation, { ...more, ...fields, sound: card.sound.id });
    } catch (error) {
      // The server has let go of the sound, but this page still has it.
      if (error.status !== 404) throw error;
      return startEdit(operation, { ...more, ...fields, clip: card.blob });
    }
  };
  const title = `${fields.prompt} (${EDITS[operation]})`;
  follow(start, title, clock(), { takes: shared.num_candidates || 1 })
    .then(() => window.scrollTo({ top: 0, behavior: "smooth" }));
}

async function upload(file) {
  complain("");
  try {
    const sound = await keepClip(file);
    const group = history.open(file.name, `your clip · ${clock()}`, 1);
    await group.cards[0].finish(sound);
    history.store();
    say(`${file.name} is ready to edit`);
  } catch (error) {
    complain(error.message);
  }
  byId("upload").value = "";
}

// No more can be kept than are made.
function boundKeep() {
  byId("keep").max = byId("takes").value || 1;
}

function showBundles({ bundles, limits }) {
  const chosen = bundles[0];
  byId("model").textContent = bundles.length > 1 ? "" : chosen.name;
  byId("duration").max = limits.duration;
  byId("duration").value = chosen.defaults.duration;
  byId("takes").max = limits.candidates;
  const ranks = bundles.some((bundle) => bundle.ranks);
  byId("keep-field").hidden = !ranks;
  byId("keep").disabled = !ranks;
  boundKeep();
  prompt.maxLength = limits.prompt_chars;
  const field = (name) => form.elements.namedItem(name);
  field("guidance_scale").placeholder = chosen.defaults.guidance_scale;
  field("num_inference_steps").placeholder = chosen.defaults.num_inference_steps ?? "";
  field("num_inference_steps").max = Math.min(limits.steps, chosen.timesteps ?? limits.steps);
  field("temperature").placeholder = chosen.defaults.temperature;
  field("truncation").placeholder = chosen.defaults.truncation;
  field("top_k").placeholder = chosen.defaults.top_k ?? "all";
  if (bundles.length > 1) {
    field("bundle").replaceChildren(...bundles.map(({ name }) => new Option(name, name)));
    byId("bundle-field").hidden = false;
  }
  for (const text of chosen.examples) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => {
      prompt.value = text;
      generate();
    });
    byId("examples").append(button);
  }
  showDuration();
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    if (!byId("go").disabled) form.requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select");
  if (event.key === "Escape" && running) stop();
  if (event.key === "/" && !typing) {
    event.preventDefault();
    prompt.focus();
  }
});
// Only one menu is open at a time, and none once the pointer goes elsewhere.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) {
    if (!menu.contains(event.target)) menu.open = false;
  }
});
byId("stop").addEventListener("click", stop);
byId("takes").addEventListener("input", boundKeep);
byId("duration").addEventListener("input", showDuration);
byId("upload").addEventListener("change", () => {
  const [file] = byId("upload").files;
  if (file) upload(file);
});
window.addEventListener("pagehide", stop);

async function openShared() {
  const shared = fromAddress();
  if (!shared) return;
  const values = { ...shared, num_candidates: 1 };
  fill(values);
  // Not the form's own values: its duration moves in steps, a shared one need not.
  await generate({ ...values, keep: undefined });
}
window.addEventListener("hashchange", openShared);

try {
  showBundles(await loadBundles());
  byId("go").disabled = false;
  document.documentElement.dataset.ready = "true";
  history.restore();
  await openShared();
} catch (error) {
  byId("model").textContent = "";
  complain(error.message);
}
