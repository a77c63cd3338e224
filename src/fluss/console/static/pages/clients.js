import { get } from "../api.js";
import { bytes, count, fill, h, problem, redraw, seconds, tile } from "../dom.js";
import { list } from "../grid.js";

export async function show(body, { current }) {
  let before = new Map(), at = 0;
  const tiles = h("div", { class: "tiles" }), place = h("div", {});
  fill(body, tiles, place);
  async function load() {
    const found = await get("clients");
    const now = performance.now(), passed = (now - at) / 1000;
    const rows = found.clients.map((one) => {
      const old = before.get(one.peer);
      const rate = (name) => old && passed < 60 ? Math.max(0, one[name] - old[name]) / passed : null;
      return { ...one, in_rate: rate("bytes_in"), out_rate: rate("bytes_out") };
    }).sort((a, b) => a.idle_s - b.idle_s);
    before = new Map(found.clients.map((one) => [one.peer, one]));
    at = now;
    if (!current()) return;
    redraw(tiles, tile("Connections", count(found.total)), tile("Users", count(new Set(rows.map((one) => one.user)).size)), tile("Idle for a minute", count(rows.filter((one) => one.idle_s > 60).length)), tile("Slow", count(rows.filter((one) => one.unsent_bytes > 0).length)));
    const state = (one) => one.unsent_bytes > 0 ? h("span", { class: "tag bad" }, "slow") : one.requests ? h("span", { class: "tag good" }, "in work") : one.idle_s > 60 ? h("span", { class: "tag" }, "idle") : h("span", { class: "tag good" }, "active");
    const rate = (value) => value === null ? "–" : `${bytes(value)}/s`;
    redraw(place, list([
      { name: "address", value: (one) => one.peer }, { name: "client", value: (one) => one.software }, { name: "user", value: (one) => one.user }, { name: "listener", value: (one) => one.listener }, { name: "state", value: state },
      { name: "reads", value: (one) => one.reads.map((read) => read.table).join(", ") },
      { name: "lag", number: true, value: (one) => one.reads.length ? count(one.reads.reduce((sum, read) => sum + read.lag, 0)) : "–" },
      { name: "requests in work", number: true, value: (one) => count(one.requests) }, { name: "idle", number: true, value: (one) => seconds(one.idle_s) },
      { name: "received", number: true, value: (one) => bytes(one.bytes_in) }, { name: "now", number: true, value: (one) => rate(one.in_rate) },
      { name: "sent", number: true, value: (one) => bytes(one.bytes_out) }, { name: "now", number: true, value: (one) => rate(one.out_rate) },
      { name: "not taken", number: true, value: (one) => bytes(one.unsent_bytes) },
    ], rows, "Connections"), h("p", { class: "muted small" }, "A client is slow when it does not take its answers. Its lag is the number of records that it has not asked for, of the tables it read last. Spark queries say that they are Spark; name yours with the option client.id. The console is a client too."));
  }
  await load();
  const timer = setInterval(() => load().catch((error) => { if (current()) fill(place, problem(error.message)); }), 2000);
  return () => clearInterval(timer);
}
