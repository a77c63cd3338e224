import { get } from "../api.js";
import { count, fill, h, problem, redraw, seconds } from "../dom.js";
import { list } from "../grid.js";
import { link } from "../route.js";

export async function show(body, { current }) {
  const place = h("div", {});
  fill(body, place);
  const table = (one) => h("a", { href: link("live", one.table) }, one.table);
  async function load() {
    const found = await get("consumers");
    if (!current()) return;
    const position = (one) => one.position === null ? "current rows" : count(one.position);
    redraw(place, h("section", { class: "card" }, h("h2", {}, "Groups"), found.groups.length ? found.groups.map((group) => [
      h("h3", {}, group.group, " ", h("span", { class: "muted" }, "follows "), table(group), " ", h("span", { class: `tag ${group.members.length ? "good" : "warn"}` }, `${count(group.members.length)} members`), " ", h("span", { class: `tag ${group.lag ? "warn" : "good"}` }, `${count(group.lag)} behind`)),
      group.buckets.length ? list([
        { name: "partition", value: (one) => one.partition ?? "–" }, { name: "bucket", number: true, value: (one) => one.bucket }, { name: "position", number: true, value: position }, { name: "end", number: true, value: (one) => count(one.end) },
        { name: "lag", number: true, value: (one) => count(one.lag) }, { name: "owner", value: (one) => { const owner = group.members.find((member) => member.member === one.member); return owner ? `${owner.host} (${owner.member.slice(0, 8)})` : "–"; } },
      ], group.buckets, `Buckets of group ${group.group}`) : h("p", { class: "muted" }, "The table is gone."),
    ]) : h("p", { class: "muted" }, "No program follows a table in a group. In Python: ", h("code", {}, 'db.table("orders").follow(group="billing")'))),
    h("section", { class: "card" }, h("h2", {}, "Readers"), found.problem ? h("div", { class: "hint" }, found.problem) : found.readers.length ? list([
      { name: "table", value: table }, { name: "client", value: (one) => one.software }, { name: "address", value: (one) => one.peer }, { name: "user", value: (one) => one.user },
      { name: "buckets", number: true, value: (one) => count(one.buckets) }, { name: "lag", number: true, value: (one) => count(one.lag) }, { name: "last request", number: true, value: (one) => `${seconds(one.idle_s)} ago` },
    ], found.readers, "Readers") : h("p", { class: "muted" }, "No client reads a table at the moment.")));
  }
  await load();
  const timer = setInterval(() => load().catch((error) => { if (current()) fill(place, problem(error.message)); }), 4000);
  return () => clearInterval(timer);
}
