"use strict";
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
  }));
}
document.addEventListener("play", (event) => {
  for (const other of document.querySelectorAll("audio")) if (other !== event.target) other.pause();
}, true);
