// What makes a sound again: a generation, then the edits that followed it. As a link, as a command
// line, as Python, as curl and as JSON.

import { fileName } from "./dom.js";

// The steps of a new sound: `before` are those of the sound it was edited from, null if that sound
// is a recording, which no text can make again.
export function stepsOf(sound, operation, before, fields) {
  const { settings, prompt, seed } = sound;
  const all = { ...settings, prompt, seed };
  if (operation === "generate") all.duration ??= sound.seconds;
  const names = fields(operation).filter((name) => !["clip", "sound", "num_candidates", "keep"].includes(name));
  const step = Object.fromEntries(names.filter((name) => all[name] != null).map((name) => [name, all[name]]));
  if (operation === "generate") return [step];
  return before && [...before, { edit: operation, ...step }];
}

export function toAddress(steps) {
  const [first, ...edits] = steps;
  const given = edits.length ? { ...first, edits } : first;
  return `${location.origin}${location.pathname}#${encodeURIComponent(JSON.stringify(given))}`;
}

// The steps in the page's own address, or null if it has none that can be read.
export function fromAddress(fields) {
  if (location.hash.length < 2) return null;
  try {
    const { edits = [], ...first } = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (typeof first.prompt !== "string" || !edits.every((step) => typeof step.prompt === "string")) return null;
    const known = (operation, step) => Object.fromEntries(
      Object.entries(step).filter(([name, value]) => value != null && fields(operation).includes(name)),
    );
    return [known("generate", first), ...edits.map((step) => ({ edit: step.edit, ...known(step.edit, step) }))];
  } catch {
    return null;
  }
}

// Leaves out what the model would do anyway.
function short(step, defaults) {
  return Object.fromEntries(Object.entries(step).filter(
    ([name, value]) => name === "duration" || name === "seed" || JSON.stringify(defaults[name]) !== JSON.stringify(value),
  ));
}

const OPTIONS = {
  negative_prompt: "--negative", num_inference_steps: "--steps", guidance_scale: "--guidance",
  top_k: "--top-k", best_of: "--best-of", bundle: null,
};

const quote = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
const fileOf = (step) => fileName(step.prompt, step.seed, "wav");

function shellOptions(step) {
  return Object.entries(step).flatMap(([name, value]) => {
    if (name in OPTIONS && OPTIONS[name] === null) return [];
    if (name === "layered") return [value ? "--layered" : "--one-piece"];
    const option = OPTIONS[name] ?? `--${name}`;
    if (typeof value === "boolean") return value ? [option] : [];
    return [option, /^[\w.-]+$/.test(value) ? String(value) : quote(value)];
  }).join(" ");
}

function asShell(steps, defaults) {
  return steps.map((step, i) => {
    const { prompt, edit, ...rest } = short(step, defaults);
    const start = edit ? `diffsound edit ${edit} ${fileOf(steps[i - 1])}` : "diffsound";
    return `${start} ${quote(prompt)} ${shellOptions(rest)} -o ${fileOf(step)}`;
  }).join("\n");
}

function literal(value) {
  if (value === true) return "True";
  return value === false ? "False" : JSON.stringify(value);
}

function asPython(steps, defaults) {
  const lines = ["import diffsound", "", "pipeline = diffsound.load()"];
  for (const step of steps) {
    const { prompt, edit, bundle, ...rest } = short(step, defaults);
    const options = Object.entries(rest).map(([name, value]) => `${name}=${literal(value)}`);
    const call = edit ? `pipeline.${edit}(sound, ` : "pipeline(";
    lines.push(`(sound,) = ${call}${[literal(prompt), ...options].join(", ")})`);
  }
  return [...lines, `sound.save("${fileOf(steps.at(-1))}")`].join("\n");
}

function asCurl(steps, defaults, guarded) {
  const key = guarded ? ' -H "Authorization: Bearer $DIFFSOUND_KEY"' : "";
  return steps.map((step, i) => {
    const { edit, bundle, ...rest } = short(step, defaults);
    const from = `curl -sf ${location.origin}/v1/${edit ? `edit/${edit}` : "generate"}${key}`;
    const body = edit
      ? [`-F clip=@${fileOf(steps[i - 1])}`, ...Object.entries(rest).map(([name, value]) => `--form-string ${quote(`${name}=${value}`)}`)].join(" ")
      : `-H 'Content-Type: application/json' -d ${quote(JSON.stringify(rest))}`;
    return `${from} ${body} -o ${fileOf(step)}`;
  }).join("\n");
}

// A recipe in one of the five forms; `defaults` are the model's settings.
export function write(kind, steps, { defaults, guarded }) {
  if (kind === "link") return toAddress(steps);
  if (kind === "shell") return asShell(steps, defaults);
  if (kind === "python") return asPython(steps, defaults);
  if (kind === "curl") return asCurl(steps, defaults, guarded);
  return JSON.stringify(steps.length > 1 ? steps : steps[0], null, 2);
}
