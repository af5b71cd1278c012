// Small helpers every module of the page uses.

export const byId = (name) => document.getElementById(name);

export function clone(template) {
  return byId(template).content.firstElementChild.cloneNode(true);
}

export function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

export function isPressed(button) {
  return button.getAttribute("aria-pressed") === "true";
}

// Tell assistive technology, quietly.
export function say(text) {
  byId("status").textContent = text;
}

let hiding = 0;

// A short notice that goes by itself; with `undo`, a way back while it is shown.
export function toast(text, undo = null) {
  const box = byId("toast");
  const button = box.querySelector("button");
  box.querySelector("span").textContent = text;
  button.hidden = !undo;
  button.onclick = () => {
    box.hidden = true;
    undo();
  };
  box.hidden = false;
  clearTimeout(hiding);
  hiding = setTimeout(() => { box.hidden = true; }, undo ? 8000 : 3000);
}

export function save(blob, name) {
  const anchor = document.createElement("a");
  anchor.href = URL.createObjectURL(blob);
  anchor.download = name;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(anchor.href), 10_000);
}

export function fileName(text, seed, format) {
  const words = text.normalize("NFKD").toLowerCase().match(/[a-z0-9]+/g) || ["sound"];
  return `${words.join("-").slice(0, 48)}-${seed}.${format}`;
}

export const seconds = (value) => `${value.toFixed(1)} s`;
