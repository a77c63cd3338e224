import { get, post, stream } from "../api.js";
import { LineChart, sparkline } from "../chart.js";
import { bytes, count, fill, h, ms, problem, redraw, seconds, tile, toast } from "../dom.js";
import { list } from "../grid.js";
import { link } from "../route.js";

const SPAN_MS = 180000, SPARK_SAMPLES = 60;

export async function show(body, { session, current, refreshTables }) {
  const tiles = h("div", { class: "tiles" }), figures = h("div", {}), apis = h("div", {}), tables = h("div", {}), start = h("div", {});
  const charts = [
    new LineChart("Rows written per second", [{ name: "rows", value: (one) => one.rows_per_s }], count),
    new LineChart("Throughput", [{ name: "in", value: (one) => one.bytes_in_per_s }, { name: "out", value: (one) => one.bytes_out_per_s }], (value) => `${bytes(value)}/s`),
    new LineChart("Requests per second", [{ name: "requests", value: (one) => one.requests_per_s }, { name: "errors", value: (one) => one.errors_per_s }], count),
    new LineChart("Memory", [{ name: "process", value: (one) => one.memory_bytes }, { name: "primary keys", value: (one) => one.kv_bytes }], bytes),
  ];
  const chartPlace = h("div", { class: "charts" }, charts.map((one) => one.element));
  const notes = h("div", {});
  fill(body, notes, tiles, start, tables, figures, apis);
  let samples = [], health = null;

  const status = () => {
    if (document.body.dataset.connection === "lost") return h("span", { class: "tag bad" }, "disconnected");
    return health ? h("span", { class: `tag ${health.status === "GREEN" ? "good" : health.status === "RED" ? "bad" : "warn"}` }, health.status.toLowerCase()) : "…";
  };
  const drawTiles = () => {
    const last = samples.at(-1) || {}, rows = health?.tables.reduce((sum, one) => sum + (one.rows || 0), 0);
    redraw(tiles, tile("Health", status()), last.rows_per_s === undefined ? null : tile("Rows written", `${count(last.rows_per_s)}/s`), tile("Tables", count(health?.tables.length ?? last.tables)),
      tile("Rows", count(rows)), last.memory_bytes ? [tile("Memory", bytes(last.memory_bytes)), tile("Log on disk", bytes(last.log_bytes)),
        tile("Disk free", bytes(last.disk_free_bytes)), tile("Connections", count(last.connections)),
        last.backup_behind_s === undefined ? null : tile("Backup behind", `${seconds(last.backup_behind_s)}, ${bytes(last.backup_behind_bytes)}`), tile("Up for", seconds((last.time_ms - last.started_ms) / 1000))] : null, tile("Version", last.version || session.version));
  };
  const rates = (name) => samples.slice(-SPARK_SAMPLES).map((one) => one.tables_per_s?.[name] || 0);
  const drawTables = () => {
    if (!health) return;
    const now = samples.at(-1)?.tables_per_s || {};
    const rows = health.tables.slice().sort((a, b) => (now[b.name] || 0) - (now[a.name] || 0) || (b.rows || 0) - (a.rows || 0) || a.name.localeCompare(b.name));
    redraw(tables, rows.length ? h("section", { class: "card" }, h("h2", {}, "Tables"), list([
      { name: "table", value: (one) => h("a", { href: link("data", one.name) }, one.name) },
      { name: "kind", value: (one) => one.kind || "" },
      { name: "rows", number: true, value: (one) => one.problem || count(one.rows) },
      { name: "buckets", number: true, value: (one) => count(one.buckets) },
      samples.length ? { name: "written per second", number: true, value: (one) => [now[one.name] ? count(now[one.name]) : "", " ", sparkline(rates(one.name), `rows per second of ${one.name}`)] } : null,
    ].filter(Boolean), rows, "Tables with their rows")) : null);
  };
  const drawStart = () => {
    if (!health || (health.tables.length && !health.samples)) { redraw(start); return; }
    if (start.dataset.shown === String(health.samples)) return;
    start.dataset.shown = String(health.samples);
    const set = (run) => async (event) => {
      event.currentTarget.disabled = true;
      try { await post("samples", { run }); toast(run ? "Orders come in now: look at the page Live." : "The writer was stopped."); await refreshTables(); await load(); } catch (error) { toast(error.message, true); }
    };
    fill(start, h("section", { class: "card first" }, h("div", {}, h("h2", {}, health.samples ? "Sample data" : "There are no tables yet"),
      h("p", {}, health.samples ? "A writer adds 20 orders a second to the table orders, and changes some." : "Load sample data: a table of orders, and a writer that keeps adding to it. Or create a table, or drop a CSV or Parquet file on this page."),
      session.read_only ? null : h("div", { class: "bar" }, health.samples ? [h("a", { class: "button", href: link("live", "fluss.orders") }, "Watch it live"), h("button", { type: "button", onclick: set(false) }, "Stop the writer")]
        : [h("button", { class: "primary", type: "button", onclick: set(true) }, "Load sample data"), h("a", { class: "button", href: link("create") }, "New table"), h("a", { class: "button", href: link("upload") }, "Upload a file")])),
      h("div", {}, h("h2", {}, "From Python"), h("pre", { tabindex: 0 }, `import fluss\n\ndb = fluss.connect(${JSON.stringify(session.server)})\nfor change in db.table("orders").changes():\n    print(change.kind, change.new)`))));
  };
  const drawSamples = () => {
    drawTiles();
    drawTables();
    const span = Math.max(60000, Math.min(SPAN_MS, samples.at(-1).time_ms - samples[0].time_ms));
    for (const one of charts) one.show(samples, span);
    const rows = (samples.at(-1)?.apis || []).slice(0, 30);
    redraw(apis, rows.length ? h("section", { class: "card" }, h("h2", {}, "Requests"), list([
      { name: "request", value: (one) => one.request },
      { name: "per second", number: true, value: (one) => one.per_s.toFixed(1) },
      { name: "mean", number: true, value: (one) => ms(one.mean_ms) },
      { name: "p50", number: true, value: (one) => ms(one.p50_ms) },
      { name: "p99", number: true, value: (one) => ms(one.p99_ms) },
      { name: "total", number: true, value: (one) => count(one.total) },
    ], rows, "Requests by kind")) : null);
  };
  const load = async () => {
    try {
      health = await get("health");
      if (!current()) return;
      fill(notes, health.problem ? problem(health.problem) : null);
      drawTiles(); drawStart(); drawTables();
    } catch (error) {
      health = null;
      if (current()) { drawTiles(); fill(notes, problem(error.message)); }
    }
  };
  drawTiles();
  await load();
  const timer = setInterval(load, 5000);
  window.addEventListener("connection", drawTiles);
  const source = stream("overview", () => ({}), (event) => {
    if (event.problem) {
      if (!event.samples.length) redraw(figures, h("div", { class: "hint" }, event.problem));
      return;
    }
    // A stream that was lost begins with the last minutes again.
    const first = event.samples[0]?.number ?? Infinity;
    samples = samples.filter((sample) => sample.number < first).concat(event.samples).slice(-300);
    if (!samples.length) return;
    if (!chartPlace.isConnected) fill(figures, chartPlace);
    drawSamples();
  }, (text) => { if (samples.length) fill(notes, problem(text)); else redraw(figures, h("div", { class: "hint" }, text)); });
  return () => { source.close(); clearInterval(timer); window.removeEventListener("connection", drawTiles); };
}
