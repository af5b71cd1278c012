// The visit's sounds, newest first; they survive a reload of the page as long as the server has them.

import { Card } from "./card.js";

const STORED = "diffsound-history";
const MAX_STORED = 30;

export class History {
  constructor(element, onCard) {
    this.element = element;
    this.onCard = onCard;
    this.groups = [];
  }

  // A new group of cards on top.
  open(title, note, count) {
    const template = document.getElementById("group-template");
    const element = template.content.firstElementChild.cloneNode(true);
    element.querySelector("h2").textContent = title;
    element.querySelector(".quiet").textContent = note;
    const cards = Array.from({ length: count }, (_, i) => new Card(count > 1 ? `${title}, take ${i + 1}` : title));
    for (const card of cards) {
      element.querySelector(".cards").append(card.element);
      this.onCard(card);
    }
    this.element.prepend(element);
    document.getElementById("empty").hidden = true;
    const group = { title, note, cards, element };
    this.groups.unshift(group);
    return group;
  }

  store() {
    const kept = this.groups
      .map(({ title, note, cards }) => ({ title, note, sounds: cards.map((card) => card.sound).filter(Boolean) }))
      .filter((group) => group.sounds.length)
      .slice(0, MAX_STORED);
    try {
      sessionStorage.setItem(STORED, JSON.stringify(kept));
    } catch {
      // The browser's store is full: the page works on, a reload forgets.
    }
  }

  restore() {
    let kept = [];
    try {
      kept = JSON.parse(sessionStorage.getItem(STORED)) || [];
    } catch {
      return;
    }
    for (const { title, note, sounds } of kept.reverse()) {
      const group = this.open(title, note, sounds.length);
      sounds.forEach((sound, i) => group.cards[i].finish(sound));
    }
  }
}
