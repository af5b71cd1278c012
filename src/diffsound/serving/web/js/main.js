// The page's first second: the prompt takes a sentence as soon as the server has said what it can do.
// Everything that shows and plays sounds (studio.js) follows, or comes when the visitor needs it sooner.

import { loadBundles } from "./api.js";
import { Composer } from "./composer.js";
import { byId } from "./dom.js";
import { acceptFiles } from "./drop.js";
import { Library } from "./library.js";

const asked = loadBundles();
asked.catch(() => {}); // said below
const composer = new Composer();
const library = Library.open();
let opening = null;

// A browser does not ask twice for a module that failed.
const load = () => import("./studio.js").catch(() => {
  throw new Error("Part of this page did not arrive. Check that the server is running, then reload the page.");
});

function studio() {
  opening ??= Promise.all([load(), asked, library]).then(([{ Studio }, server, kept]) => Studio.open(composer, server, kept));
  return opening;
}

// Do something in the studio; if it cannot be opened, say why.
async function inStudio(act) {
  try {
    await act(await studio());
  } catch (error) {
    composer.complain(error.message);
  }
}

function chooseFile(field) {
  byId(field).addEventListener("change", ({ target }) => {
    const files = [...target.files];
    target.value = "";
    inStudio((opened) => opened.openFiles(files));
  });
}

composer.addEventListener("submit", () => inStudio((opened) => opened.generate(composer.settings())));
byId("open-file").addEventListener("click", () => byId("upload").click());
byId("import-first").addEventListener("click", () => byId("import-file").click());
chooseFile("upload");
chooseFile("import-file");
acceptFiles((files) => inStudio((opened) => opened.openFiles(files)));

try {
  const [{ bundles, limits }, kept] = await Promise.all([asked, library]);
  byId("model").textContent = bundles.length > 1 ? `${bundles.length} models` : `model ${bundles[0].name}`;
  composer.offer(bundles, limits);
  // The page takes the shape it will have, before the sounds are there.
  document.body.classList.toggle("has-results", (await kept.count()) > 0);
  document.documentElement.dataset.ready = "true";
  await inStudio((opened) => opened.welcome());
} catch (error) {
  byId("model").textContent = "";
  composer.complain(error.message);
}
