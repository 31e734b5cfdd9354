// Sends files into a folder of the studio, piece by piece.
import { request } from "./page.js";

const largest = 4 * 2 ** 20; // bytes of a piece: the server bounds the time of each
const pauses = [1000, 2000, 4000, 8000, 15000]; // milliseconds before each look whether a server that was lost answers again

/** Send a file, and return what the server says of it: `path` below the folder, `was_there`. `tell(share)` is called after each piece. */
export async function send(folder, name, blob, replace = false, tell = () => {}) {
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  for (let offset = 0, lost = 0; ; ) {
    const piece = blob.slice(offset, offset + largest);
    const query = new URLSearchParams({ id, folder, name, offset, size: blob.size, replace: replace ? "yes" : "no" });
    try {
      const stored = await (await request(`/upload?${query}`, piece)).json();
      offset += piece.size;
      lost = 0;
      tell(blob.size ? offset / blob.size : 1);
      if (stored.whole) return stored;
    } catch (error) {
      if (!error.cause || (lost += 1) > pauses.length) throw error;
      offset = await findStored(id, error);
    }
  }
}

/** How much of a file the server has, once it answers again. Throws the error that ended the connection if it does not. */
async function findStored(id, error) {
  for (const pause of pauses) {
    await new Promise((ended) => setTimeout(ended, pause));
    try {
      return (await (await request(`/upload?id=${id}`)).json()).size;
    } catch (again) {
      if (!again.cause) throw again;
    }
  }
  throw error;
}

/** The files of a drop, with their paths, also those in folders. */
async function* walk(entry, path = "") {
  if (entry.isFile) {
    yield [`${path}${entry.name}`, await new Promise((found, failed) => entry.file(found, failed))];
  } else if (entry.isDirectory) {
    const reader = entry.createReader();
    for (;;) { // a reader returns its entries in parts
      const entries = await new Promise((found, failed) => reader.readEntries(found, failed));
      if (!entries.length) return;
      for (const one of entries) yield* walk(one, `${path}${entry.name}/`);
    }
  }
}

const zone = document.querySelector("[data-upload]");
if (zone) {
  const folder = zone.dataset.upload, list = zone.querySelector("ul"), bar = zone.querySelector("progress"), status = zone.querySelector("[role=status]");
  const report = (text, failed) => {
    const item = document.createElement("li");
    item.textContent = text;
    if (failed) item.className = "alarm";
    list.append(item);
  };
  const take = async (found) => {
    let count = 0, hidden = 0;
    list.replaceChildren();
    bar.hidden = false;
    for await (const [name, file] of found) {
      if (name.split("/").some((part) => part.startsWith("."))) { // a system's own files, as .DS_Store
        hidden += 1;
        continue;
      }
      bar.value = 0;
      status.textContent = `Sending ${name}`;
      try {
        const stored = await send(folder, name, file, false, (share) => { bar.value = share; });
        count += 1;
        if (stored.was_there) report(`${stored.path} was there already`);
        else if (stored.path !== name) report(`${name} is stored as ${stored.path}`);
      } catch (error) {
        report(`${name}: ${error.message}`, true);
      }
    }
    if (hidden) report(`${hidden} hidden ${hidden === 1 ? "file was" : "files were"} not sent`);
    bar.hidden = true;
    status.textContent = `${count} ${count === 1 ? "file is" : "files are"} stored.`;
    const noted = list.childElementCount > 0; // to be read before the page is loaded again
    zone.querySelector("[data-reload]").hidden = !noted;
    if (count && !noted) location.reload();
  };
  const choose = async function* (files) {
    for (const file of files) yield [file.webkitRelativePath || file.name, file];
  };
  const gather = async function* (entries) {
    for (const entry of entries) yield* walk(entry);
  };
  for (const input of zone.querySelectorAll("input[type=file]")) {
    input.addEventListener("change", async () => {
      await take(choose([...input.files]));
      input.value = "";
    });
  }
  for (const name of ["dragover", "drop"]) {
    document.addEventListener(name, (event) => event.preventDefault()); // a file dropped beside the zone must not replace the page
  }
  document.addEventListener("drop", (event) => {
    const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean); // now: later they are gone
    if (entries.length) take(gather(entries));
  });
}
