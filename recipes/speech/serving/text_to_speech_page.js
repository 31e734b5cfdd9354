import { check, find, readJson, readLines, request } from "./page.js";

const voices = readJson("voices"), sides = ["a", "b"], clone = "the reference clip";
let clip = null, newestClip = 0, recording = null, speaking = null;

const report = (text) => { find("message").textContent = text; };
const choose = (side) => ({ model: find(`model-${side}`).value, voice: find(`voice-${side}`).value });
const chosen = () => sides.map(choose).filter(({ model }) => model);

function enable() {
  const needs = chosen().every(({ voice }) => voice === clone) && clip === null;
  find("speak").disabled = needs || speaking !== null;
  find("speak").textContent = needs ? "Speak: record or upload a reference clip first" : "Speak";
  find("stop").disabled = speaking === null;
}

function offerVoices(side) {
  const select = find(`voice-${side}`), known = voices[find(`model-${side}`).value] ?? [], before = select.value;
  select.replaceChildren(...known.map((name) => new Option(name)));
  select.value = known.includes(before) ? before : known[0] ?? "";
  enable();
}

// The speech of both sides has one scale of time.
function scale() {
  const shown = [...document.querySelectorAll(".result .player")], longest = Math.max(...shown.map((one) => Number(one.dataset.seconds)));
  for (const one of shown) one.style.setProperty("--share", longest ? one.dataset.seconds / longest : 1);
}

function show(update) {
  if (update.error) throw new Error(update.error);
  find(`result-${sides[update.side]}`).innerHTML = update.html; // made by the server's template, which escapes all texts
  scale();
}

async function speak() {
  if (speaking !== null || !check()) return;
  speaking = new AbortController();
  report("");
  enable();
  for (const side of sides) find(`result-${side}`).replaceChildren();
  const body = {
    sides: chosen(), text: find("text").value, clip, clip_text: find("clip-text").value, language: find("language").value || null,
    temperature: find("temperature").valueAsNumber, greedy: find("greedy").checked, seed: find("seed").valueAsNumber,
  };
  try {
    for await (const line of readLines(await request("/speak", body, speaking.signal))) show(JSON.parse(line));
  } catch (error) {
    for (const note of document.querySelectorAll(".result > .note")) note.remove();
    report(error.name === "AbortError" ? "Stopped." : error.message);
  }
  speaking = null;
  enable();
}

async function keepClip(file, name) {
  const number = ++newestClip;
  clip = null;
  enable();
  report("");
  find("clip-state").textContent = "Sending the clip …";
  const form = new FormData();
  form.append("files", file, name);
  try {
    const answer = await (await request("/clip", form)).json();
    if (number !== newestClip) return; // another clip was chosen while this one was sent
    clip = answer.clip;
    find("clip-state").textContent = `${name}: ready. Choose “${clone}” as the voice of a model that can clone.`;
    find("clip-player").src = URL.createObjectURL(file);
    find("clip-player").hidden = false;
  } catch (error) {
    if (number !== newestClip) return;
    find("clip-state").textContent = "No clip yet.";
    report(error.message);
  }
  enable();
}

async function record() {
  if (recording !== null) { recording.stop(); return; }
  find("record").disabled = true; // a second click would start a second recorder
  let stream = null;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
    const recorder = new MediaRecorder(stream), pieces = [];
    recorder.addEventListener("dataavailable", ({ data }) => pieces.push(data));
    recorder.addEventListener("stop", () => {
      const type = recorder.mimeType.split(";")[0];
      for (const track of stream.getTracks()) track.stop();
      recording = null;
      find("record").textContent = "Record again";
      find("record").ariaPressed = "false";
      keepClip(new Blob(pieces, { type }), type === "audio/mp4" ? "recording.m4a" : type === "audio/ogg" ? "recording.ogg" : "recording.webm");
    });
    recorder.start();
    recording = recorder;
    find("record").textContent = "Stop recording";
    find("record").ariaPressed = "true";
  } catch (error) {
    for (const track of stream?.getTracks() ?? []) track.stop();
    report(`The microphone cannot be used (${error.message}). Browsers allow it on this machine or over https.`);
  }
  find("record").disabled = false;
}

for (const side of sides) {
  find(`model-${side}`).addEventListener("change", () => offerVoices(side));
  find(`voice-${side}`).addEventListener("change", enable);
}
find("request").addEventListener("submit", (event) => { event.preventDefault(); speak(); });
find("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || !(event.shiftKey || event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  if (!find("speak").disabled) speak();
});
find("stop").addEventListener("click", () => speaking?.abort());
find("file").addEventListener("change", ({ target }) => target.files.length && keepClip(target.files[0], target.files[0].name));
find("record").addEventListener("click", record);
find("temperature").addEventListener("input", ({ target }) => { find("temperature-value").textContent = target.value; });
enable();
