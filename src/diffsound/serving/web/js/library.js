// The sounds of this browser, kept in IndexedDB: they survive closing the tab and the server.

const NAME = "diffsound";
const STORE = "sounds";

function settled(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function open() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return settled(request);
}

export class Library {
  // A browser that keeps nothing (a private window, a full disk) still has a page that works.
  static async open() {
    const database = await open().catch(() => null);
    return new Library(database);
  }

  constructor(database) {
    this.database = database;
  }

  async all() {
    if (!this.database) return [];
    const entries = await settled(this.#store("readonly").getAll());
    return entries.sort((a, b) => b.created - a.created || a.take - b.take);
  }

  async count() {
    return this.database ? settled(this.#store("readonly").count()) : 0;
  }

  // Whether the entry was kept.
  async put(entry) {
    if (!this.database) return false;
    return settled(this.#store("readwrite").put(entry)).then(() => true, () => false);
  }

  async remove(id) {
    if (this.database) await settled(this.#store("readwrite").delete(id));
  }

  async clear() {
    if (this.database) await settled(this.#store("readwrite").clear());
  }

  #store(mode) {
    return this.database.transaction(STORE, mode).objectStore(STORE);
  }
}
