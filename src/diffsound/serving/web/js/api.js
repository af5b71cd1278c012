// Talking to the server: one function per thing the page asks of it.

const KEY = "diffsound-key";

export class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// Ask for the key once, then send it with every request. Held for this tab only.
async function askForKey() {
  const dialog = document.getElementById("key-dialog");
  const field = document.getElementById("key");
  if (!dialog.open) dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  sessionStorage.setItem(KEY, field.value);
}

export async function request(path, options = {}) {
  const headers = new Headers(options.headers);
  const key = sessionStorage.getItem(KEY);
  if (key) headers.set("Authorization", `Bearer ${key}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server does not answer. Is it still running? This page will notice when it is back.");
  }
  if (response.status === 401) {
    await askForKey();
    return request(path, options);
  }
  if (!response.ok) {
    const body = await response.json().catch(() => ({}));
    const detail = body.detail || `The server answered ${response.status}.`;
    throw new ApiError(response.status, detail);
  }
  return response;
}

export async function loadBundles() {
  for (;;) {
    try {
      return await (await request("/v1/bundles")).json();
    } catch (error) {
      if (error.status !== 503) throw error;
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
  }
}

const OPERATIONS = { generate: "/v1/jobs", inpaint: "/v1/jobs/inpaint", extend: "/v1/jobs/extend", vary: "/v1/jobs/vary" };

// The fields that the server accepts, by operation, from its own description (OpenAPI): a recipe
// carries every one of them. "files" are those of a download.
export async function acceptedFields() {
  const { paths, components } = await (await request("/openapi.json")).json();
  const names = Object.fromEntries(Object.entries(OPERATIONS).map(([operation, path]) => {
    const [{ schema }] = Object.values(paths[path].post.requestBody.content);
    return [operation, Object.keys(components.schemas[schema.$ref.split("/").pop()].properties)];
  }));
  const { parameters } = paths["/v1/sounds/{name}"].get;
  names.files = parameters.filter((one) => one.in === "query").map(({ name }) => name);
  return (operation) => names[operation] ?? [];
}

export async function startJob(settings) {
  const response = await request("/v1/jobs", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(settings),
  });
  return response.json();
}

export async function startEdit(operation, fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return (await request(`/v1/jobs/${operation}`, { method: "POST", body: form })).json();
}

export async function keepClip(file) {
  const form = new FormData();
  form.append("clip", file);
  return (await request("/v1/clips", { method: "POST", body: form })).json();
}

// Do something with a sound by its id on the server; one the server has dropped is uploaded again.
export async function withSound(entry, use) {
  try {
    if (entry.sound.id) return await use(entry.sound.id);
  } catch (error) {
    if (error.status !== 404) throw error;
  }
  entry.sound.id = (await keepClip(entry.blob)).id;
  return use(entry.sound.id);
}

export const soundPath = (id, file) => `/v1/sounds/${id}?${new URLSearchParams(file)}`;

export function hasKey() {
  return sessionStorage.getItem(KEY) !== null;
}

// Resolves when the server answers again.
export async function serverIsBack() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    const answer = await fetch("/readyz").catch(() => null);
    if (answer?.ok) return;
  }
}

export function cancelJob(job) {
  return request(job.url, { method: "DELETE", keepalive: true }).catch(() => {});
}

export async function fetchBlob(path, signal) {
  return (await request(path, { signal })).blob();
}

// The job's events, one {event, data} at a time; picks up again where a broken line left off.
export async function* events(job) {
  let last = "";
  for (let failures = 0; failures < 5; failures += 1) {
    const response = await request(job.events_url, { headers: last ? { "Last-Event-ID": last } : {} });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    let ended = false;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        text += value;
        let end;
        while ((end = text.indexOf("\n\n")) >= 0) {
          const message = parse(text.slice(0, end));
          text = text.slice(end + 2);
          if (!message) continue;
          last = message.id;
          failures = 0;
          yield message;
          ended ||= ["done", "failed", "cancelled"].includes(message.event);
        }
      }
    } catch {
      // The line broke: ask again from the last event on.
    }
    if (ended) return;
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
  throw new ApiError(0, "The connection to the server broke.");
}

function parse(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return fields.event ? { ...fields, data: JSON.parse(fields.data) } : null;
}
