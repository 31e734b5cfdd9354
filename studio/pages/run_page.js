// A run: refreshes curves and samples while it trains.
import { find, readJson, request } from "./page.js";
import "./studio_form.js";

const address = `/run/live?run=${encodeURIComponent(readJson("run"))}`;
async function refresh() {
  const live = find("live");
  const playing = [...live.querySelectorAll("audio")].some((one) => !one.paused);
  if (document.hidden || playing || !live.querySelector(".state.running")) return;
  try {
    live.innerHTML = await (await request(address)).text(); // made by the server's template, which escapes all texts
  } catch (error) {
    find("message").textContent = error.message;
  }
}
setInterval(refresh, 3000);
