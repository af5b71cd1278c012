// A button that opens a menu beside it: `.menu > button + [role=menu]`, anywhere in the page.
// Arrow keys move, Escape closes, a click elsewhere closes.

function close(menu, focus = false) {
  const [button, list] = menu.children;
  if (list.hidden) return;
  list.hidden = true;
  button.setAttribute("aria-expanded", "false");
  if (focus) button.focus();
}

function open(menu) {
  const [button, list] = menu.children;
  list.hidden = false;
  button.setAttribute("aria-expanded", "true");
  list.querySelector("[role=menuitem]:not(:disabled)")?.focus();
}

document.addEventListener("click", (event) => {
  const menu = event.target.closest(".menu");
  for (const other of document.querySelectorAll(".menu")) {
    if (other !== menu) close(other);
  }
  if (!menu) return;
  if (menu.children[0].contains(event.target)) {
    if (menu.children[1].hidden) open(menu);
    else close(menu, true);
  } else {
    close(menu, menu.contains(document.activeElement));
  }
});

document.addEventListener("keydown", (event) => {
  const menu = event.target.closest?.(".menu");
  if (!menu || menu.children[1].hidden) return;
  const items = [...menu.querySelectorAll("[role=menuitem]:not(:disabled)")];
  const place = items.indexOf(document.activeElement);
  const next = { ArrowDown: place + 1, ArrowUp: place - 1, Home: 0, End: items.length - 1 }[event.key];
  if (event.key === "Escape") close(menu, true);
  else if (event.key === "Tab") close(menu);
  else if (next !== undefined) items[(next + items.length) % items.length].focus();
  if (event.key === "Escape" || next !== undefined) {
    event.preventDefault();
    event.stopPropagation();
  }
}, true);
