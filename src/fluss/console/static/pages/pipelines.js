import { get } from "../api.js";
import { count, fill, h, ms, problem, redraw, seconds, svg } from "../dom.js";
import { list } from "../grid.js";
import { link } from "../route.js";

const WIDTH = 210, HEIGHT = 36, ACROSS = 160, DOWN = 44, NAME_MAX = 30;

// The column of each name: right of all that it is filled from. Tables that fill each other end after some steps.
function columns(flows) {
  const found = new Map(flows.flatMap((flow) => [[flow.source, 0], [flow.target, 0]]));
  found.delete("");
  for (let step = 0, moved = true; moved && step < found.size; step++) {
    moved = false;
    for (const { source, target } of flows) {
      if (source === target || !source || found.get(target) > found.get(source)) continue;
      found.set(target, found.get(source) + 1);
      moved = true;
    }
  }
  return found;
}

function label(x, y, words, name = "") {
  const text = svg("text", { x, y, class: name, "text-anchor": "middle" });
  text.textContent = words;
  return text;
}

const lag = (flow) => flow.lag_rows === null ? "" : `, ${count(flow.lag_rows)} behind`;

function graph(flows) {
  const place = new Map(), heights = new Map();
  for (const [name, column] of columns(flows)) {
    const row = heights.get(column) || 0;
    heights.set(column, row + 1);
    place.set(name, [column * (WIDTH + ACROSS), row * (HEIGHT + DOWN)]);
  }
  const width = Math.max(...heights.keys()) * (WIDTH + ACROSS) + WIDTH, height = Math.max(...heights.values()) * (HEIGHT + DOWN) - DOWN;
  const edges = flows.filter((flow) => flow.source && flow.source !== flow.target).flatMap((flow) => {
    const [left, top] = place.get(flow.source), [right, bottom] = place.get(flow.target), from = left + WIDTH, middle = (from + right) / 2;
    const y1 = top + HEIGHT / 2, y2 = bottom + HEIGHT / 2;
    return [svg("path", { d: `M${from} ${y1}C${middle} ${y1} ${middle} ${y2} ${right} ${y2}` }), label(middle, (y1 + y2) / 2 - 6, `${count(flow.rows_per_second)} rows/s${lag(flow)}`)];
  });
  const nodes = [...place].flatMap(([name, [x, y]]) => [svg("rect", { x: x + 1, y: y + 1, width: WIDTH - 2, height: HEIGHT - 2, rx: 6 }), label(x + WIDTH / 2, y + HEIGHT / 2 + 4, name.length > NAME_MAX ? `…${name.slice(1 - NAME_MAX)}` : name, "name")]);
  return svg("svg", { class: "flows", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "Flows between tables; the list below has the same" }, ...edges, ...nodes);
}

export async function show(body, { current }) {
  const place = h("div", {});
  fill(body, place);
  const table = (name) => /^[\w-]+\.[\w-]+$/.test(name) ? h("a", { href: link("live", name) }, name) : name || "–";
  async function load() {
    const { flows } = await get("flows");
    if (!current()) return;
    redraw(place, flows.length ? [h("div", { class: "grid card", tabindex: 0, role: "region", "aria-label": "Graph" }, graph(flows)), list([
      { name: "flow", value: (one) => one.flow }, { name: "from", value: (one) => table(one.source) }, { name: "to", value: (one) => table(one.target) },
      { name: "rows/s", number: true, value: (one) => count(one.rows_per_second) }, { name: "rows behind", number: true, value: (one) => count(one.lag_rows) },
      { name: "time behind", number: true, value: (one) => ms(one.lag_ms) }, { name: "as of", number: true, value: (one) => `${seconds(Math.max(0, one.age_s))} ago` },
    ], flows, "Flows")] : h("p", { class: "muted" }, "No Spark has reported what it fills tables from. Pipelines do so by themselves: ", h("code", {}, "fluss pipeline run FOLDER --watch")));
  }
  await load();
  const timer = setInterval(() => load().catch((error) => { if (current()) fill(place, problem(error.message)); }), 2000);
  return () => clearInterval(timer);
}
