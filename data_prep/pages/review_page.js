import { find, readJson, request } from "./page.js";

const ids = readJson("ids"), player = document.querySelector("audio");
const buttons = ["reject", "text", "keep", "previous", "undo", "next"].map(find);
let at = 0, busy = false; // addresses are relative: the studio serves the page below one of its own

function show(clip) {
  const address = encodeURIComponent(clip.id), picture = new Image();
  find("said").value = clip.text;
  find("note").value = clip.note;
  find("facts").innerHTML = clip.facts; // made by the server's template, which escapes all texts
  find("place").textContent = `${at + 1} of ${ids.length}`;
  picture.alt = "Spectrogram, 0 to 12 kHz";
  picture.src = `picture?id=${address}`;
  document.querySelector(".spectrogram").replaceChildren(picture);
  player.src = `sound?id=${address}`;
}

// One action at a time: a key that is pressed before the next clip is shown would decide about a clip that nobody has seen.
async function act(work) {
  if (busy || ids.length === 0) return;
  busy = true;
  find("message").textContent = "";
  try {
    await work();
  } catch (error) {
    find("message").textContent = error.message;
  }
  busy = false;
}

async function move(steps) {
  const next = Math.min(Math.max(at + steps, 0), ids.length - 1);
  const clip = await (await request(`clip?id=${encodeURIComponent(ids[next])}`)).json();
  at = next;
  show(clip);
}

const decide = (action) => act(async () => {
  await request("decision", { id: ids[at], action, text: find("said").value, note: find("note").value });
  await move(action === "undo" ? 0 : 1);
});

const steps = { previous: -1, next: 1 };
for (const button of buttons) {
  button.disabled = ids.length === 0;
  button.addEventListener("click", () => (steps[button.id] ? act(() => move(steps[button.id])) : decide(button.id)));
}
for (const select of document.querySelectorAll("#filters select")) select.addEventListener("change", () => find("filters").requestSubmit());

const presses = { ArrowRight: "next", j: "next", ArrowLeft: "previous", k: "keep", r: "reject", u: "undo" };
document.addEventListener("keydown", (event) => {
  const writing = event.target.matches(event.key === " " ? "input, textarea, select, button, audio" : "input, textarea, select, audio");
  const saves = event.key === "Enter" && (event.ctrlKey || event.metaKey);
  if (!saves && (writing || event.ctrlKey || event.metaKey || event.altKey)) return;
  const pressed = saves ? "text" : presses[event.key];
  if (!pressed && event.key !== " " && !(event.repeat && event.key === "Enter")) return;
  event.preventDefault();
  if (event.repeat && !steps[pressed]) return; // a held key would decide about clips that nobody has played
  if (event.key === " ") player.paused ? player.play().catch(() => {}) : player.pause();
  else find(pressed).click();
});
