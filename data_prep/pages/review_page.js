import { find, readJson, request } from "./page.js";

const ids = readJson("ids"), player = document.querySelector("audio");
const buttons = ["reject", "text", "keep", "previous", "undo", "next"].map(find);
let at = 0, busy = false;

function show(clip) {
  const address = encodeURIComponent(clip.id), picture = new Image();
  find("said").value = clip.text;
  find("note").value = clip.note;
  find("facts").innerHTML = clip.facts; // made by the server's template, which escapes all texts
  find("place").textContent = `${at + 1} of ${ids.length}`;
  picture.alt = "Spectrogram, 0 to 12 kHz";
  picture.src = `/picture?id=${address}`;
  document.querySelector(".spectrogram").replaceChildren(picture);
  player.src = `/sound?id=${address}`;
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
  const clip = await (await request(`/clip?id=${encodeURIComponent(ids[next])}`)).json();
  at = next;
  show(clip);
}

const decide = (action) => act(async () => {
  await request("/decision", { id: ids[at], action, text: find("said").value, note: find("note").value });
  await move(action === "undo" ? 0 : 1);
});

for (const button of buttons) {
  const steps = { previous: -1, next: 1 }[button.id];
  button.disabled = ids.length === 0;
  button.addEventListener("click", () => (steps ? act(() => move(steps)) : decide(button.id)));
}
for (const select of document.querySelectorAll("#filters select")) select.addEventListener("change", () => find("filters").requestSubmit());

const presses = { ArrowRight: "next", j: "next", ArrowLeft: "previous", k: "keep", r: "reject", u: "undo" };
document.addEventListener("keydown", (event) => {
  const writing = event.target.matches(event.key === " " ? "input, textarea, select, button, audio" : "input, textarea, select, audio");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("text").click();
  else if (writing || event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === " ") player.paused ? player.play().catch(() => {}) : player.pause();
  else if (presses[event.key]) find(presses[event.key]).click();
  else return;
  event.preventDefault();
});
