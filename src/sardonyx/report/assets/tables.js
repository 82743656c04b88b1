// Tables whose columns sort by a click on their head.

function simpleTable(columns, rows, numbers) {
  const isNumber = (i) => (numbers || []).includes(i);
  return element("table", {},
    element("thead", {}, element("tr", {}, columns.map((name, i) => element("th", { scope: "col", class: isNumber(i) ? "number" : null }, name)))),
    element("tbody", {}, rows.map((row) => element("tr", {}, row.map((cell, i) =>
      element("td", { class: isNumber(i) ? "number" : "wide" }, cell === null ? "" : String(cell)))))));
}

function sortedTable(table) {
  const numbers = table.columns.map((_, i) => i).filter((i) => table.rows.some((row) => typeof row[i] === "number"));
  const holder = element("div", { class: "scroll" });
  let [column, isUp] = [null, true];
  const text = (cell) => (typeof cell === "number" && !Number.isInteger(cell) ? Number(cell.toPrecision(4)).toString() : cell);

  function draw() {
    const rows = [...table.rows];
    if (column !== null) {
      rows.sort((a, b) => {
        const [x, y] = isUp ? [a[column], b[column]] : [b[column], a[column]];
        return numbers.includes(column) ? (x ?? -Infinity) - (y ?? -Infinity) : String(x).localeCompare(String(y));
      });
    }
    const made = simpleTable(table.columns, rows.map((row) => row.map(text)), numbers);
    made.querySelectorAll("th").forEach((head, i) => {
      head.setAttribute("aria-sort", i === column ? (isUp ? "ascending" : "descending") : "none");
      head.replaceChildren(element("button", {
        type: "button", onclick: () => { isUp = column === i ? !isUp : true; column = i; draw(); holder.querySelectorAll("th button")[i].focus(); },
      }, table.columns[i] + (i === column ? (isUp ? " ↑" : " ↓") : "")));
    });
    holder.replaceChildren(made);
  }

  draw();
  return [element("h3", {}, table.title), table.about ? element("p", { class: "muted" }, table.about) : null, holder];
}
