// The OpenAPI document as a page on which every operation can be tried.

const dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", follow);
follow();

// Swagger UI plays an audio answer by asking for its address again, with GET: a sound that was made
// by a POST is played from the bytes that came back.
const addresses = new WeakMap();

function address(sound) {
  if (!addresses.has(sound)) addresses.set(sound, URL.createObjectURL(sound));
  return addresses.get(sound);
}

const playing = ({ React }) => ({
  wrapComponents: {
    responseBody: (Original) => (props) => {
      const { content, contentType } = props;
      if (!(content instanceof Blob) || !/^audio\//.test(contentType)) {
        return React.createElement(Original, props);
      }
      const src = address(content);
      return React.createElement(
        "div",
        null,
        React.createElement("audio", { controls: true, src }),
        React.createElement("a", { href: src, download: "sound" }, "Download"),
      );
    },
  },
});

// It also fills every field of a form with a sample. What need not be given starts empty.
function withEmptyForms(api) {
  for (const operation of Object.values(api.paths).flatMap(Object.values)) {
    const { $ref } = operation.requestBody?.content["multipart/form-data"]?.schema ?? {};
    const form = $ref && api.components.schemas[$ref.split("/").pop()];
    for (const [name, field] of Object.entries(form?.properties ?? {})) {
      if (!form.required?.includes(name) && field.default === undefined) field.examples = [""];
    }
  }
  return api;
}

const answer = await fetch("/openapi.json");
SwaggerUIBundle({
  spec: withEmptyForms(await answer.json()),
  dom_id: "#operations",
  plugins: [playing],
  deepLinking: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // it would send the document to a service elsewhere
});
