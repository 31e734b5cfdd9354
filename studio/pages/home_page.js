// Home: keeps the list of jobs fresh.
import { find, request } from "./page.js";
import "./studio_form.js";

let shown = find("jobs").innerHTML;
async function refresh() {
  if (document.hidden) return;
  try {
    const fresh = await (await request("/jobs")).text();
    if (fresh !== shown && !find("jobs").contains(document.activeElement)) find("jobs").innerHTML = shown = fresh;
    find("message").textContent = "";
  } catch (error) {
    find("message").textContent = error.message;
  }
}
setInterval(refresh, 3000);
document.addEventListener("visibilitychange", refresh);
