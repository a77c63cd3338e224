// The result of a query: a grid that can be sorted, figures of its columns, and a chart.
import { resultChart } from "./chart.js";
import { count, field, fill, h } from "./dom.js";
import { grid, isNumber, text } from "./grid.js";

const CHARTED = 500;

function compare(a, b, isNumeric) {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1; // nulls last
  if (!isNumeric) return text(a) < text(b) ? -1 : text(a) > text(b) ? 1 : 0;
  const [x, y] = [Number(a), Number(b)];
  return Number.isNaN(x) || Number.isNaN(y) ? Number(Number.isNaN(x)) - Number(Number.isNaN(y)) : x - y;
}

function figures(result) {
  const columns = result.columns.map((name, at) => {
    const values = result.rows.map((row) => row[at]).filter((value) => value !== null), numeric = isNumber(result.types[at]);
    const sorted = values.slice().sort((a, b) => compare(a, b, numeric));
    const mean = numeric && values.length ? values.reduce((sum, value) => sum + Number(value), 0) / values.length : null;
    return [name, values.length, result.rows.length - values.length, new Set(values.map(text)).size, sorted.length ? sorted[0] : null, sorted.length ? sorted.at(-1) : null, mean === null ? null : Number(mean.toPrecision(8))];
  });
  return grid(["column", "values", "nulls", "distinct", "least", "greatest", "mean"], ["", "int", "int", "int", "", "", "double"], columns, "Figures of the columns");
}

export function resultView(result, width, buttons) {
  let sorted = -1, down = false;
  const place = h("div", {}), plot = h("div", {}), about = h("details", {}, h("summary", {}, "Figures of the columns"));
  about.addEventListener("toggle", () => { if (about.open && about.childElementCount === 1) about.append(figures(result)); });
  const numbers = result.columns.map((_, at) => at).filter((at) => isNumber(result.types[at]));
  const option = (at) => h("option", { value: at }, result.columns[at]);
  const kind = h("select", {}, h("option", { value: "" }, "no chart"), h("option", { value: "bar" }, "bars"), h("option", { value: "line" }, "line"));
  const across = h("select", {}, h("option", { value: "" }, "row"), result.columns.map((_, at) => option(at))), up = h("select", {}, numbers.map(option));
  const drawRows = () => {
    const rows = sorted < 0 ? result.rows : result.rows.slice().sort((a, b) => (down ? -1 : 1) * compare(a[sorted], b[sorted], isNumber(result.types[sorted])));
    const onSort = (at) => { down = sorted === at && !down; sorted = at; drawRows(); };
    fill(place, grid(result.columns, result.types, rows, "Result", null, { onSort, sorted, down }));
    drawChart(rows);
  };
  const drawChart = (rows = result.rows) => {
    acrossField.hidden = upField.hidden = !kind.value;
    const shown = rows.slice(0, CHARTED), at = Number(up.value);
    fill(plot, kind.value && numbers.length ? h("div", { class: "card" }, resultChart(shown.map((row, index) => across.value === "" ? index + 1 : text(row[Number(across.value)])), shown.map((row) => Number(row[at]) || 0), `Chart of ${result.columns[at]}`, width, kind.value)) : null);
  };
  const acrossField = field("Across", across), upField = field("Up", up);
  for (const one of [kind, across, up]) one.addEventListener("change", () => drawChart());
  if (numbers.length === 1 && result.columns.length === 2 && result.rows.length > 1 && result.rows.length <= 60) { kind.value = "bar"; across.value = String(1 - numbers[0]); }
  const element = h("div", {}, h("div", { class: "bar" }, h("span", { class: "muted" }, `${count(result.rows.length)}${result.more ? " of more" : ""} rows in ${result.seconds.toFixed(3)} s`), h("span", { class: "grow" }),
    numbers.length ? [field("Chart", kind), acrossField, upField] : null, buttons), plot, place, result.rows.length ? about : null);
  drawRows();
  return element;
}
