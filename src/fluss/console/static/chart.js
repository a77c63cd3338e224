// Small charts as SVG.
import { fill, h, svg } from "./dom.js";

const WIDTH = 400, HEIGHT = 130, LEFT = 64, TOP = 8, BOTTOM = 16;

export class LineChart {
  constructor(title, series, format) {
    this.series = series;
    this.format = format;
    this.plot = svg("svg", { class: "chart", role: "img", "aria-label": title });
    this.legend = h("div", { class: "legend" });
    this.element = h("section", { class: "card" }, h("h2", {}, title), this.plot, this.legend);
  }

  show(samples, capacity) {
    const top = Math.max(1e-9, ...samples.flatMap((sample) => this.series.map((one) => one.value(sample) || 0))) * 1.1;
    const width = this.plot.clientWidth || WIDTH;
    this.plot.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const x = (at) => LEFT + (width - LEFT) * (capacity - samples.length + at) / Math.max(1, capacity - 1);
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top);
    const parts = [0, 0.5, 1].flatMap((part) => {
      const at = y(top * part / 1.1);
      const label = svg("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" });
      label.textContent = this.format(top * part / 1.1);
      return [svg("line", { class: "axis", x1: LEFT, x2: width, y1: at, y2: at }), label];
    });
    this.series.forEach((one, number) => {
      const points = samples.map((sample, at) => [x(at), one.value(sample)]).filter(([, value]) => value !== undefined && value !== null);
      if (points.length < 2) return;
      const line = points.map(([at, value], index) => `${index ? "L" : "M"}${at.toFixed(1)} ${y(value).toFixed(1)}`).join("");
      if (number === 0) parts.push(svg("path", { class: `area s${number + 1}`, d: `${line}L${points.at(-1)[0]} ${y(0)}L${points[0][0]} ${y(0)}Z` }));
      parts.push(svg("path", { class: `line s${number + 1}`, d: line }));
    });
    this.plot.replaceChildren(...parts);
    const last = samples.at(-1);
    fill(this.legend, this.series.map((one, number) => h("span", {}, h("i", { class: `s${number + 1}` }), `${one.name} `,
      h("b", {}, last && one.value(last) !== undefined ? this.format(one.value(last)) : "–"))));
  }
}

export function barChart(names, values, label, width = WIDTH) {
  const top = Math.max(1e-9, ...values), step = (width - LEFT) / Math.max(1, values.length);
  const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.max(0, value) / top);
  const plot = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const part of [0, 0.5, 1]) {
    const text = svg("text", { x: LEFT - 6, y: y(top * part) + 4, "text-anchor": "end" });
    text.textContent = Number((top * part).toPrecision(3)).toLocaleString("en");
    plot.append(svg("line", { class: "axis", x1: LEFT, x2: width, y1: y(top * part), y2: y(top * part) }), text);
  }
  values.forEach((value, at) => {
    const title = svg("title");
    title.textContent = `${names[at]}: ${value}`;
    plot.append(svg("rect", { class: "s1", x: LEFT + step * at + step * 0.1, width: Math.max(0.5, step * 0.8), y: y(value), height: Math.max(0, y(0) - y(value)) }, title));
    if (values.length <= 12) {
      const name = svg("text", { x: LEFT + step * (at + 0.5), y: HEIGHT - 3, "text-anchor": "middle" });
      name.textContent = String(names[at]).slice(0, Math.max(3, Math.floor(step / 6)));
      plot.append(name);
    }
  });
  return plot;
}
