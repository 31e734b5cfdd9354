// What the pages of the studio share: forms that start a command, and buttons that copy a text.
import { check, find, request } from "./page.js";

/** The values of a form as JSON. Empty fields are left out, so that they have their defaults. */
export function readForm(form) {
  const values = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled || (field.type === "radio" && !field.checked)) continue;
    const value = field.type === "checkbox" ? field.checked : field.value;
    if (value !== "") values[field.name] = value;
  }
  return values;
}

export const say = (text) => { find("message").textContent = text; };

/** Post a body, and show the page that the server names, or its error. */
export async function post(path, body) {
  say("");
  try {
    const { next } = await (await request(path, body)).json();
    if (next) location.assign(next);
  } catch (error) {
    say(error.message);
  }
}

/** Show the command of a form, which changes with its fields. */
async function preview(form, speak = true) {
  const shown = find(form.getAttribute("data-command")); // `form.dataset` would be a field of that name
  try {
    const { command, detail = "" } = await (await request(`${form.getAttribute("action")}/command`, readForm(form))).json();
    shown.textContent = command;
    if (speak) say(detail);
  } catch (error) {
    shown.textContent = "";
    say(error.message);
  }
}

let timer;
function follow(event) {
  const form = event.target.closest("form[data-command]");
  clearTimeout(timer);
  if (form) timer = setTimeout(() => preview(form), 200);
}
document.addEventListener("input", follow);
document.addEventListener("change", follow);
document.addEventListener("submit", async (event) => {
  const form = event.target.closest("form[data-start]");
  if (!form) return;
  event.preventDefault();
  if (!check(form)) return;
  const button = event.submitter;
  if (button) button.disabled = true;
  await post(button?.getAttribute("formaction") || form.getAttribute("action"), readForm(form));
  if (button) button.disabled = false;
});
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-post], button[data-copy]");
  if (button?.dataset.post) await post(button.dataset.post, JSON.parse(button.dataset.body || "{}"));
  if (button?.dataset.copy) {
    const text = find(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text); // without permission or https: the reader copies it
    }
  }
});
// A form that loads the page again for other data: what was entered in the form of its settings is entered there again.
const isChanged = (field) => field.matches("select") ? !field.selectedOptions[0]?.defaultSelected && field.selectedIndex > 0
  : field.type === "checkbox" ? field.checked !== field.defaultChecked : field.value !== field.defaultValue;
for (const form of document.querySelectorAll("form[data-carry]")) {
  const settings = document.getElementById(form.getAttribute("data-carry")), key = `settings of ${location.pathname}`;
  const fields = [...(settings?.elements ?? [])].filter((field) => field.name && field.type !== "hidden");
  const carried = JSON.parse(sessionStorage.getItem(key) ?? "{}");
  if (settings) sessionStorage.removeItem(key);
  for (const field of fields) {
    if (!(field.name in carried)) continue;
    if (field.type === "checkbox") field.checked = carried[field.name];
    else field.value = carried[field.name];
    delete carried[field.name];
  }
  if (settings && Object.keys(carried).length) say(`These have no such setting: ${Object.keys(carried).join(", ")}`);
  form.addEventListener("submit", () => {
    const changed = fields.filter(isChanged).map((field) => [field.name, field.type === "checkbox" ? field.checked : field.value]);
    if (settings) sessionStorage.setItem(key, JSON.stringify(Object.fromEntries(changed)));
  });
}
for (const form of document.querySelectorAll("form[data-command]")) preview(form, false);
