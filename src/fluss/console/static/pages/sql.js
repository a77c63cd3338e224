import { download, get, post, tab } from "../api.js";
import { barChart } from "../chart.js";
import { count, field, fill, h, problem, toast } from "../dom.js";
import { grid, isNumber } from "../grid.js";

const WORDS = ["select", "from", "where", "group by", "order by", "limit", "join", "left join", "on", "having", "count(*)", "sum(", "avg(", "min(", "max(",
  "distinct", "case when", "then", "else", "end", "between", "and", "or", "not", "is null", "like", "in (", "with", "union all", "insert into", "values", "as", "desc", "describe", "explain"];
const HISTORY_MAX = 50;

function history() { try { return JSON.parse(localStorage.getItem("fluss-sql") || "[]"); } catch { return []; } }
function remember(query) {
  const kept = [query, ...history().filter((one) => one !== query)].slice(0, HISTORY_MAX);
  try { localStorage.setItem("fluss-sql", JSON.stringify(kept)); } catch { /* private window: it is forgotten */ }
}

function editor(run) {
  const area = h("textarea", { spellcheck: "false", autocapitalize: "off", "aria-label": "SQL query", "aria-autocomplete": "list", "aria-controls": "completions", role: "combobox", "aria-expanded": "false", placeholder: "select * from orders limit 10" });
  const choices = h("ul", { class: "completions", id: "completions", role: "listbox", "aria-label": "Completions", hidden: true });
  const element = h("div", { class: "editor" }, area, choices);
  let words = WORDS, found = [], chosen = 0;
  const word = () => /[\w.$"]*$/.exec(area.value.slice(0, area.selectionStart))[0];
  const hide = () => { choices.hidden = true; found = []; area.setAttribute("aria-expanded", "false"); area.removeAttribute("aria-activedescendant"); };
  const draw = () => {
    fill(choices, found.map((one, at) => h("li", { id: `completion-${at}`, role: "option", "aria-selected": String(at === chosen), onmousedown: (event) => { event.preventDefault(); chosen = at; accept(); } }, one)));
    area.setAttribute("aria-activedescendant", `completion-${chosen}`);
    choices.children[chosen]?.scrollIntoView({ block: "nearest" });
  };
  const accept = () => {
    const before = area.selectionStart - word().length;
    area.setRangeText(found[chosen] + (found[chosen].endsWith("(") ? "" : " "), before, area.selectionStart, "end");
    hide();
  };
  const suggest = (force) => {
    const part = word().toLowerCase();
    if (!part && !force) { hide(); return; }
    found = words.filter((one) => one.toLowerCase().startsWith(part) && one.toLowerCase() !== part).slice(0, 12);
    if (!found.length) { hide(); return; }
    chosen = 0;
    choices.hidden = false;
    area.setAttribute("aria-expanded", "true");
    const lines = area.value.slice(0, area.selectionStart).split("\n");
    choices.style.top = `${Math.min(12 + lines.length * 19.5 - area.scrollTop, area.clientHeight)}px`;
    choices.style.left = `${Math.min(12 + lines.at(-1).length * 7.8, Math.max(0, area.clientWidth - 200))}px`;
    draw();
  };
  area.addEventListener("input", () => suggest(false));
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); hide(); run(); return; }
    if (event.key === " " && event.ctrlKey) { event.preventDefault(); suggest(true); return; }
    if (choices.hidden) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); chosen = (chosen + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length; draw(); }
    else if (event.key === "Enter" || event.key === "Tab") { event.preventDefault(); accept(); }
    else if (event.key === "Escape") hide();
  });
  return { element, area, use: (tables) => { words = [...Object.keys(tables), ...new Set(Object.values(tables).flat()), ...WORDS]; } };
}

export async function show(body, { current, args, setArgs }) {
  const place = h("div", {});
  const runButton = h("button", { class: "primary", type: "button", onclick: run }, "Run");
  const past = h("select", { onchange: () => { if (past.value) { edit.area.value = past.value; edit.area.focus(); } } });
  const edit = editor(run);
  const chart = h("select", {});
  let result = null;
  const drawHistory = () => fill(past, h("option", { value: "" }, "History"), history().map((one) => h("option", { value: one }, one.replace(/\s+/g, " ").slice(0, 80))));
  const cancelButton = h("button", { type: "button", hidden: true, onclick: () => post("sql/cancel", { tab }).catch(() => {}) }, "Cancel");
  let running = false;
  async function run() {
    const query = edit.area.value.trim();
    if (!query || running) return;
    running = true;
    runButton.disabled = true;
    cancelButton.hidden = false;
    place.setAttribute("aria-busy", "true");
    remember(query);
    drawHistory();
    setArgs({ query });
    try {
      result = await post("sql", { tab, query });
      if (current()) draw();
    } catch (error) {
      if (current()) fill(place, problem(error.message));
    } finally {
      running = false;
      runButton.disabled = false;
      cancelButton.hidden = true;
      place.removeAttribute("aria-busy");
    }
  }
  async function save(format) {
    try {
      await download("sql/export", { tab, result: result.result, format }, `result.${format}`);
      toast(`result.${format} was saved.`);
    } catch (error) { toast(error.message, true); }
  }
  function draw() {
    const numbers = result.columns.map((_, at) => at).filter((at) => isNumber(result.types[at]));
    fill(chart, h("option", { value: "" }, "no chart"), numbers.map((at) => h("option", { value: at }, `chart of ${result.columns[at]}`)));
    const plot = h("div", {});
    const drawChart = () => {
      const at = chart.value === "" ? null : Number(chart.value);
      const rows = result.rows.slice(0, 200);
      const names = result.columns.findIndex((_, index) => index !== at);
      fill(plot, at === null ? null : h("div", { class: "card" }, barChart(rows.map((row, index) => names < 0 ? index + 1 : row[names]), rows.map((row) => Number(row[at]) || 0), `Chart of ${result.columns[at]}`, Math.max(240, place.clientWidth - 34))));
    };
    chart.onchange = drawChart;
    if (numbers.length === 1 && result.columns.length === 2 && result.rows.length > 1 && result.rows.length <= 60) { chart.value = numbers[0]; drawChart(); }
    fill(place, h("div", { class: "bar" }, h("span", { class: "muted" }, `${count(result.rows.length)}${result.more ? " of more" : ""} rows in ${result.seconds.toFixed(3)} s`), h("span", { class: "grow" }),
      field("Chart", chart), result.result ? [h("button", { type: "button", onclick: () => save("csv") }, "Save CSV"), h("button", { type: "button", onclick: () => save("parquet") }, "Save Parquet")] : null),
      plot, grid(result.columns, result.types, result.rows, "Result"));
  }
  drawHistory();
  fill(body, edit.element, h("div", { class: "bar" }, runButton, cancelButton, h("span", { class: "muted small" }, "Ctrl+Enter runs, Ctrl+Space completes"), h("span", { class: "grow" }), field("Earlier queries", past)), place);
  edit.area.value = args.query ?? history()[0] ?? "";
  edit.area.focus();
  get("sql/words").then(({ tables }) => edit.use(tables)).catch(() => {});
  return () => { if (running) cancelButton.click(); };
}
