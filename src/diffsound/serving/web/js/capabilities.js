// What this server accepts, read from its own description (OpenAPI): the page offers a control only
// if the server knows the field, and a link carries every field it knows.

import { request } from "./api.js";

const PATHS = { generate: "/v1/jobs", inpaint: "/v1/jobs/inpaint", extend: "/v1/jobs/extend", vary: "/v1/jobs/vary" };

function bodyOf(document, path) {
  const content = document.paths?.[path]?.post?.requestBody?.content ?? {};
  const schema = Object.values(content)[0]?.schema ?? {};
  const name = schema.$ref?.split("/").pop();
  return (name ? document.components?.schemas?.[name] : schema)?.properties ?? {};
}

// Whether a field may be this very text: a constant, one of an enumeration, or either in a union.
function allows(field, text) {
  if (!field) return false;
  if (field.const === text || field.enum?.includes(text)) return true;
  return [...(field.anyOf ?? []), ...(field.oneOf ?? [])].some((one) => allows(one, text));
}

export async function loadCapabilities() {
  const document = await (await request("/openapi.json")).json();
  const bodies = Object.fromEntries(
    Object.entries(PATHS).map(([operation, path]) => [operation, bodyOf(document, path)]),
  );
  const parameters = document.paths?.["/v1/sounds/{name}"]?.get?.parameters ?? [];
  bodies.files = Object.fromEntries(parameters.filter((one) => one.in === "query").map(({ name, schema }) => [name, schema]));
  return {
    fields: (operation) => Object.keys(bodies[operation] ?? {}),
    loop: "loop" in bodies.generate,
    autoDuration: allows(bodies.generate.duration, "auto"),
  };
}
