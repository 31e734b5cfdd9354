// The microphone: shows sentences, records a take of each, judges it, and stores it with its text.
import { find, readJson } from "./page.js";
import { send } from "./file_upload.js";

const { folder, lists, takes, prefix } = readJson("data");
const kept = new Set(takes);
const decibels = (amplitude) => 20 * Math.log10(Math.max(amplitude, 1e-6));
const longest = 60; // seconds of a take
let sentences = [], at = 0, context, recording = null, wav = null;

async function nameTake(sentence) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(sentence)));
  return prefix + [...digest.slice(0, 6)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

const say = (text) => { find("message").textContent = text; };

let offered;
function offer(state) { // "ready", "recording" or "judging"
  const focused = document.activeElement, moves = offered && offered !== state && (focused === document.body || focused.matches("button"));
  offered = state;
  find("record").hidden = state !== "ready";
  find("stop").hidden = state !== "recording";
  for (const id of ["keep", "again"]) find(id).hidden = state !== "judging";
  for (const id of ["previous", "next", "list", "own"]) find(id).disabled = state === "recording";
  if (moves) find({ ready: "record", recording: "stop", judging: "keep" }[state]).focus(); // the button that had the focus is gone
}

/** Whether the sentence may change: a take that is not kept would be lost. */
const mayLeave = () => !wav || confirm("This take is not kept. Discard it?");

async function show(index) {
  at = Math.max(0, Math.min(index, sentences.length - 1));
  recording = wav = null;
  find("take").hidden = true;
  find("judgement").replaceChildren();
  find("number").textContent = at + 1;
  find("count").textContent = sentences.length;
  find("sentence").textContent = sentences[at];
  const names = await Promise.all(sentences.map(nameTake));
  const done = names.filter((name) => kept.has(`${name}.wav`)).length;
  find("known").textContent = `${kept.has(`${names[at]}.wav`) ? "You have a take of this sentence; a new one replaces it. " : ""}${done} of ${sentences.length} recorded.`;
  offer("ready");
}

function use(lines) {
  const found = lines.map((line) => line.trim()).filter(Boolean);
  if (!found.length) return say("The file has no lines with text.");
  say("");
  sentences = found;
  return show(0);
}

async function open() {
  if (context) return;
  const audio = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };
  const stream = await navigator.mediaDevices.getUserMedia({ audio });
  context = new AudioContext();
  await context.audioWorklet.addModule("/assets/microphone_worklet.js");
  const node = new AudioWorkletNode(context, "microphone", { numberOfOutputs: 0 });
  context.createMediaStreamSource(stream).connect(node);
  node.port.onmessage = ({ data }) => {
    const peak = data.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
    find("level").value = decibels(peak);
    find("level-text").textContent = `${decibels(peak).toFixed(0)} dBFS${peak >= 0.99 ? ": too loud, move away or lower the gain" : ""}`;
    if (recording && recording.push(data) * data.length > longest * context.sampleRate) finish();
  };
}

/** A WAV file of 16 bits, mono. */
function encode(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const write = (offset, text) => { for (let index = 0; index < text.length; index += 1) view.setUint8(offset + index, text.charCodeAt(index)); };
  write(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  for (let index = 0; index < samples.length; index += 1) {
    view.setInt16(44 + 2 * index, Math.round(Math.max(-1, Math.min(1, samples[index])) * 32767), true);
  }
  return new Blob([view], { type: "audio/wav" });
}

/** What is wrong with a take, as sentences. Levels are those of frames of 20 ms. */
function judge(samples, rate) {
  const size = Math.round(rate / 50), levels = [];
  let clipped = 0;
  for (let start = 0; start + size <= samples.length; start += size) {
    let sum = 0;
    for (let index = start; index < start + size; index += 1) {
      sum += samples[index] ** 2;
      if (Math.abs(samples[index]) >= 0.99) clipped += 1;
    }
    levels.push(decibels(Math.sqrt(sum / size)));
  }
  levels.sort((one, other) => one - other);
  const noise = levels[Math.floor(levels.length * 0.1)] ?? -120, speech = levels[Math.floor(levels.length * 0.9)] ?? -120, found = [];
  if (clipped) found.push(`Clipped: ${clipped} samples are at the limit. Move away from the microphone or lower its gain.`);
  if (speech < -45) found.push("Nothing or hardly anything was recorded. Check which microphone the browser uses.");
  else if (speech < -32) found.push(`Quiet: speech is at ${speech.toFixed(0)} dBFS. Move closer or raise the gain.`);
  if (speech >= -45 && speech - noise < 25) {
    found.push(`Noisy: speech is only ${(speech - noise).toFixed(0)} dB above the background. Leave half a second of silence before and after, and look for a quieter place.`);
  }
  return found;
}

function finish() {
  if (!recording) return;
  const samples = new Float32Array(recording.length * 4096);
  recording.forEach((block, index) => samples.set(block, 4096 * index));
  recording = null;
  wav = encode(samples, context.sampleRate);
  const found = judge(samples, context.sampleRate);
  find("judgement").replaceChildren(...(found.length ? found : ["Level and noise are good."]).map((text) => {
    const item = document.createElement("li");
    item.textContent = text;
    if (found.length) item.className = "alarm";
    return item;
  }));
  URL.revokeObjectURL(find("take").src);
  find("take").src = URL.createObjectURL(wav);
  find("take").hidden = false;
  offer("judging");
}

async function record() {
  say("");
  try {
    await open();
    await context.resume();
  } catch (error) {
    return say(`The microphone cannot be used (${error.message}). Allow it in the browser, and open the page as localhost or with https.`);
  }
  find("take").hidden = true;
  find("judgement").replaceChildren();
  recording = [];
  return offer("recording");
}

async function keep() {
  const name = await nameTake(sentences[at]);
  find("keep").disabled = true;
  say("");
  try {
    // The text first: a take without one would be read as a recording without a transcript.
    await send(folder, `${name}.txt`, new Blob([`${sentences[at]}\n`]), true);
    await send(folder, `${name}.wav`, wav, true);
    kept.add(`${name}.wav`);
    await show(at + 1);
  } catch (error) {
    say(`The take is not stored: ${error.message}`);
  }
  find("keep").disabled = false;
}

find("record").addEventListener("click", record);
find("again").addEventListener("click", record);
find("stop").addEventListener("click", finish);
find("keep").addEventListener("click", keep);
find("previous").addEventListener("click", () => mayLeave() && show(at - 1));
find("next").addEventListener("click", () => mayLeave() && show(at + 1));
let language = find("list").value;
find("list").addEventListener("change", () => {
  if (!mayLeave()) {
    find("list").value = language;
    return;
  }
  language = find("list").value;
  use(lists[language]);
});
find("own").addEventListener("change", async (event) => mayLeave() && use((await event.target.files[0].text()).split(/\r?\n/)));
addEventListener("beforeunload", (event) => { if (wav || recording) event.preventDefault(); });
if (isSecureContext) {
  use(lists[find("list").value]);
} else { // without it, browsers give pages no microphone
  find("record").disabled = true;
  say("The browser gives this address no microphone. Open the page at localhost, or through a proxy with https.");
}
