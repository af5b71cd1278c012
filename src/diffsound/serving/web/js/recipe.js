// What makes a sound again: a generation, then the edits that followed it. As a link, as a command
// line, as Python, as curl and as JSON.

import { fileName } from "./dom.js";

// The steps of a new sound: `before` are those of the sound it was edited from, null if that sound
// is a recording, which no text can make again. `varied`: which of how many variations it is.
export function stepsOf(sound, operation, before, fields, varied = null) {
  const { settings, prompt, seed } = sound;
  const all = { ...settings, prompt, seed };
  if (operation === "generate") all.duration ??= sound.seconds;
  const names = fields(operation).filter((name) => !["clip", "sound", "num_candidates", "keep", "variations"].includes(name));
  const step = Object.fromEntries(names.filter((name) => all[name] != null).map((name) => [name, all[name]]));
  if (operation === "generate") return [{ ...step, ...varied }];
  return before && [...before, { edit: operation, ...step }];
}

function toAddress(steps, files) {
  const [first, ...edits] = steps;
  const given = { ...first, ...files, ...(edits.length && { edits }) };
  return `${location.origin}${location.pathname}#${encodeURIComponent(JSON.stringify(given))}`;
}

// The steps and the file settings in the page's own address, or null if it has none that can be read.
export function fromAddress(fields) {
  if (location.hash.length < 2) return null;
  try {
    const { edits = [], ...first } = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (typeof first.prompt !== "string" || !edits.every((step) => typeof step.prompt === "string")) return null;
    const known = (operation, step) => Object.fromEntries(
      Object.entries(step).filter(([name, value]) => value != null && fields(operation).includes(name)),
    );
    const take = first.variations > first.take ? { take: first.take } : {};
    return {
      steps: [{ ...known("generate", first), ...take }, ...edits.map((step) => ({ edit: step.edit, ...known(step.edit, step) }))],
      files: known("files", first),
    };
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
  top_k: "--top-k", best_of: "--best-of", bit_depth: "--bit-depth", bundle: null, take: null,
};

const quote = (text) => `'${String(text).replaceAll("'", "'\\''")}'`;
const outputOf = (step) => fileName(step.prompt, step.seed, "wav");
// The command line numbers variations.
const fileOf = (step) => (step.variations ? outputOf(step).replace(/\.wav$/, `-${step.take + 1}.wav`) : outputOf(step));

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
    return `${start} ${quote(prompt)} ${shellOptions(rest)} -o ${outputOf(step)}`;
  }).join("\n");
}

function literal(value) {
  if (value === true) return "True";
  return value === false ? "False" : JSON.stringify(value);
}

const keywords = (values) => Object.entries(values).map(([name, value]) => `${name}=${literal(value)}`);

function asPython(steps, defaults, files) {
  const lines = ["import diffsound", "", "pipeline = diffsound.load()"];
  for (const step of steps) {
    const { prompt, edit, bundle, variations, take, ...rest } = short(step, defaults);
    const options = [literal(prompt), ...(variations ? [variations] : []), ...keywords(rest)].join(", ");
    if (variations) lines.push(`sound = pipeline.variations(${options})[${take}]`);
    else lines.push(`(sound,) = ${edit ? `pipeline.${edit}(sound, ` : "pipeline("}${options})`);
  }
  return [...lines, `sound.save(${[`"${fileOf(steps.at(-1))}"`, ...keywords(files)].join(", ")})`].join("\n");
}

function asCurl(steps, defaults, guarded) {
  const key = guarded ? ' -H "Authorization: Bearer $DIFFSOUND_KEY"' : "";
  return steps.map((step, i) => {
    const { edit, bundle, take, ...rest } = short(step, defaults);
    const from = `curl -sf ${location.origin}/v1/${edit ? `edit/${edit}` : "generate"}${key}`;
    const body = edit
      ? [`-F clip=@${fileOf(steps[i - 1])}`, ...Object.entries(rest).map(([name, value]) => `--form-string ${quote(`${name}=${value}`)}`)].join(" ")
      : `-H 'Content-Type: application/json' -d ${quote(JSON.stringify(rest))}`;
    if (!step.variations) return `${from} ${body} -o ${fileOf(step)}`;
    // Several sounds come as JSON.
    return `${from} -H 'Accept: application/json' ${body} | jq -r '.sounds[${take}].audio' | base64 -d > ${fileOf(step)}`;
  }).join("\n");
}

// A recipe in one of the five forms; `defaults` are the model's settings, `files` those of the file.
export function write(kind, steps, { defaults, guarded, files }) {
  if (kind === "link") return toAddress(steps, files);
  if (kind === "python") return asPython(steps, defaults, files);
  const all = [...steps.slice(0, -1), { ...steps.at(-1), ...files }];
  if (kind === "shell") return asShell(all, defaults);
  if (kind === "curl") return asCurl(all, defaults, guarded);
  const bodies = all.map(({ take, ...body }) => body);
  return JSON.stringify(bodies.length > 1 ? bodies : bodies[0], null, 2);
}
