// Small charts as SVG.
import { fill, h, svg } from "./dom.js";

const WIDTH = 400, HEIGHT = 130, LEFT = 64, TOP = 8, BOTTOM = 18, GAP_MS = 3500;

function label(x, y, anchor, content) {
  const text = svg("text", { x, y, "text-anchor": anchor });
  text.textContent = content;
  return text;
}

function axis(width, y, top, format) {
  return [0, 0.5, 1].flatMap((part) => [svg("line", { class: "axis", x1: LEFT, x2: width, y1: y(top * part), y2: y(top * part) }), label(LEFT - 6, y(top * part) + 4, "end", format(top * part))]);
}

// A line over time; where samples are missing it has a gap.
export class LineChart {
  constructor(title, series, format) {
    this.series = series;
    this.format = format;
    this.plot = svg("svg", { class: "chart", role: "img", "aria-label": title });
    this.legend = h("div", { class: "legend" });
    this.element = h("section", { class: "card" }, h("h2", {}, title), this.plot, this.legend);
  }

  show(samples, span_ms) {
    const end = samples.at(-1)?.time_ms ?? Date.now(), begin = end - span_ms;
    const seen = samples.filter((sample) => sample.time_ms >= begin);
    const top = Math.max(1e-9, ...seen.flatMap((sample) => this.series.map((one) => one.value(sample) || 0))) * 1.1;
    const width = this.plot.clientWidth || WIDTH;
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const x = (at) => LEFT + (width - LEFT) * (at - begin) / span_ms;
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = axis(width, y, top / 1.1, this.format);
    for (const [part, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) parts.push(label(LEFT + (width - LEFT) * part, HEIGHT - 3, anchor, new Date(begin + span_ms * part).toLocaleTimeString("en-GB")));
    this.series.forEach((one, number) => {
      for (const run of runs(seen.map((sample) => [sample.time_ms, one.value(sample)]))) {
        const line = run.map(([at, value], index) => `${index ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("");
        if (number === 0) parts.push(svg("path", { class: `area s${number + 1}`, d: `${line}L${x(run.at(-1)[0])} ${y(0)}L${x(run[0][0])} ${y(0)}Z` }));
        parts.push(svg("path", { class: `line s${number + 1}`, d: line }));
      }
    });
    this.plot.replaceChildren(...parts);
    const last = samples.at(-1);
    fill(this.legend, this.series.map((one, number) => h("span", {}, h("i", { class: `s${number + 1}` }), `${one.name} `,
      h("b", {}, last && one.value(last) !== undefined ? this.format(one.value(last)) : "–"))));
  }
}

function runs(points) {
  const found = [[]];
  for (const [at, value] of points) {
    if (value === undefined || value === null) continue;
    if (found.at(-1).length && at - found.at(-1).at(-1)[0] > GAP_MS) found.push([]);
    found.at(-1).push([at, value]);
  }
  return found.filter((run) => run.length > 1);
}

// The last minutes of one figure in a line of text.
export function sparkline(values, name) {
  const top = Math.max(1e-9, ...values), step = 80 / Math.max(1, values.length - 1);
  const d = values.map((value, at) => `${at ? "L" : "M"}${(at * step).toFixed(1)} ${(18 - 16 * value / top).toFixed(1)}`).join("");
  return svg("svg", { class: "spark", viewBox: "0 0 80 20", role: "img", "aria-label": name }, svg("path", { class: "line s1", d }));
}

// Bars or a line over names, or over numbers and times where the names are such.
export function resultChart(names, values, title, width, kind) {
  const low = Math.min(0, ...values), top = Math.max(low + 1e-9, 0, ...values), step = (width - LEFT) / Math.max(1, values.length);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (value - low) / (top - low));
  const plot = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const value of [low, (low + top) / 2, top]) plot.append(svg("line", { class: "axis", x1: LEFT, x2: width, y1: y(value), y2: y(value) }), label(LEFT - 6, y(value) + 4, "end", Number(value.toPrecision(4)).toLocaleString("en")));
  const centre = (at) => LEFT + step * (at + 0.5);
  if (kind === "line") plot.append(svg("path", { class: "line s1", d: values.map((value, at) => `${at ? "L" : "M"}${centre(at).toFixed(1)} ${y(value).toFixed(1)}`).join("") }));
  values.forEach((value, at) => {
    const title = svg("title");
    title.textContent = `${names[at]}: ${value}`;
    if (kind === "bar") plot.append(svg("rect", { class: "s1", x: LEFT + step * at + step * 0.1, width: Math.max(0.5, step * 0.8), y: Math.min(y(value), y(0)), height: Math.abs(y(0) - y(value)) }, title));
    else plot.append(svg("circle", { class: "s1", cx: centre(at), cy: y(value), r: 2 }, title));
    const every = Math.ceil(values.length / Math.max(1, Math.floor((width - LEFT) / 80)));
    if (at % every === 0) plot.append(label(centre(at), HEIGHT - 3, "middle", String(names[at]).slice(0, Math.max(3, Math.floor(step * every / 6)))));
  });
  return plot;
}
