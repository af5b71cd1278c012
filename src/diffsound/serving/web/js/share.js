// A sound as a link: everything that makes it again, after the '#', which no browser sends anywhere.

const FIELDS = [
  "prompt", "negative_prompt", "duration", "seed", "num_inference_steps", "guidance_scale",
  "sampler", "temperature", "top_k", "truncation", "bundle",
];

export function recipe(sound) {
  const all = { ...sound.settings, prompt: sound.prompt, seed: sound.seed };
  return Object.fromEntries(FIELDS.filter((name) => all[name] != null).map((name) => [name, all[name]]));
}

export function link(settings) {
  return `${location.origin}${location.pathname}#${encodeURIComponent(JSON.stringify(settings))}`;
}

// The settings in the page's own address, or null if there are none that can be read.
export function fromAddress() {
  if (location.hash.length < 2) return null;
  try {
    const given = JSON.parse(decodeURIComponent(location.hash.slice(1)));
    if (typeof given.prompt !== "string") return null;
    return Object.fromEntries(FIELDS.filter((name) => given[name] != null).map((name) => [name, given[name]]));
  } catch {
    return null;
  }
}

export function fileName(sound, format) {
  const words = sound.prompt.normalize("NFKD").toLowerCase().match(/[a-z0-9]+/g) || ["sound"];
  return `${words.join("-").slice(0, 48)}-${sound.seed}.${format}`;
}
