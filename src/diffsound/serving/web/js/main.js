// The page: what the visitor does, and who does it.

import "./menu.js";
import { fetchBlob, keepClip, loadBundles, serverIsBack } from "./api.js";
import { loadCapabilities } from "./capabilities.js";
import { compare, leaveComparison, switchSides } from "./compare.js";
import { Composer } from "./composer.js";
import { openCopy } from "./copy.js";
import { byId, say, toast } from "./dom.js";
import { acceptFiles } from "./drop.js";
import { showExamples } from "./examples.js";
import { setFiles } from "./files.js";
import { Jobs, Stopped } from "./jobs.js";
import { Library } from "./library.js";
import { setVolume } from "./playing.js";
import { fromAddress } from "./recipe.js";
import { Results } from "./results.js";

const VOLUME = "diffsound-volume";
const EDITS = { inpaint: "new selection", extend: "longer", vary: "variation" };

const asked = Promise.all([loadBundles(), loadCapabilities()]);
asked.catch(() => {}); // said below
const composer = new Composer();
const results = new Results(await Library.open(), wireCard);
let jobs = null;
let defaults = {};

const clock = () => new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

// Do something that may fail; what went wrong is said where it was asked for.
async function attempt(complain, act) {
  complain("");
  composer.busy(true);
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
    composer.busy(jobs?.running != null);
  }
}

const complain = (message) => composer.complain(message);

function generate(values) {
  if (!values.prompt?.trim()) {
    complain("Describe a sound first, for example: a dog barks");
    composer.prompt.focus();
    return null;
  }
  const length = values.duration === "auto" ? "auto length" : `${values.duration} s`;
  const takes = values.num_candidates || 1;
  const made = values.variations ? ` · ${values.variations} variations` : "";
  const chosen = values.keep == null ? made : ` · best ${values.keep} of ${takes}`;
  return attempt(complain, () => jobs.generate(values, values.prompt.trim(), `${length}${chosen} · ${clock()}`));
}

function edit(card, operation, values) {
  const title = `${values.prompt} (${EDITS[operation]})`;
  return attempt((message) => card.complain(message), async () => {
    const entries = await jobs.edit(card.entry, operation, values, title, `from “${card.entry.name}” · ${clock()}`);
    byId("results").scrollIntoView({ block: "start" });
    return entries;
  });
}

function wireCard(card) {
  card.addEventListener("edit", ({ detail }) => edit(card, detail.operation, { ...composer.editSettings(), ...detail.fields }));
  card.addEventListener("copy", () => openCopy(card.entry, defaults));
  card.addEventListener("reuse", () => {
    composer.fill(card.entry.steps[0]);
    composer.prompt.focus();
    toast("The settings of this sound are in the form");
  });
  card.addEventListener("files", () => composer.openFiles());
  card.addEventListener("compare", () => compare(card));
  card.addEventListener("removed", () => leaveComparison(card));
}

async function open(file) {
  if (/\.zip$/i.test(file.name)) {
    await attempt(complain, () => results.import(file));
    return;
  }
  await attempt(complain, async () => {
    const sound = await keepClip(file);
    const group = results.open(file.name, `your recording · ${clock()}`, 1);
    const blob = await fetchBlob(sound.url);
    await results.finish(group, group.cards[0], 0, sound, { blob, steps: null });
    say(`${file.name} is ready to edit`);
  });
}

// Make the sound of a link again, step by step.
async function openShared() {
  const { steps, files } = fromAddress(jobs.fields) ?? {};
  if (!steps) return;
  const [{ take = 0, ...first }, ...edits] = steps;
  if (Object.keys(files).length) setFiles(files);
  composer.fill({ ...first, num_candidates: 1 });
  let entry = (await generate(first))?.[take];
  for (const { edit: operation, ...values } of edits) {
    if (!entry) return;
    const made = entry;
    entry = (await attempt(complain, () => jobs.edit(
      made, operation, { ...values, num_candidates: 1 }, `${values.prompt} (${EDITS[operation]})`, clock(),
    )))?.[0];
  }
}

function chooseFile(field, act) {
  byId(field).addEventListener("change", async ({ target }) => {
    for (const file of [...target.files]) await act(file);
    target.value = "";
  });
}

composer.addEventListener("submit", () => generate(composer.settings()));
byId("stop").addEventListener("click", () => jobs.stop());
byId("open-file").addEventListener("click", () => byId("upload").click());
chooseFile("upload", open);
chooseFile("import-file", open);
acceptFiles(open);
byId("volume").value = localStorage.getItem(VOLUME) ?? 1;
setVolume(Number(byId("volume").value));
byId("volume").addEventListener("input", ({ target }) => {
  setVolume(Number(target.value));
  localStorage.setItem(VOLUME, target.value);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") jobs?.stop();
  if (event.target.closest?.("input, textarea, select")) return;
  if (event.key === "x") switchSides();
  if (event.key === "/") {
    event.preventDefault();
    composer.prompt.focus();
  }
});
window.addEventListener("pagehide", () => jobs?.stop());
window.addEventListener("hashchange", openShared);

try {
  const [server, capabilities] = await asked;
  const [bundle] = server.bundles;
  ({ defaults } = bundle);
  jobs = new Jobs(results, capabilities.fields);
  byId("model").textContent = server.bundles.length > 1 ? `${server.bundles.length} models` : `model ${bundle.name}`;
  composer.offer(server, capabilities);
  await results.restore();
  document.documentElement.dataset.ready = "true";
  await showExamples(bundle, (example) => composer.suggest(example));
  await openShared();
} catch (error) {
  byId("model").textContent = "";
  complain(error.message);
}
