// A job: follows its state and its log.
import { find, readJson } from "./page.js";
import "./studio_form.js";

const log = find("log");
let whole = "";
const longest = 400_000; // characters of the log that stay on the page

function show(update) {
  if (update.log) {
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (update.first) whole = "";
    whole = (whole + update.log[0]).slice(-longest);
    log.textContent = whole + update.log[1];
    if (follows) log.scrollTop = log.scrollHeight;
  }
  if (find("state").innerHTML !== update.state) find("state").innerHTML = update.state; // made by the server's template
  if (find("text").textContent !== update.text) find("text").textContent = update.text;
  const actions = find("actions");
  if (actions.innerHTML !== update.actions) {
    const held = actions.contains(document.activeElement);
    actions.innerHTML = update.actions; // as above
    if (held) actions.querySelector("a, button")?.focus(); // else a keyboard would begin again at the top of the page
  }
  find("share").hidden = !update.active;
  if (update.share === null) find("share").removeAttribute("value");
  else find("share").value = update.share;
}

let source, ended = false;
/** Follow the job while the page is visible: browsers open six connections to a server, and hidden pages would use all of them. */
function follow() {
  source?.close();
  if (document.hidden || ended) return;
  source = new EventSource(`/job/${readJson("job")}/events`);
  source.onmessage = (event) => {
    const update = JSON.parse(event.data);
    find("message").textContent = "";
    show(update);
    ended = !update.active;
    if (ended) source.close();
  };
  source.onerror = () => {
    find("message").textContent = "The studio does not answer. The job keeps running; start the studio again with its command.";
  };
}
document.addEventListener("visibilitychange", follow);
follow();
