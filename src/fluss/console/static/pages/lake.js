import { get, post } from "../api.js";
import { bytes, count, fill, h, problem, seconds, tile, toast } from "../dom.js";
import { list } from "../grid.js";

export async function show(body, context) {
  const { table, session } = context;
  const found = await get("lake", { table });
  if (!found.enabled) {
    fill(body, h("div", { class: "hint" }, "The lake is off for this table. Start the server with ", h("code", {}, "-D datalake.format=paimon"), " (or iceberg), and set the property ", h("code", {}, "table.datalake.enabled=true"), " on the page Schema."));
    return null;
  }
  const errors = h("div", {});
  const tier = h("button", { class: "primary", type: "button", onclick: async () => {
    tier.disabled = true;
    tier.textContent = "Tiering…";
    try {
      const done = await post("lake/tier", { table });
      const rows = done.rounds.reduce((sum, one) => sum + (one.rows || 0), 0);
      toast(`${count(rows)} rows were tiered.`);
      await show(body, context);
    } catch (error) {
      fill(errors, problem(error.message));
      tier.disabled = false;
      tier.textContent = "Tier now";
    }
  } }, "Tier now");
  fill(body, errors, found.problem ? problem(found.problem) : null, h("div", { class: "tiles" }, tile("Format", found.format), tile("Snapshot", found.snapshot ?? "none"), tile("Behind", found.rows_behind ? `${count(found.rows_behind)} rows` : "up to date"),
    tile("Oldest row not tiered", found.rows_behind ? seconds(found.seconds_behind) : "–"), tile("Rows", count(found.rows)), tile("Files", count(found.files)), tile("Size", bytes(found.bytes)), tile("Freshness", seconds(found.freshness_ms / 1000))),
    session.read_only ? null : h("div", { class: "bar" }, tier),
    h("section", { class: "card" }, h("h2", {}, "Buckets"), list([
      { name: "partition", value: (one) => one.partition ?? "–" }, { name: "bucket", number: true, value: (one) => one.bucket }, { name: "tiered up to", number: true, value: (one) => count(one.tiered) }, { name: "end of the log", number: true, value: (one) => count(one.latest) },
      { name: "behind", number: true, value: (one) => `${count(one.rows_behind)} rows` },
    ], found.buckets, "Buckets")),
    h("section", { class: "card" }, h("h2", {}, "Snapshots"), found.snapshots.length ? h("p", {}, found.snapshots.map((id) => [h("span", { class: "tag" }, id), " "])) : h("p", { class: "muted" }, "None yet."), h("p", { class: "muted small" }, "The page Data reads the table as of each of them.")));
  return null;
}
