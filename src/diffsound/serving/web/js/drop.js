// Files dragged into the page.

import { byId } from "./dom.js";

const isFile = (event) => event.dataTransfer?.types.includes("Files") && !event.dataTransfer.types.includes("application/x-diffsound");
let depth = 0;

function show(on) {
  if (!on) depth = 0;
  byId("drop").hidden = !on;
}

// Calls onFiles with the files that are dropped; a sound dragged out of the page does not come back in.
export function acceptFiles(onFiles) {
  addEventListener("dragenter", (event) => {
    if (!isFile(event)) return;
    depth += 1;
    show(true);
  });
  addEventListener("dragleave", (event) => {
    if (!isFile(event)) return;
    depth -= 1;
    if (depth <= 0) show(false);
  });
  addEventListener("dragover", (event) => {
    if (isFile(event)) event.preventDefault();
  });
  addEventListener("drop", (event) => {
    if (!isFile(event)) return;
    event.preventDefault();
    show(false);
    onFiles([...event.dataTransfer.files]);
  });
}
