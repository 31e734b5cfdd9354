// What the scripts of the served pages share.
export const find = (id) => document.getElementById(id);
export const readJson = (id) => JSON.parse(find(id).textContent);

/** The response to a request: a GET, or a POST of `body` (a form, bytes, or a value that becomes JSON). Throws an error with the server's sentence; with a `cause` if the
 * server did not answer. */
export async function request(path, body, signal) {
  const options = { signal };
  if (body !== undefined) {
    const json = !(body instanceof FormData || body instanceof Blob);
    Object.assign(options, { method: "POST", body: json ? JSON.stringify(body) : body });
    if (json) options.headers = { "content-type": "application/json" };
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer. Check that its command is still running, then try again.", { cause: error });
  }
  if (response.ok) return response;
  const text = await response.text();
  let answer = {};
  try { answer = JSON.parse(text); } catch { answer = { detail: text }; }
  throw new Error(answer?.error?.message || answer?.detail || `the server answered ${response.status}`);
}

/** Whether all inputs of a page, or of a form, are valid. Shows the first one that is not: the browser cannot show a message in closed details. */
export function check(form = document) {
  const wrong = form.querySelector("input:invalid"), details = wrong?.closest("details");
  if (details) details.open = true;
  return wrong?.reportValidity() ?? true;
}

export const brokenOff = "The answer was broken off; the terminal of the server says why. Try again once it runs.";

/** The lines of a response as they come. Throws an error with a sentence if the connection is lost. */
export async function* readLines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { value, done } = await reader.read().catch((error) => { // browsers word it as "network error" or "Error in input stream"
      throw error.name === "AbortError" ? error : new Error(brokenOff, { cause: error });
    });
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    yield* lines;
  }
}

document.addEventListener("timeupdate", ({ target }) => {
  target.closest(".player")?.style.setProperty("--at", target.currentTime / target.duration || 0);
}, true);
document.addEventListener("play", ({ target }) => {
  for (const other of document.querySelectorAll("audio")) if (other !== target) other.pause();
}, true);
document.addEventListener("click", (event) => {
  const picture = event.target.closest(".spectrogram"), audio = picture?.closest(".player").querySelector("audio");
  if (!audio?.duration) return;
  const place = picture.getBoundingClientRect();
  audio.currentTime = audio.duration * (event.clientX - place.left) / place.width;
});
// A button that was clicked keeps the focus, and the next press of Space, meant to play, would click it again.
document.addEventListener("click", (event) => event.detail && event.target.closest("button")?.blur());
