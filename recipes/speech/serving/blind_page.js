import { find, request } from "./page.js";

const sides = ["left", "right"], choices = ["left", "same", "right"];
const players = { left: new Audio(), right: new Audio() };
let trial = null, heard = new Set(), sending = false;

function enable() {
  const ready = trial !== null && heard.size === 2 && !sending;
  for (const choice of choices) find(choice).disabled = !ready;
}

function show(state) {
  for (const side of sides) players[side].pause();
  trial = state.trial ?? null;
  heard = new Set();
  find("trial").hidden = trial === null;
  find("outcome").textContent = state.outcome ?? "";
  if (trial !== null) {
    find("place").textContent = `${state.done + 1} of ${state.total}`;
    find("text").textContent = state.text;
    for (const side of sides) players[side].src = `/clip/${trial}/${side}`;
  }
  enable();
}

async function load() {
  try { show(await (await request("/trial")).json()); } catch (error) { find("message").textContent = error.message; }
}

async function choose(choice) {
  if (find(choice).disabled || sending) return;
  sending = true;
  enable();
  find("message").textContent = "";
  try {
    show(await (await request("/answer", { trial, choice })).json());
  } catch (error) {
    find("message").textContent = error.message;
  }
  sending = false;
  enable();
}

function play(side) {
  if (trial === null) return;
  for (const other of sides) players[other].pause();
  players[side].currentTime = 0;
  players[side].play().catch((error) => { find("message").textContent = error.message; });
}

for (const side of sides) {
  find(`play-${side}`).addEventListener("click", () => play(side));
  players[side].addEventListener("playing", () => { heard.add(side); find(`play-${side}`).classList.add("playing"); enable(); });
  for (const end of ["pause", "ended"]) players[side].addEventListener(end, () => find(`play-${side}`).classList.remove("playing"));
}
for (const choice of choices) find(choice).addEventListener("click", () => choose(choice));
const keys = { 1: () => play("left"), 2: () => play("right") };
const arrows = { ArrowLeft: "left", ArrowDown: "same", ArrowRight: "right" };
document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
  const action = keys[event.key] ?? (arrows[event.key] && (() => choose(arrows[event.key])));
  if (action) { event.preventDefault(); action(); }
});
load();
