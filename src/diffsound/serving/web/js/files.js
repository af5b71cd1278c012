// The files that leave the page: how the drawer's "Files" settings write them.

import { fetchBlob, soundPath, withSound } from "./api.js";
import { byId } from "./dom.js";

export const FILE_SETTINGS = ["rate", "channels", "bit_depth", "trim", "loudness"];
const KEPT = "diffsound-files";
// What a format can hold of the depth that was asked for; the others have none.
const DEPTHS = { wav: { 24: "24", "32f": "32f" }, flac: { 24: "24", "32f": "24" } };

const field = (name) => byId("settings-form").elements.namedItem(name);

// Those that were set, by the names of the API.
export function fileSettings(format = "wav") {
  const set = FILE_SETTINGS.map((name) => [name, field(name).value]).filter(([, value]) => value !== "");
  const values = Object.fromEntries(set.map(([name, value]) => [name, { trim: true, bit_depth: value }[name] ?? Number(value)]));
  const depth = DEPTHS[format]?.[values.bit_depth];
  if (depth) values.bit_depth = depth;
  else delete values.bit_depth;
  return values;
}

// A link may bring any rate; what else the drawer does not offer is the default.
export function setFiles(values) {
  const { rate } = values;
  const offered = (name, value) => !field(name).options || [...field(name).options].some((one) => one.value === value);
  if (Number.isInteger(rate) && !offered("rate", String(rate))) field("rate").add(new Option(`${rate / 1000} kHz`, rate));
  for (const name of FILE_SETTINGS) {
    const value = String(values[name] ?? "");
    field(name).value = offered(name, value) ? value : "";
  }
  keepFiles();
}

// They are about the visitor's work, not about one sound: the next visit finds them again.
export function keepFiles() {
  localStorage.setItem(KEPT, JSON.stringify(fileSettings()));
}

export function restoreFiles() {
  try {
    setFiles(JSON.parse(localStorage.getItem(KEPT)) ?? {});
  } catch {
    setFiles({}); // another page of this address wrote it
  }
}

function settingsFor(entry, format) {
  const values = fileSettings(format);
  if (entry.sound.settings.loop) delete values.trim; // it would open the loop
  return values;
}

// A sound as a file.
export async function fileOf(entry, format = "wav") {
  const values = settingsFor(entry, format);
  if (format === "wav" && !Object.keys(values).length) return entry.blob;
  return withSound(entry, (id) => fetchBlob(soundPath(id, { format, ...values })));
}

// "48 kHz, stereo, 24 bit": what `fileOf` gives.
export function fileWords(entry, format) {
  const { rate = entry.sound.sample_rate, channels, bit_depth: depth, trim, loudness } = settingsFor(entry, format);
  const words = [`${rate / 1000} kHz`, channels === 2 ? "stereo" : "mono"];
  if (format in DEPTHS) words.push(`${depth?.replace("f", "") ?? 16} bit${depth === "32f" ? " float" : ""}`);
  if (trim) words.push("trimmed");
  if (loudness != null) words.push(`${loudness} LUFS`);
  return words.join(", ");
}
