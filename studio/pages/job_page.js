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
  if (find("actions").innerHTML !== update.actions) find("actions").innerHTML = update.actions; // as above
  find("share").hidden = !update.active;
  if (update.share === null) find("share").removeAttribute("value");
  else find("share").value = update.share;
}

const source = new EventSource(`/job/${readJson("job")}/events`);
source.onmessage = (event) => {
  const update = JSON.parse(event.data);
  find("message").textContent = "";
  show(update);
  if (!update.active) source.close();
};
source.onerror = () => {
  find("message").textContent = "The studio does not answer. The job keeps running; start the studio again with its command.";
};
