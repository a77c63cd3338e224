import { get, stream } from "../api.js";
import { LineChart } from "../chart.js";
import { bytes, count, fill, h, ms, problem, seconds, tile } from "../dom.js";
import { list } from "../grid.js";

const SHOWN = 180;

export async function show(body, { session, current }) {
  const tiles = h("div", { class: "tiles" }), figures = h("div", {}), apis = h("div", {}), tables = h("div", {});
  const charts = [
    new LineChart("Throughput", [{ name: "in", value: (one) => one.bytes_in_per_s }, { name: "out", value: (one) => one.bytes_out_per_s }], (value) => `${bytes(value)}/s`),
    new LineChart("Requests per second", [{ name: "requests", value: (one) => one.requests_per_s }, { name: "errors", value: (one) => one.errors_per_s }], count),
    new LineChart("Memory", [{ name: "process", value: (one) => one.memory_bytes }, { name: "primary keys", value: (one) => one.kv_bytes }], bytes),
    new LineChart("Connections", [{ name: "open", value: (one) => one.connections }], count),
  ];
  const chartPlace = h("div", { class: "charts" }, charts.map((one) => one.element));
  const notes = h("div", {});
  fill(body, notes, tiles, figures, apis, tables);
  let samples = [], health = null;

  const drawTiles = () => {
    const last = samples.at(-1) || {};
    const status = health ? h("span", { class: `tag ${health.status === "GREEN" ? "good" : health.status === "RED" ? "bad" : "warn"}` }, health.status.toLowerCase()) : "…";
    const rows = health?.tables.reduce((sum, one) => sum + (one.rows || 0), 0);
    fill(tiles, tile("Health", status), tile("Version", last.version || session.version), tile("Tables", count(last.tables ?? health?.tables.length)),
      tile("Rows", count(rows)), last.memory_bytes ? [tile("Memory", bytes(last.memory_bytes)), tile("Log on disk", bytes(last.log_bytes)),
        tile("Disk free", bytes(last.disk_free_bytes)), tile("Connections", count(last.connections)), tile("Up for", seconds((last.time_ms - last.started_ms) / 1000))] : null);
  };
  const drawHealth = () => {
    drawTiles();
    const rows = health.tables.slice().sort((a, b) => (b.rows || 0) - (a.rows || 0));
    fill(tables, h("section", { class: "card" }, h("h2", {}, "Tables"), rows.length ? list([
      { name: "table", value: (one) => h("a", { href: `#/data/${encodeURIComponent(one.name)}` }, one.name) },
      { name: "rows", number: true, value: (one) => one.problem || count(one.rows) },
      { name: "buckets", number: true, value: (one) => count(one.buckets) },
    ], rows, "Tables with their rows") : h("div", { class: "empty" }, "There are no tables yet. Create one, or drop a CSV or Parquet file on the page “Upload a file”."),
      health.more ? h("p", { class: "muted" }, `and ${count(health.more)} more`) : null));
  };
  const drawSamples = () => {
    drawTiles();
    for (const one of charts) one.show(samples.slice(-SHOWN), Math.min(SHOWN, Math.max(60, samples.length)));
    const rows = (samples.at(-1)?.apis || []).slice(0, 30);
    fill(apis, rows.length ? h("section", { class: "card" }, h("h2", {}, "Requests"), list([
      { name: "request", value: (one) => one.request },
      { name: "per second", number: true, value: (one) => one.per_s.toFixed(1) },
      { name: "mean", number: true, value: (one) => ms(one.mean_ms) },
      { name: "p50", number: true, value: (one) => ms(one.p50_ms) },
      { name: "p99", number: true, value: (one) => ms(one.p99_ms) },
      { name: "total", number: true, value: (one) => count(one.total) },
    ], rows, "Requests by kind")) : null);
  };
  drawTiles();
  const load = async () => {
    try {
      health = await get("health");
      if (current()) drawHealth();
    } catch (error) {
      if (current()) fill(notes, problem(error.message));
    }
  };
  await load();
  const timer = setInterval(load, 10000);
  const source = stream("overview/stream", () => ({}), (event) => {
    if (event.problem) {
      fill(figures, h("div", { class: "hint" }, event.problem));
      if (!event.samples.length) source.close();
      return;
    }
    // A stream that was lost begins with the last minutes again.
    const first = event.samples[0]?.number ?? Infinity;
    samples = samples.filter((sample) => sample.number < first).concat(event.samples).slice(-300);
    if (!chartPlace.isConnected) fill(figures, chartPlace);
    drawSamples();
  }, (text) => fill(notes, problem(text)));
  return () => { source.close(); clearInterval(timer); };
}
