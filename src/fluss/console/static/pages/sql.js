import { download, get, post, stream, tab } from "../api.js";
import { check, field, fill, h, problem, toast } from "../dom.js";
import { sqlEditor } from "../editor.js";
import { Tabs, history, remember } from "../queries.js";
import { resultView } from "../result.js";

const AGAIN_MS = 1500, WATCHED_MAX = 4;

export async function show(body, { current, args, setArgs }) {
  const tabs = new Tabs();
  if (args.query !== undefined) tabs.open(args.query);
  const place = h("div", {}), tabPlace = h("div", { class: "tabs", role: "group", "aria-label": "Queries" });
  const runButton = h("button", { class: "primary", type: "button", onclick: () => run() }, "Run");
  const cancelButton = h("button", { type: "button", hidden: true, onclick: () => post("sql/cancel", { tab }).catch(() => {}) }, "Cancel");
  const past = h("select", { onchange: () => { if (past.value) { edit.write(past.value); edit.focus(); past.value = ""; } } });
  const again = check("run again when a table changes");
  const words = get("sql/words").then(({ tables }) => tables, () => ({})), watched = h("span", { class: "muted small", role: "status" });
  let running = false, sources = [], followed = "", due = 0;
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
    const watching = again.box.checked ? watch(query) : null; // before it runs, so that a change during the run starts it again
    try {
      const result = await post("sql", { tab, query });
      await watching;
      if (!current()) return;
      if (result.writes) stop(); // its own changes would start it again
      const buttons = result.result ? ["csv", "parquet"].map((format) => h("button", { type: "button", onclick: () => save(result, format) }, format === "csv" ? "Save CSV" : "Save Parquet")) : null;
      fill(place, resultView(result, Math.max(240, body.clientWidth - 34), buttons));
    } catch (error) {
      await watching;
      if (!current()) return;
      stop();
      fill(place, h("div", { class: "mono" }, problem(error.message)));
      edit.mark(error.message);
    } finally {
      running = false;
      runButton.disabled = false;
      cancelButton.hidden = true;
      place.removeAttribute("aria-busy");
    }
  }
  function stop() {
    for (const one of sources) one.close();
    sources = []; followed = watched.textContent = "";
    clearTimeout(due); due = 0;
  }
  // Follows the tables whose names stand in the query: some, for every change of them is read.
  async function watch(query) {
    const names = new Set(query.toLowerCase().match(/[\w$.]+/g) || []);
    const used = Object.keys(await words).filter((name) => names.has(name.toLowerCase())).slice(0, WATCHED_MAX);
    if (used.length && used.join() === followed) return;
    stop();
    if (!current() || !again.box.checked) return;
    followed = used.join();
    const rerun = () => { due = running ? setTimeout(rerun, AGAIN_MS) : 0; run(query); };
    const changed = (event) => {
      if (event.columns) watched.textContent = `watching ${used.join(", ")}`;
      if (event.count && !due) due = setTimeout(rerun, AGAIN_MS);
    };
    sources = used.map((name) => stream("live", () => ({ table: name }), changed, (text) => { watched.textContent = text; }));
  }
  again.box.addEventListener("change", () => { if (again.box.checked) run(); else stop(); });
  drawHistory();
  drawTabs();
  fill(body, tabPlace, edit.host, h("div", { class: "bar line" }, runButton, cancelButton, h("span", { class: "muted small" }, "Ctrl+Enter runs, Ctrl+Space completes"), again, watched, h("span", { class: "grow" }), field("Earlier queries", past)), place);
  edit.focus();
  words.then((tables) => edit.use(tables));
  return () => { stop(); if (running) cancelButton.click(); edit.close(); };
}
