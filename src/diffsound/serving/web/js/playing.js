// Whoever plays: one at a time, all at one volume.

let current = null;
let level = 1;
const players = new Set();

export const volume = () => level;

// A player has pause() and applyVolume().
export function join(player) {
  players.add(player);
  player.applyVolume();
}

export function leave(player) {
  players.delete(player);
}

export function claim(player) {
  if (current && current !== player) current.pause();
  current = player;
}

export function setVolume(value) {
  level = value;
  for (const player of players) player.applyVolume();
}
