import { brokenOff, check, find, readLines, request } from "./page.js";

// Each turn: { question, element, answers }, where answers has { model, text, body, end, element } by side: `body` is that of the request,
// `end` the server's finish reason, "" for an answer that failed or was stopped. Each side sees its own answers only.
let turns = [], working = null;

const report = (text) => { find("problem").textContent = text; };
const number = (id) => (find(id).value === "" ? undefined : find(id).valueAsNumber);
const chosen = () => ["a", "b"].map((side) => [side, find(`model-${side}`).value]).filter(([, model]) => model);

function enable() {
  find("send").disabled = working !== null;
  find("stop").disabled = working === null;
  for (const button of document.querySelectorAll("#turns button, #new")) button.disabled = working !== null;
}

function listMessages(side, last) {
  const system = find("system").value.trim(), found = system ? [{ role: "system", content: system }] : [];
  turns.slice(0, last + 1).forEach((turn, at) => {
    found.push({ role: "user", content: turn.question });
    if (at < last) found.push({ role: "assistant", content: turn.answers[side].text });
  });
  return found;
}

function makeBody(turn, side) {
  return {
    model: turn.answers[side].model, messages: listMessages(side, turns.indexOf(turn)), stream: true,
    temperature: number("temperature"), top_p: number("top-p"), seed: number("seed"), max_tokens: number("tokens"),
  };
}

function clone(id) {
  return find(id).content.firstElementChild.cloneNode(true);
}

function addTurn(question) {
  const turn = { question, element: clone("turn"), answers: {} };
  turn.element.querySelector(".words").textContent = question;
  turn.element.querySelector(".edit").addEventListener("click", () => edit(turns.indexOf(turn)));
  for (const [side, model] of chosen()) {
    const element = clone("answer");
    element.querySelector(".eyebrow").textContent = model;
    element.querySelector(".again").addEventListener("click", () => regenerate(turn, side));
    element.querySelector(".copy").addEventListener("click", () => copy(turn, side));
    turn.element.querySelector(".pair").append(element);
    turn.answers[side] = { model, text: "", body: null, end: "", element };
  }
  turns.push(turn);
  find("turns").append(turn.element);
  return turn;
}

async function readAnswer(response, answer) {
  let end = "";
  for await (const line of readLines(response)) {
    if (!line.startsWith("data: ") || line === "data: [DONE]") continue;
    const event = JSON.parse(line.slice(6));
    if (event.error) throw new Error(event.error.message);
    answer.text += event.choices[0]?.delta.content ?? "";
    end = event.choices[0]?.finish_reason ?? end;
    answer.element.querySelector(".words").textContent = answer.text;
  }
  if (!end) throw new Error(brokenOff);
  return end;
}

async function complete(turn, side, signal) {
  const answer = turn.answers[side], state = answer.element.querySelector(".state");
  Object.assign(answer, { text: "", body: makeBody(turn, side), end: "" });
  answer.element.querySelector(".words").textContent = "";
  answer.element.querySelector(".buttons").hidden = true;
  answer.element.ariaBusy = "true";
  state.textContent = "Waiting for the model …";
  try {
    answer.end = await readAnswer(await request("/v1/chat/completions", answer.body, signal), answer);
    state.textContent = answer.end === "length" ? "Cut off at the limit of tokens." : answer.text ? "" : "The answer is empty.";
  } catch (error) {
    state.textContent = error.name === "AbortError" ? "Stopped." : error.message;
  }
  answer.element.ariaBusy = "false";
  answer.element.querySelector(".buttons").hidden = false;
  // A model that is trained on a part of an answer learns to stop there.
  answer.element.querySelector(".copy").hidden = !turns.every(({ answers }) => answers[side].end === "stop");
}

async function run(turn, sides) {
  working = new AbortController();
  report("");
  enable();
  await Promise.all(sides.map((side) => complete(turn, side, working.signal)));
  working = null;
  enable();
}

async function send() {
  const question = find("message").value.trim();
  if (working !== null || !question || !check()) return;
  if (turns.some(({ answers }) => Object.values(answers).some(({ end }) => !end))) {
    report("An answer failed or was stopped, and the next one would build on it: regenerate it, or edit its message, first.");
    return;
  }
  find("message").value = "";
  const turn = addTurn(question);
  turn.element.scrollIntoView({ block: "nearest" });
  await run(turn, Object.keys(turn.answers));
  find("message").focus();
}

function cut(first) {
  for (const turn of turns.splice(first)) turn.element.remove();
  find("copied").hidden = true;
  report("");
}

function edit(at) {
  find("message").value = turns[at].question;
  cut(at);
  find("message").focus();
}

async function regenerate(turn, side) {
  if (!check()) return;
  const { end, body } = turn.answers[side], next = makeBody(turn, side);
  const greedy = next.temperature === 0 || (next.temperature === undefined && next.top_p === undefined);
  if (end && greedy && JSON.stringify(body) === JSON.stringify(next)) {
    report("A greedy answer is always the same: choose a temperature in the settings first.");
    return;
  }
  if (number("seed") !== undefined) find("seed").value = number("seed") + 1;
  cut(turns.indexOf(turn) + 1); // later turns answered another text
  await run(turn, [side]);
}

async function copy(turn, side) {
  const { body, text } = turn.answers[side];
  find("row").value = JSON.stringify({ messages: [...body.messages, { role: "assistant", content: text }] });
  find("copied").hidden = false;
  try {
    await navigator.clipboard.writeText(find("row").value);
    find("copied-state").textContent = "Copied. Append it to a .jsonl file to train on it.";
  } catch {
    find("row").select();
    find("copied-state").textContent = "Copy the row above, and append it to a .jsonl file to train on it.";
  }
}

find("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
find("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
find("stop").addEventListener("click", () => working?.abort());
find("new").addEventListener("click", () => cut(0));
// Another model did not give the earlier answers.
for (const side of ["a", "b"]) find(`model-${side}`).addEventListener("change", () => { working?.abort(); cut(0); });
enable();
