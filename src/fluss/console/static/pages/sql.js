import { download, get, post, stream, tab } from "../api.js";
import { check, field, fill, h, problem, toast } from "../dom.js";
import { sqlEditor } from "../editor.js";
import { Tabs, history, remember } from "../queries.js";
import { resultView } from "../result.js";

const AGAIN_MS = 1500;

export async function show(body, { current, args, setArgs }) {
  const tabs = new Tabs();
  if (args.query !== undefined) tabs.open(args.query);
  const place = h("div", {}), tabPlace = h("div", { class: "tabs", role: "group", "aria-label": "Queries" });
  const runButton = h("button", { class: "primary", type: "button", onclick: () => run() }, "Run");
  const cancelButton = h("button", { type: "button", hidden: true, onclick: () => post("sql/cancel", { tab }).catch(() => {}) }, "Cancel");
  const past = h("select", { onchange: () => { if (past.value) { edit.write(past.value); edit.focus(); past.value = ""; } } });
  const again = check("run again when a table changes");
  let running = false, known = {}, sources = [], due = 0;
  const edit = sqlEditor(tabs.current.text, () => run(), (text) => { tabs.current.text = text; tabs.save(); });

  function drawTabs() {
    const rename = (one) => { const name = prompt("Name of the query", one.name)?.trim(); if (name) { one.name = name.slice(0, 60); tabs.save(); drawTabs(); } };
    const choose = (at) => { if (at === tabs.chosen) { rename(tabs.current); return; } tabs.choose(at); edit.write(tabs.current.text); drawTabs(); };
    fill(tabPlace, tabs.all.map((one, at) => h("span", { class: at === tabs.chosen ? "tab chosen" : "tab" },
      h("button", { type: "button", class: "ghost", "aria-pressed": String(at === tabs.chosen), title: at === tabs.chosen ? "Click to rename" : one.text.slice(0, 200), onclick: () => choose(at) }, one.name),
      tabs.all.length > 1 ? h("button", { type: "button", class: "ghost", "aria-label": `Close ${one.name}`, onclick: () => { tabs.close(at); edit.write(tabs.current.text); drawTabs(); } }, "×") : null)),
      h("button", { type: "button", class: "ghost", "aria-label": "New query", onclick: () => { tabs.add(); edit.write(""); drawTabs(); edit.focus(); } }, "+"));
  }
  const drawHistory = () => fill(past, h("option", { value: "" }, "History"), history().map((one) => h("option", { value: one }, one.replace(/\s+/g, " ").slice(0, 80))));
  async function save(result, format) {
    try {
      await download("sql/export", { tab, result: result.result, format }, `result.${format}`);
      toast(`result.${format} was saved.`);
    } catch (error) { toast(error.message, true); }
  }
  async function run(query = edit.text().trim()) {
    if (!query || running) return;
    running = true;
    runButton.disabled = true;
    cancelButton.hidden = false;
    place.setAttribute("aria-busy", "true");
    remember(query);
    drawHistory();
    setArgs({ query });
    try {
      const result = await post("sql", { tab, query });
      if (!current()) return;
      const buttons = result.result ? ["csv", "parquet"].map((format) => h("button", { type: "button", onclick: () => save(result, format) }, format === "csv" ? "Save CSV" : "Save Parquet")) : null;
      fill(place, resultView(result, Math.max(240, body.clientWidth - 34), buttons));
      watch(query);
    } catch (error) {
      if (!current()) return;
      fill(place, h("div", { class: "mono" }, problem(error.message)));
      edit.mark(error.message);
    } finally {
      running = false;
      runButton.disabled = false;
      cancelButton.hidden = true;
      place.removeAttribute("aria-busy");
    }
  }
  function stop() { for (const one of sources) one.close(); sources = []; clearTimeout(due); due = 0; }
  // Follows the tables whose names stand in the query; they are few, for each takes a stream.
  function watch(query) {
    stop();
    if (!again.box.checked || /^\s*(insert|update|delete|create|drop|alter)\b/i.test(query)) return;
    const words = new Set(query.toLowerCase().match(/[\w$.]+/g) || []);
    const used = Object.keys(known).filter((name) => words.has(name.toLowerCase())).slice(0, 2);
    const changed = (event) => { if (event.count && !due) due = setTimeout(() => { due = 0; if (current() && again.box.checked) run(query); }, AGAIN_MS); };
    sources = used.map((name) => stream("live", () => ({ table: name }), changed, () => {}));
  }
  again.box.addEventListener("change", () => { if (again.box.checked) run(); else stop(); });
  drawHistory();
  drawTabs();
  fill(body, tabPlace, edit.host, h("div", { class: "bar line" }, runButton, cancelButton, h("span", { class: "muted small" }, "Ctrl+Enter runs, Ctrl+Space completes"), again, h("span", { class: "grow" }), field("Earlier queries", past)), place);
  edit.focus();
  get("sql/words").then(({ tables }) => { known = tables; edit.use(tables); }).catch(() => {});
  return () => { stop(); if (running) cancelButton.click(); edit.close(); };
}
