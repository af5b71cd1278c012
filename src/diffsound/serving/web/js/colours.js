// Colours for canvases, which know no custom properties.

// A custom property of the page as the colour it is at present: --wave → rgb(…).
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// The spectrogram's colours: magma, from its values at nine equal steps (Smith and van der Walt, CC0).

const MAGMA = ["000004", "1d1147", "51127c", "822681", "b73779", "e75263", "fc8961", "fec488", "fcfdbf"];

const channels = (hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);

// 256 entries of [red, green, blue, alpha], each 0 to 1.
export function magma() {
  const stops = MAGMA.map(channels);
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(place), stops.length - 2);
    return [...stops[low].map((value, c) => value + (place - low) * (stops[low + 1][c] - value)), 1];
  });
}
