// The dialog that shows a sound's recipe as a link, a command line, Python, curl or JSON.

import { hasKey } from "./api.js";
import { byId, toast } from "./dom.js";
import { fileSettings } from "./files.js";
import { write } from "./recipe.js";

const NOTES = {
  link: "Opens this page and makes the sound again. The settings are behind the #, which browsers do not send.",
  shell: "With diffsound installed: pip install diffsound.",
  python: "With diffsound installed: pip install diffsound.",
  curl: "Asks this server.",
  json: "The body of POST /v1/generate; edits follow it in a list.",
};
const FROM_FILES = " Each edit reads the file before it, so the regenerated part may differ from this take; the link and Python make it exactly.";
const NAMES = { link: "link", shell: "command line", python: "Python code", curl: "curl command", json: "JSON" };

let steps = [];
let defaults = {};
let kind = "link";

function show(chosen) {
  kind = chosen;
  for (const tab of byId("copy-dialog").querySelectorAll("[role=tab]")) {
    const on = tab.dataset.kind === kind;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
  }
  byId("copy-text").value = write(kind, steps, { defaults, guarded: hasKey(), files: fileSettings() });
  const readsFiles = steps.length > 1 && (kind === "shell" || kind === "curl");
  byId("copy-note").textContent = NOTES[kind] + (readsFiles ? FROM_FILES : "");
}

export function openCopy(entry, model) {
  [steps, defaults] = [entry.steps, model];
  show(kind);
  byId("copy-dialog").showModal();
  byId("copy-button").focus();
}

byId("copy-dialog").addEventListener("click", (event) => {
  const tab = event.target.closest("[role=tab]");
  if (tab) show(tab.dataset.kind);
  if (event.target === byId("copy-dialog")) byId("copy-dialog").close();
});
byId("copy-dialog").addEventListener("keydown", (event) => {
  const tabs = [...byId("copy-dialog").querySelectorAll("[role=tab]")];
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (by === undefined || !tabs.includes(event.target)) return;
  const next = tabs[(tabs.indexOf(event.target) + by + tabs.length) % tabs.length];
  show(next.dataset.kind);
  next.focus();
});
byId("copy-button").addEventListener("click", async () => {
  const field = byId("copy-text");
  field.select();
  try {
    await navigator.clipboard.writeText(field.value);
    toast(`Copied the ${NAMES[kind]}`);
    byId("copy-dialog").close();
  } catch {
    // Off this machine and without TLS there is no clipboard: the text is selected.
    toast("Press Ctrl+C to copy the selected text");
  }
});
