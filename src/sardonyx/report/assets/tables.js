// Tables whose columns sort by a click on their head.

const FIRST_ROWS = 20;

function simpleTable(columns, rows, numbers) {
  const isNumber = (i) => (numbers || []).includes(i);
  return element("table", {},
    element("thead", {}, element("tr", {}, columns.map((name, i) => element("th", { scope: "col", class: isNumber(i) ? "number" : null }, name)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell, i) =>
      element("td", { class: isNumber(i) ? "number" : "wide" }, cell === null ? "" : String(cell)))))));
}

function sortedTable(table) {
  const numbers = table.columns.map((_, i) => i).filter((i) => table.rows.some((row) => typeof row[i] === "number"));
  const holder = scrollable(table.title);
  const box = holder.firstChild;
  let [column, isUp] = [null, true];
  let isAll = false;
  const more = element("button", { type: "button", class: "screen", onclick: () => { isAll = !isAll; draw(); } });
  const number = (value) => (value && Math.abs(value) < 1e-3 ? value.toExponential(2) : Number(value.toPrecision(4)).toString());
  const text = (cell) => (typeof cell === "number" && !Number.isInteger(cell) ? number(cell) : cell);

  function draw() {
    const rows = [...table.rows];
    if (column !== null) {
      rows.sort((a, b) => {
        const [x, y] = isUp ? [a[column], b[column]] : [b[column], a[column]];
        return numbers.includes(column) ? (x ?? -Infinity) - (y ?? -Infinity) : String(x).localeCompare(String(y));
      });
    }
    more.hidden = rows.length <= FIRST_ROWS;
    more.textContent = isAll ? "Show fewer" : `Show all ${rows.length}`;
    const shown = isAll ? rows : rows.slice(0, FIRST_ROWS);
    const made = simpleTable(table.columns, shown.map((row) => row.map(text)), numbers);
    made.querySelectorAll("th").forEach((head, i) => {
      head.setAttribute("aria-sort", i === column ? (isUp ? "ascending" : "descending") : "none");
      head.replaceChildren(element("button", {
        type: "button", onclick: () => { isUp = column === i ? !isUp : true; column = i; draw(); box.querySelectorAll("th button")[i].focus(); },
      }, table.columns[i] + (i === column ? (isUp ? " ↑" : " ↓") : "")));
    });
    box.replaceChildren(made);
  }

  draw();
  return [element("h3", {}, table.title), table.about ? element("p", { class: "muted" }, table.about) : null, holder, more];
}
