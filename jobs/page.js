"use strict";
for (const head of document.querySelectorAll("th > button")) {
  head.addEventListener("click", () => {
    const cell = head.parentElement;
    const body = cell.closest("table").tBodies[0];
    const place = cell.cellIndex;
    const up = cell.getAttribute("aria-sort") === "descending";
    for (const other of cell.parentElement.cells) other.removeAttribute("aria-sort");
    cell.setAttribute("aria-sort", up ? "ascending" : "descending");
    const key = (row) => row.cells[place].dataset.key;
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x !== undefined && y !== undefined) return Number(x) - Number(y);
      if (x !== undefined || y !== undefined) return x === undefined ? -1 : 1;
      return a.cells[place].textContent.localeCompare(b.cells[place].textContent);
    };
    const rows = [...body.rows].sort((a, b) => (up ? compare(a, b) : compare(b, a)));
    for (const row of rows) row.classList.remove("first");
    body.append(...rows);
  });
}
