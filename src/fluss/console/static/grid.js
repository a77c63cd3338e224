// A table of values. Every list it shows is bounded by the server.
import { h } from "./dom.js";

// A cell is null, a boolean, a number or a text; one that was too long is an object with its beginning.
export function text(value) {
  if (value === null || value === undefined) return "null";
  return typeof value === "object" ? `${value.cut}… (${value.length.toLocaleString("en")} characters)` : String(value);
}

export function isNumber(type) { return /^(tinyint|smallint|int|integer|bigint|float|double|decimal|hugeint|uhugeint|utinyint|usmallint|ubigint|uinteger)/i.test(type || ""); }

export function cell(value, type) {
  const name = value === null || value === undefined ? "null" : isNumber(type) ? "number" : typeof value === "object" ? "cut" : "";
  const shown = text(value);
  return h("td", { class: name, title: shown.length > 40 ? shown : null }, shown);
}

export function grid(columns, types, rows, label, onRow = null, sort = null) {
  const head = h("tr", {}, columns.map((name, at) => {
    const order = sort?.sorted === at ? (sort.down ? "descending" : "ascending") : null;
    return h("th", { scope: "col", class: [isNumber(types[at]) ? "number" : "", sort ? "sized" : ""].join(" ").trim(), "aria-sort": order },
      sort ? h("button", { type: "button", class: "sort", title: "Sort", onclick: () => sort.onSort(at) }, name, order ? (sort.down ? " ↓" : " ↑") : "") : name, types[at] ? h("small", {}, types[at]) : null);
  }));
  const body = h("tbody", {}, rows.map((row) => {
    const line = h("tr", {}, row.map((value, at) => cell(value, types[at])));
    if (onRow) {
      line.tabIndex = 0;
      line.className = "opens";
      line.addEventListener("click", () => { if (!String(getSelection())) onRow(row); });
      line.addEventListener("keydown", (event) => { if (event.key === "Enter") onRow(row); });
    }
    return line;
  }));
  return h("div", { class: "grid", tabindex: 0, role: "region", "aria-label": label }, h("table", {}, h("thead", {}, head), body));
}

export function list(columns, rows, label) {
  const head = h("tr", {}, columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : "" }, column.name)));
  const body = rows.map((row) => h("tr", {}, columns.map((column) => {
    const value = column.value(row);
    return h("td", { class: [column.number ? "number" : "", column.wrap ? "wrap" : ""].join(" ").trim() }, value);
  })));
  return h("div", { class: "grid", tabindex: 0, role: "region", "aria-label": label },
    h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
}
