import { get, post } from "../api.js";
import { check, count, field, fill, h, problem, when } from "../dom.js";
import { grid } from "../grid.js";

const PAGE = 100, PAGES_KEPT = 50;

export async function show(body, { table }) {
  const about = await get("table", { table });
  const isLog = about.kind === "log";
  const where = h("input", { class: "mono", placeholder: "price > 10 and item like 't%'", spellcheck: "false" });
  const snapshot = h("select", {}, h("option", { value: "" }, "now"));
  const mode = h("select", {}, h("option", { value: "rows" }, "current rows"), h("option", { value: "records" }, isLog ? "log by offset" : "changelog by offset"));
  const partition = h("select", {}, about.partitions.map((name) => h("option", { value: name }, name)));
  const bucket = h("input", { type: "number", min: 0, max: about.buckets - 1, value: 0 });
  const offset = h("input", { type: "number", placeholder: "first; negative: from the end" });
  const columns = about.columns.map((column) => check(column.name, { checked: true }));
  const errors = h("div", {}), place = h("div", {}), footer = h("div", { class: "bar" });
  const rowFields = [field("Filter", where, true), about.lake ? field("As of", snapshot) : null];
  const recordFields = [about.partitions.length ? field("Partition", partition) : null, field("Bucket", bucket), field("Offset", offset)];
  const controls = h("span", { class: "bar wide" });
  let pages = [], at = 0, cursor = null, head = null, first = 0;

  async function release() { if (cursor) { const old = cursor; cursor = null; await post("rows/close", { cursor: old }).catch(() => {}); } }

  async function load() {
    fill(errors);
    await release();
    pages = []; at = 0; first = 0;
    try {
      if (mode.value === "records") return await loadRecords(offset.value);
      const chosen = columns.map((one, index) => one.box.checked ? about.columns[index].name : null).filter((name) => name !== null);
      head = await get("rows", { table, where: where.value, columns: chosen.join("\n"), snapshot: snapshot.value, limit: PAGE });
      cursor = head.cursor;
      pages = [head.rows];
      draw();
    } catch (error) {
      fill(errors, problem(error.message));
    }
  }
  async function loadRecords(from) {
    const found = await get("records", { table, bucket: bucket.value, partition: partition.value, offset: from, limit: PAGE });
    const rows = found.records.map((one) => [one.offset, one.kind, when(one.time_ms), ...one.row]);
    fill(place, rows.length ? grid(["offset", "change", "time", ...found.columns], ["bigint", "", "", ...found.types], rows, `Records of ${table}`) : h("div", { class: "empty" }, nothing(found)));
    const move = (text, to, enabled) => h("button", { type: "button", disabled: !enabled, onclick: () => loadRecords(to).catch((error) => fill(errors, problem(error.message))) }, text);
    fill(footer, move("‹ Previous", Math.max(found.earliest, found.start - PAGE), found.start > found.earliest),
      move("Next ›", found.next, found.next !== null), h("span", { class: "muted" }, `offsets ${count(found.start)} to ${count(found.start + rows.length)} of ${count(found.earliest)} to ${count(found.latest)}`));
  }
  function nothing(found) {
    if (found.latest > found.earliest) return "No records from this offset on.";
    if (!found.other_buckets.length) return "No bucket has records.";
    const choose = (number) => h("button", { type: "button", onclick: () => { bucket.value = number; offset.value = ""; load(); } }, `bucket ${number}`);
    return [`Bucket ${bucket.value} has no records. Look at `, found.other_buckets.map((number) => [choose(number), " "])];
  }
  async function next() {
    if (at + 1 < pages.length) { at++; draw(); return; }
    try {
      const found = await get("rows/next", { table, cursor, limit: PAGE });
      cursor = found.cursor;
      pages.push(found.rows);
      if (pages.length > PAGES_KEPT) { pages.shift(); first++; } else { at++; }
      draw();
    } catch (error) {
      fill(errors, problem(error.message));
    }
  }
  function draw() {
    const rows = pages[at];
    const open = about.primary_key.length && about.primary_key.every((name) => head.columns.includes(name)) ? (row) => {
      const key = Object.fromEntries(about.primary_key.map((name) => [name, row[head.columns.indexOf(name)]]));
      sessionStorage.setItem("fluss-key", JSON.stringify({ table, key }));
      location.hash = `#/edit/${encodeURIComponent(table)}`;
    } : null;
    fill(place, rows.length ? grid(head.columns, head.types, rows, `Rows of ${table}`, open) : h("div", { class: "empty" }, "No rows match."));
    const start = (first + at) * PAGE;
    fill(footer, h("button", { type: "button", disabled: at === 0, onclick: () => { at--; draw(); } }, "‹ Previous"),
      h("button", { type: "button", disabled: at + 1 >= pages.length && !cursor, onclick: next }, "Next ›"),
      h("span", { class: "muted" }, rows.length ? `rows ${count(start + 1)} to ${count(start + rows.length)}${cursor || at + 1 < pages.length ? "" : ", the last"}` : ""),
      open ? h("span", { class: "muted" }, "double-click a row to edit it") : null);
  }
  function arrange() { fill(controls, mode.value === "records" ? recordFields : rowFields); }
  mode.addEventListener("change", () => { arrange(); load(); });
  snapshot.addEventListener("change", load);
  arrange();
  fill(body, h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); load(); } }, field("Show", mode), controls,
    h("button", { class: "primary", type: "submit" }, "Load")),
    h("details", {}, h("summary", {}, "Columns"), h("div", { class: "bar" }, columns)), errors, place, footer);
  if (about.lake) get("lake", { table }).then((lake) => { for (const id of lake.snapshots || []) snapshot.append(h("option", { value: id }, `snapshot ${id}`)); }).catch(() => {});
  await load();
  return release;
}
