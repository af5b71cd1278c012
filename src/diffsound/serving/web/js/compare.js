// Two sounds, A and B, heard in turn from the same moment on.

import { byId, press } from "./dom.js";

const sides = { a: null, b: null };
let active = "a";
const bar = () => byId("compare");

const other = (side) => (side === "a" ? "b" : "a");

function show() {
  for (const [side, card] of Object.entries(sides)) {
    const button = bar().querySelector(`[data-side=${side}]`);
    button.querySelector("span").textContent = card?.entry.name ?? "choose a second sound";
    button.disabled = !card;
    press(button, side === active);
  }
  const complete = sides.a && sides.b;
  bar().querySelector(".switch").disabled = !complete;
  bar().hidden = !sides.a && !sides.b;
}

function mark(card, side) {
  const button = card.element.querySelector(".compare-button");
  press(button, side !== null);
  button.firstElementChild.textContent = side ? side.toUpperCase() : "A/B";
}

function showPlaying() {
  const playing = sides[active]?.scope.isPlaying ?? false;
  bar().classList.toggle("playing", playing);
  bar().querySelector(".play").setAttribute("aria-label", playing ? "Pause the comparison" : "Play the comparison");
}

function listen(side) {
  if (!sides[side] || side === active) return;
  const [from, to] = [sides[active].scope, sides[side].scope];
  const { position, isPlaying } = from;
  from.pause();
  active = side;
  to.seek(Math.min(position, to.seconds));
  if (isPlaying) to.play();
  show();
}

// Take a card into the comparison, or out of it.
export function compare(card) {
  const side = Object.keys(sides).find((one) => sides[one] === card);
  if (side) {
    leaveComparison(card);
    return;
  }
  const free = sides.a ? "b" : "a";
  if (sides[free]) mark(sides[free], null);
  sides[free] = card;
  mark(card, free);
  card.scope.addEventListener("playing", showPlaying);
  show();
}

export function leaveComparison(card) {
  const side = Object.keys(sides).find((one) => sides[one] === card);
  if (!side) return;
  card.scope.pause();
  card.scope.removeEventListener("playing", showPlaying);
  mark(card, null);
  sides[side] = null;
  if (sides[other(side)]) active = other(side);
  show();
}

export function switchSides() {
  if (sides.a && sides.b) listen(other(active));
}

bar().addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.dataset.side) listen(button.dataset.side);
  if (button.matches(".switch")) switchSides();
  if (button.matches(".play")) sides[active]?.scope.toggle();
  if (button.matches(".close")) [sides.a, sides.b].filter(Boolean).forEach(leaveComparison);
});
