import { find, readLines, request } from "./page.js";

// Each turn: { question, element, answers }, where answers has { model, text, element } by side. Each side sees its own answers only.
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
    turn.answers[side] = { model, text: "", element };
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
  return end;
}

async function complete(turn, side, signal) {
  const answer = turn.answers[side], state = answer.element.querySelector(".state");
  answer.text = "";
  answer.element.querySelector(".words").textContent = "";
  answer.element.querySelector(".buttons").hidden = true;
  answer.element.ariaBusy = "true";
  state.textContent = "Waiting for the model …";
  const body = {
    model: answer.model, messages: listMessages(side, turns.indexOf(turn)), stream: true,
    temperature: number("temperature"), top_p: number("top-p"), seed: number("seed"), max_tokens: number("tokens"),
  };
  try {
    const end = await readAnswer(await request("/v1/chat/completions", body, signal), answer);
    state.textContent = end === "length" ? "Cut off at the limit of tokens." : answer.text ? "" : "The answer is empty.";
  } catch (error) {
    state.textContent = error.name === "AbortError" ? "Stopped." : error.message;
  }
  answer.element.ariaBusy = "false";
  answer.element.querySelector(".buttons").hidden = false;
}

async function run(turn, sides) {
  working = new AbortController();
  report("");
  enable();
  await Promise.all(sides.map((side) => complete(turn, side, working.signal)));
  working = null;
  enable();
}

/** Whether all settings are numbers in their range. Shows the first one that is not. */
function check() {
  const wrong = document.querySelector("input:invalid");
  if (wrong) {
    wrong.closest("details").open = true;
    wrong.reportValidity();
  }
  return !wrong;
}

async function send() {
  const question = find("message").value.trim();
  if (working !== null || !question || !check()) return;
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
  if (!number("temperature") && number("top-p") === undefined) {
    report("A greedy answer is always the same: choose a temperature in the settings first.");
    return;
  }
  if (number("seed") !== undefined) find("seed").value = number("seed") + 1;
  cut(turns.indexOf(turn) + 1); // later turns answered another text
  await run(turn, [side]);
}

async function copy(turn, side) {
  const answer = { role: "assistant", content: turn.answers[side].text };
  find("row").value = JSON.stringify({ messages: [...listMessages(side, turns.indexOf(turn)), answer] });
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
