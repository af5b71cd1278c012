// Zip files, written without compression and read with or without; and a library as one.

const LOCAL = 0x04034b50;
const CENTRAL = 0x02014b50;
const END = 0x06054b50;
const UTF8 = 0x0800;
const MANIFEST = "library.json";

const TABLE = Uint32Array.from({ length: 256 }, (_, n) => {
  let value = n;
  for (let bit = 0; bit < 8; bit += 1) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});

function crc32(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes) value = TABLE[(value ^ byte) & 0xff] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

// Numbers as little-endian bytes; each is [value, number of bytes].
function pack(...numbers) {
  return Uint8Array.from(numbers.flatMap(([value, size]) => Array.from({ length: size }, (_, i) => (value / 2 ** (8 * i)) & 0xff)));
}

// files: [{ name, blob }]; equal names are numbered.
export async function zip(files) {
  const parts = [];
  const directory = [];
  const taken = new Set();
  let offset = 0;
  for (const { name: wanted, blob } of files) {
    let name = wanted;
    for (let n = 2; taken.has(name); n += 1) name = wanted.replace(/(\.\w+)?$/, `-${n}$1`);
    taken.add(name);
    const path = new TextEncoder().encode(name);
    const data = new Uint8Array(await blob.arrayBuffer());
    // Version 2.0, UTF-8 names, stored, 1 January 1980.
    const shared = [[20, 2], [UTF8, 2], [0, 2], [0, 2], [0x21, 2], [crc32(data), 4], [data.length, 4], [data.length, 4], [path.length, 2], [0, 2]];
    const head = pack([LOCAL, 4], ...shared);
    parts.push(head, path, data);
    directory.push(pack([CENTRAL, 4], [20, 2], ...shared, [0, 2], [0, 2], [0, 2], [0, 4], [offset, 4]), path);
    offset += head.length + path.length + data.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0);
  const count = directory.length / 2;
  const end = pack([END, 4], [0, 2], [0, 2], [count, 2], [count, 2], [size, 4], [offset, 4], [0, 2]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

async function inflate(data) {
  const stream = new Blob([data]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A zip's files by name. Throws if it is none.
export async function unzip(blob) {
  const buffer = await blob.arrayBuffer();
  const view = new DataView(buffer);
  let end = buffer.byteLength - 22;
  while (end >= 0 && view.getUint32(end, true) !== END) end -= 1;
  if (end < 0) throw new Error("this is not a zip file");
  const files = new Map();
  let at = view.getUint32(end + 16, true);
  for (let left = view.getUint16(end + 10, true); left > 0; left -= 1) {
    if (view.getUint32(at, true) !== CENTRAL) throw new Error("the zip file is damaged");
    const [method, size] = [view.getUint16(at + 10, true), view.getUint32(at + 20, true)];
    const [nameSize, extra, comment] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
    const local = view.getUint32(at + 42, true);
    const start = local + 30 + view.getUint16(local + 26, true) + view.getUint16(local + 28, true);
    const name = new TextDecoder().decode(new Uint8Array(buffer, at + 46, nameSize));
    const data = new Uint8Array(buffer, start, size);
    files.set(name, method === 8 ? await inflate(data) : data);
    at += 46 + nameSize + extra + comment;
  }
  return files;
}

// A library as one file: the sounds, and what is known of them.
export async function exportLibrary(entries, nameOf) {
  const files = entries.map((entry) => ({ name: `sounds/${entry.id}-${nameOf(entry)}`, blob: entry.blob }));
  const records = entries.map(({ blob, ...entry }, i) => ({ ...entry, file: files[i].name }));
  const manifest = new Blob([JSON.stringify({ diffsound: 1, sounds: records }, null, 1)]);
  return zip([{ name: MANIFEST, blob: manifest }, ...files]);
}

export async function importLibrary(blob) {
  const files = await unzip(blob);
  if (!files.has(MANIFEST)) throw new Error("this zip file is not a library of sounds");
  const { sounds } = JSON.parse(new TextDecoder().decode(files.get(MANIFEST)));
  return sounds.filter(({ file, id, sound }) => files.has(file) && typeof id === "string" && sound).map(
    ({ file, ...entry }) => ({ ...entry, blob: new Blob([files.get(file)], { type: "audio/wav" }) }),
  );
}
