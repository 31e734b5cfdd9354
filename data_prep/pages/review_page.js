const presses = { ArrowRight: "next", j: "next", ArrowLeft: "previous", k: "keep", r: "reject", u: "undo" };
document.addEventListener("keydown", (event) => {
  const writing = event.target.matches(event.key === " " ? "input, textarea, select, button" : "input, textarea, select");
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) document.getElementById("text")?.click();
  else if (writing || event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === " ") document.querySelector("#player button[aria-label='Play'], #player button[aria-label='Pause']")?.click();
  else if (presses[event.key]) document.getElementById(presses[event.key])?.click();
  else return;
  event.preventDefault();
});
// A button that was clicked keeps the focus, and the next press of Space, meant to play, would click it again.
document.addEventListener("click", (event) => event.detail && event.target.closest("button")?.blur());
