"use strict";
// A link to something inside a folded table opens it; paper has no folds.
const reveal = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  const fold = target && target.closest("details");
  if (fold) { fold.open = true; target.scrollIntoView(); }
};
window.addEventListener("hashchange", reveal);
window.addEventListener("beforeprint", () => { for (const fold of document.querySelectorAll("#tables details")) fold.open = true; });
reveal();
// A click on a head sorts its table: numbers by their value, cells without one last; a second click turns the order.
const cellOf = (row, at) => row.cells[at].textContent;
const valueOf = (text) => { const number = parseFloat(text.replace(/^< /, "")); return Number.isNaN(number) ? null : number; };
const sortBy = (table, at, down) => {
  const body = table.tBodies[0], numeric = table.tHead.rows[0].cells[at].classList.contains("number");
  const key = (row) => (numeric ? valueOf(cellOf(row, at)) : cellOf(row, at));
  const order = (a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === null || y === null) return (x === null) - (y === null);
    return (numeric ? x - y : x.localeCompare(y)) * (down ? -1 : 1);
  };
  body.append(...[...body.rows].sort(order));
};
for (const table of document.querySelectorAll("#tables table")) {
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      sortBy(table, at, down);
    });
  });
}
