"use strict";
// Every grade is kept in localStorage first; sending a copy is repeated until the server has answered.
// A reload or a lost connection loses nothing.
const content = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const memory = "listening-test-" + content.test;
const RETRY = { first: 1000, most: 30000 };
const GRADES = [0, 1, 2, 3, 4, 5];
const served = location.protocol.startsWith("http");

const state = restore() || begin();
let retry = RETRY.first;
let timer = null;
let sending = false;

function restore() {
  try {
    return JSON.parse(localStorage.getItem(memory));
  } catch {
    return null;
  }
}

function begin() {
  const listener = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) =>
    byte.toString(16).padStart(2, "0")).join("");
  const pages = shuffled(content.texts.map((_, text) => ({
    text,
    sounds: shuffled(content.sounds.filter((s) => s.text === text).map((s) => s.name)),
  })));
  return { listener, pages, at: -1, grades: {}, times: {}, changes: 0, sent: 0 };
}

function shuffled(items) {
  const order = [...items];
  for (let i = order.length - 1; i > 0; i--) {
    const j = Math.floor(Math.random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

function remember() {
  localStorage.setItem(memory, JSON.stringify(state));
}

function isDone(name) {
  const grades = state.grades[name] || {};
  return content.scales.every((scale) => scale in grades);
}

function finished() {
  const ratings = {};
  for (const name of Object.keys(state.grades))
    if (isDone(name)) ratings[name] = { ...state.grades[name], at: state.times[name] };
  return { test: content.test, listener: state.listener, ratings };
}

function grade(name, scale, value) {
  state.grades[name] = { ...state.grades[name], [scale]: value };
  state.times[name] = Date.now();
  state.changes += 1;
  remember();
  byId(name).classList.toggle("done", isDone(name));
  tell();
  if (isDone(name)) send();
}

async function send() {
  if (!served || sending || state.sent === state.changes) return;
  clearTimeout(timer);
  sending = true;
  const upTo = state.changes;
  try {
    const answer = await fetch("ratings/" + state.listener, {
      method: "PUT",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(finished()),
    });
    if (!answer.ok) throw new Error(await answer.text());
    state.sent = upTo;
    retry = RETRY.first;
    remember();
  } catch {
    timer = setTimeout(send, retry);
    retry = Math.min(2 * retry, RETRY.most);
  }
  sending = false;
  tell();
  if (state.sent === upTo && state.changes > upTo) send();
}

function tell() {
  const done = content.sounds.filter((sound) => isDone(sound.name)).length;
  byId("progress").textContent = `${done} of ${content.sounds.length} sounds graded`;
  const waiting = state.changes !== state.sent;
  let text = "";
  if (!served) text = "Kept in this browser: download your ratings when you are done.";
  else if (waiting) text = "Not sent yet; kept in this browser and retried automatically.";
  else if (done) text = "Everything is saved.";
  byId("state").textContent = text;
  byId("sent").textContent = text;
  const page = state.pages[state.at];
  byId("next").disabled = Boolean(page) && !page.sounds.every(isDone);
}

function soundCard(name, number) {
  const card = document.createElement("section");
  card.className = "sound";
  card.id = name;
  card.classList.toggle("done", isDone(name));
  const player = document.createElement("audio");
  player.controls = true;
  player.src = content.sounds.find((sound) => sound.name === name).url;
  player.setAttribute("aria-label", `Sound ${number}`);
  card.append(player);
  for (const scale of content.scales) {
    const set = document.createElement("fieldset");
    const legend = document.createElement("legend");
    legend.textContent = scale;
    set.append(legend);
    for (const value of GRADES) {
      const label = document.createElement("label");
      const button = document.createElement("input");
      button.type = "radio";
      button.name = `${name}-${scale}`;
      button.value = value;
      button.checked = (state.grades[name] || {})[scale] === value;
      button.addEventListener("change", () => grade(name, scale, value));
      label.append(button, ` ${value}`);
      set.append(label);
    }
    card.append(set);
  }
  return card;
}

function show() {
  const page = state.pages[state.at];
  byId("welcome").hidden = state.at !== -1;
  byId("test").hidden = !page;
  byId("end").hidden = state.at < state.pages.length;
  if (page) {
    byId("sentence").textContent = content.texts[page.text];
    byId("sounds").replaceChildren(...page.sounds.map((name, i) => soundCard(name, i + 1)));
  }
  tell();
}

function move(steps) {
  state.at = Math.max(-1, Math.min(state.at + steps, state.pages.length));
  remember();
  show();
  scrollTo(0, 0);
}

function download() {
  const link = document.createElement("a");
  const file = new Blob([JSON.stringify(finished(), null, 1)], { type: "application/json" });
  link.href = URL.createObjectURL(file);
  link.download = `${state.listener}.json`;
  link.click();
  URL.revokeObjectURL(link.href);
}

byId("begin").addEventListener("click", () => move(1));
byId("next").addEventListener("click", () => move(1));
byId("back").addEventListener("click", () => move(-1));
byId("review").addEventListener("click", () => move(-1));
byId("download").addEventListener("click", download);
addEventListener("online", send);
show();
send();
