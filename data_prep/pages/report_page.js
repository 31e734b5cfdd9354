"use strict";
const PAGE_SIZES = { OL: 8, TBODY: 50 };
for (const list of document.querySelectorAll("ol.clips, table.sortable tbody")) {
  const size = PAGE_SIZES[list.tagName], count = list.children.length;
  if (count <= size) continue;
  const pager = document.createElement("p"), place = document.createElement("span");
  const show = (first) => {
    [...list.children].forEach((one, at) => { one.hidden = at < first || at >= first + size; });
    place.textContent = `${first + 1} to ${Math.min(first + size, count)} of ${count}`;
    back.disabled = first === 0;
    next.disabled = first + size >= count;
    place.dataset.first = first;
  };
  const button = (text, step) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = text;
    made.addEventListener("click", () => show(Number(place.dataset.first) + step));
    return made;
  };
  const back = button("Previous", -size), next = button("Next", size);
  place.setAttribute("aria-live", "polite");
  pager.className = "pager";
  pager.append(back, place, next);
  (list.closest(".scroll") ?? list).after(pager);
  list.addEventListener("sorted", () => show(0));
  list.addEventListener("reveal", (event) => {
    show(Math.floor([...list.children].indexOf(event.target) / size) * size);
    event.target.scrollIntoView();
  });
  show(0);
}
const reveal = () => document.getElementById(location.hash.slice(1))?.dispatchEvent(new Event("reveal", { bubbles: true }));
addEventListener("hashchange", reveal);
reveal();
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  const key = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent;
  const order = (at, numbers) => (a, b) =>
    numbers ? key(a, at) - key(b, at) : key(a, at).localeCompare(key(b, at), undefined, { numeric: true });
  heads.forEach((head, at) => head.firstElementChild.addEventListener("click", () => {
    const numbers = head.classList.contains("num");
    const next = head.ariaSort === (numbers ? "descending" : "ascending") ? (numbers ? "ascending" : "descending") : (numbers ? "descending" : "ascending");
    heads.forEach((one) => one.removeAttribute("aria-sort"));
    head.ariaSort = next;
    const rows = [...table.tBodies[0].rows].sort(order(at, numbers));
    table.tBodies[0].append(...(next === "descending" ? rows.reverse() : rows));
    table.tBodies[0].dispatchEvent(new Event("sorted"));
  }));
}
document.addEventListener("play", (event) => {
  for (const other of document.querySelectorAll("audio")) if (other !== event.target) other.pause();
}, true);
