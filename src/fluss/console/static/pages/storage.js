import { get } from "../api.js";
import { bytes, count, fill, h, problem, tile } from "../dom.js";
import { list } from "../grid.js";

function meter(part, label) {
  const bar = h("i", {});
  bar.style.width = `${Math.round(part * 100)}%`;
  return h("div", { class: "meter", role: "img", "aria-label": label }, bar);
}

export async function show(body, { table }) {
  const [found, about] = await Promise.all([get("storage", { table }), get("table", { table })]);
  const size = (one) => one.rows ?? Math.max(0, one.latest - one.earliest);
  const sizes = found.buckets.map(size), most = Math.max(1, ...sizes), mean = sizes.reduce((sum, one) => sum + one, 0) / Math.max(1, sizes.length);
  const sum = (name) => found.buckets.some((one) => one[name] !== null) ? found.buckets.reduce((total, one) => total + (one[name] || 0), 0) : null;
  const keyed = about.primary_key.length > 0;
  fill(body, found.problems.map(problem), h("div", { class: "tiles" }, tile("Buckets", count(found.buckets.length)), tile("Rows", count(sum("rows"))), tile("Local log", bytes(sum("log_bytes"))), tile("Segments", count(sum("segments"))), tile("Skew", mean ? `${(most / mean).toFixed(2)} ×` : "–")),
    list([
      about.partition_keys.length ? { name: "partition", value: (one) => one.partition } : null,
      { name: "bucket", number: true, value: (one) => one.bucket }, { name: "first offset", number: true, value: (one) => count(one.earliest) }, { name: "end offset", number: true, value: (one) => count(one.latest) },
      { name: "rows", number: true, value: (one) => count(one.rows) }, { name: "share", value: (one) => meter(size(one) / most, `${count(size(one))} rows`) }, { name: "local log", number: true, value: (one) => bytes(one.log_bytes) }, { name: "segments", number: true, value: (one) => count(one.segments) },
      { name: "remote up to", number: true, value: (one) => count(one.remote_end) }, keyed ? { name: "snapshot", number: true, value: (one) => one.snapshot ?? "–" } : null,
    ].filter(Boolean), found.buckets, "Buckets"),
    found.more_partitions ? h("p", { class: "muted" }, `and ${count(found.more_partitions)} more partitions`) : null,
    h("p", { class: "muted small" }, "Skew is the largest bucket compared with the mean. Bytes and segments are known for the embedded server only."));
  return null;
}
