// The OpenAPI document as a page: every operation, its fields, its answers, a line to try it with.

const api = await (await fetch("/openapi.json")).json();

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function resolve(schema) {
  return schema?.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;
}

function typeOf(schema) {
  const options = (schema.anyOf ?? [schema]).filter((one) => one.type !== "null");
  return options.map((one) => one.$ref ? one.$ref.split("/").pop() : one.enum?.join(" | ") ?? (one.contentMediaType || one.format === "binary" ? "file" : one.type ?? "any")).join(" or ");
}

function limits(schema) {
  const [bound] = (schema.anyOf ?? [schema]).filter((one) => one.type !== "null");
  const names = { minimum: "≥", exclusiveMinimum: ">", maximum: "≤", maxLength: "characters ≤" };
  return Object.entries(names).filter(([key]) => bound[key] !== undefined).map(([key, sign]) => `${sign} ${bound[key]}`).join(", ");
}

function table(title, rows) {
  const made = element("table");
  made.append(element("caption", title));
  for (const cells of rows) {
    const row = element("tr");
    cells.forEach((text, i) => {
      const cell = element(i ? "td" : "th");
      cell.append(i ? text : element("code", text));
      row.append(cell);
    });
    made.append(row);
  }
  return made;
}

function fields(schema) {
  const required = new Set(schema.required ?? []);
  return Object.entries(schema.properties ?? {}).map(([name, field]) => [
    name,
    typeOf(field) + (required.has(name) ? ", required" : ""),
    [field.description, limits(field), field.default != null ? `default ${JSON.stringify(field.default)}` : ""].filter(Boolean).join("; "),
  ]);
}

function example(path, method, type, schema) {
  const url = location.origin + path;
  if (type === "application/json") {
    return `curl -X ${method} ${url} \\\n  -H 'Content-Type: application/json' \\\n  -d '{"prompt": "a dog barks", "seed": 7}'${path === "/v1/generate" ? " -o dog.wav" : ""}`;
  }
  if (type === "multipart/form-data") {
    const samples = { prompt: "a bell", start: 1, end: 2, seconds: 2, clip: "@clip.wav" };
    const wanted = new Set([...(schema.required ?? []), "clip"]);
    const parts = Object.entries(samples).filter(([name]) => wanted.has(name)).map(([name, value]) => ` -F ${name}='${value}'`);
    return `curl -X ${method} ${url} \\\n ${parts.join("")}${path.includes("/edit/") ? " -o new.wav" : ""}`;
  }
  return `curl${method === "GET" ? "" : ` -X ${method}`} ${url}`;
}

const sections = new Map();
for (const [path, methods] of Object.entries(api.paths)) {
  for (const [name, operation] of Object.entries(methods)) {
    const method = name.toUpperCase();
    const details = element("details", undefined, "operation");
    const summary = element("summary");
    summary.append(element("span", method, "method"), element("code", path), ` — ${operation.description ?? ""}`);
    const body = element("div");
    const [type, content] = Object.entries(operation.requestBody?.content ?? {})[0] ?? [];
    const schema = resolve(content?.schema);
    if (operation.parameters) {
      body.append(table("Parameters", operation.parameters.map((one) => [one.name, `${one.in}, ${typeOf(one.schema)}`, limits(one.schema)])));
    }
    if (schema) body.append(table(`Body, ${type}`, fields(schema)));
    body.append(table("Answers", Object.entries(operation.responses).map(([status, one]) => [status, Object.keys(one.content ?? {}).join(", "), one.description])));
    body.append(element("pre", example(path, method, type, schema)));
    details.append(summary, body);
    const tag = operation.tags?.[0] ?? "other";
    if (!sections.has(tag)) {
      const section = element("section");
      section.append(element("h2", tag));
      sections.set(tag, section);
    }
    sections.get(tag).append(details);
  }
}
document.getElementById("version").textContent = api.info.version;
document.getElementById("operations").replaceChildren(...sections.values());
