"use strict";
document.body.classList.add("js");

// -- tables, sorted by a column: numbers by their value, words as people sort them

function keyOf(row, column, isWord) {
  const cell = row.cells[column], told = (cell?.textContent ?? "").trim();
  if (isWord) return told;
  const value = parseFloat(cell?.dataset.v ?? told.replace(/,/g, ""));
  return Number.isNaN(value) ? null : value;
}
function sortBy(head) {
  const body = head.closest("table").tBodies[0], column = head.cellIndex;
  const isWord = head.classList.contains("word"), down = head.getAttribute("aria-sort") === "ascending";
  const keyed = [...body.rows].map(row => [keyOf(row, column, isWord), row]);
  keyed.sort(([a], [b]) => {
    if (a === null || b === null) return (a === null) - (b === null);  // what has no value is last
    const order = isWord ? a.localeCompare(b, undefined, {numeric: true}) : a - b;
    return down ? -order : order;
  });
  for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  body.append(...keyed.map(([, row]) => row));
}
for (const head of document.querySelectorAll("table.sorts th")) {
  head.tabIndex = 0;
  head.onclick = () => sortBy(head);
  head.onkeydown = event => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    sortBy(head);
  };
}

// -- tables and commands, copied

for (const button of document.querySelectorAll("button[data-copy]"))
  button.onclick = async () => {
    const copied = document.getElementById(button.dataset.copy);
    const lines = [...(copied.rows ?? [])].map(row => [...row.cells].map(cell => cell.textContent.trim()).join("\t"));
    const text = copied.rows ? lines.join("\n") : copied.textContent;
    try { await navigator.clipboard.writeText(text); }
    catch {  // a page from a file may have no clipboard of that kind
      const area = document.body.appendChild(document.createElement("textarea"));
      area.value = text; area.select(); document.execCommand("copy"); area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  };

// -- paper has no folds

addEventListener("beforeprint", () => {
  for (const each of document.querySelectorAll("details.prints")) each.open = true;
});

// -- one section alone, for pictures of it; how high each is, for whoever takes them

function whenAlone(draw) {
  const only = location.hash.startsWith("#only=") && document.getElementById(location.hash.slice(6));
  if (only) { document.body.classList.add("only"); only.classList.add("only"); draw(); }
  for (const each of document.querySelectorAll("section"))
    each.dataset.height = String(Math.ceil(each.getBoundingClientRect().height));
}
whenAlone(() => {});
