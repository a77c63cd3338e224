import { get, post } from "../api.js";
import { check, count, field, fill, h, problem, when } from "../dom.js";
import { openRow } from "../drawer.js";
import { grid } from "../grid.js";

const PAGE = 100, PAGES_KEPT = 50;

export async function show(body, { table, args, setArgs, session, current }) {
  const about = await get("table", { table });
  const isLog = about.kind === "log";
  const where = h("input", { class: "mono", placeholder: "price > 10 and item like 't%'", spellcheck: "false", value: args.where || "" });
  const snapshot = h("select", {}, h("option", { value: "" }, "now"), args.snapshot ? h("option", { value: args.snapshot }, `snapshot ${args.snapshot}`) : null);
  const mode = h("select", {}, h("option", { value: "rows" }, "current rows"), h("option", { value: "records" }, isLog ? "log by offset" : "changelog by offset"));
  const partition = h("select", {}, about.partitions.map((name) => h("option", { value: name }, name)));
  const bucket = h("input", { type: "number", min: 0, max: about.buckets - 1, value: args.bucket || 0 });
  const offset = h("input", { type: "number", placeholder: "first; negative: from the end", value: args.offset || "" });
  const asked = chosenNames(args.columns);
  const columns = about.columns.map((column) => check(column.name, { checked: !asked || asked.includes(column.name) }));
  const errors = h("div", {}), place = h("div", {}), footer = h("div", { class: "bar" });
  const rowFields = [field("Filter", where, true), about.lake ? field("As of", snapshot) : null];
  const recordFields = [about.partitions.length ? field("Partition", partition) : null, field("Bucket", bucket), field("Offset", offset)];
  const controls = h("span", { class: "bar wide" });
  let pages = [], at = 0, cursor = null, head = null, first = 0, loading = 0;
  if (args.show === "records") mode.value = "records";
  if (args.partition) partition.value = args.partition;
  if (args.snapshot) snapshot.value = args.snapshot;

  async function release() { if (cursor) { const old = cursor; cursor = null; await post("rows/close", { cursor: old }).catch(() => {}); } }
  // What failed replaces what was shown: rows of another filter would be taken for those of this one.
  function fail(error) { fill(errors, problem(error.message)); fill(place); fill(footer); }
  function busy() {
    const number = ++loading;
    fill(errors);
    place.setAttribute("aria-busy", "true");
    return () => { if (number === loading) place.removeAttribute("aria-busy"); return number === loading && current(); };
  }
  function chosen() {
    const names = columns.map((one, index) => one.box.checked ? about.columns[index].name : null).filter((name) => name !== null);
    return names.length === about.columns.length || !names.length ? null : JSON.stringify(names);
  }
  async function load(replace = false) {
    const records = mode.value === "records";
    setArgs(records ? { show: "records", partition: partition.value, bucket: bucket.value, offset: offset.value } : { where: where.value, columns: chosen(), snapshot: snapshot.value }, replace);
    await release();
    if (records) return loadRecords(offset.value);
    const done = busy();
    try {
      const found = await get("rows", { table, where: where.value, columns: chosen(), snapshot: snapshot.value, limit: PAGE });
      if (!done()) { if (found.cursor) post("rows/close", { cursor: found.cursor }).catch(() => {}); return; }
      head = found; cursor = found.cursor; pages = [found.rows]; at = 0; first = 0;
      draw();
    } catch (error) { if (done()) fail(error); }
  }
  async function loadRecords(from) {
    const done = busy();
    try {
      const found = await get("records", { table, bucket: bucket.value, partition: partition.value, offset: from, limit: PAGE });
      if (done()) drawRecords(found);
    } catch (error) { if (done()) fail(error); }
  }
  function drawRecords(found) {
    const rows = found.records.map((one) => [one.offset, one.kind, when(one.time_ms), ...one.row]);
    const open = (row) => openRow({ table, about, session, columns: found.columns, row: row.slice(3) });
    fill(place, rows.length ? grid(["offset", "change", "time", ...found.columns], ["bigint", "", "", ...found.types], rows, `Records of ${table}`, open) : h("div", { class: "empty" }, nothing(found)));
    const move = (text, to, enabled) => h("button", { type: "button", disabled: !enabled, onclick: () => { offset.value = to; load(); } }, text);
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
    const done = busy();
    try {
      const found = await get("rows/next", { table, cursor, limit: PAGE });
      if (!done()) return;
      cursor = found.cursor;
      pages.push(found.rows);
      if (pages.length > PAGES_KEPT) { pages.shift(); first++; } else { at++; }
      draw();
    } catch (error) { if (done()) { cursor = null; fail(error); } }
  }
  function draw() {
    const rows = pages[at];
    const open = (row) => openRow({ table, about, session, columns: head.columns, row });
    fill(place, rows.length ? grid(head.columns, head.types, rows, `Rows of ${table}`, open) : h("div", { class: "empty" }, where.value ? "No rows match." : "The table has no rows."));
    const start = (first + at) * PAGE;
    fill(footer, h("button", { type: "button", disabled: at === 0, onclick: () => { at--; draw(); } }, "‹ Previous"),
      h("button", { type: "button", disabled: at + 1 >= pages.length && !cursor, onclick: next }, "Next ›"),
      h("span", { class: "muted" }, rows.length ? `rows ${count(start + 1)} to ${count(start + rows.length)}${cursor || at + 1 < pages.length ? "" : ", the last"}` : ""));
  }
  function arrange() { fill(controls, mode.value === "records" ? recordFields : rowFields); }
  mode.addEventListener("change", () => { arrange(); load(); });
  snapshot.addEventListener("change", () => load());
  arrange();
  fill(body, h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); load(); } }, field("Show", mode), controls,
    h("button", { class: "primary", type: "submit" }, "Load")),
    h("details", {}, h("summary", {}, "Columns"), h("div", { class: "bar" }, columns)), errors, place, footer);
  if (about.lake) get("lake", { table }).then((lake) => { for (const id of lake.snapshots || []) if (String(id) !== args.snapshot) snapshot.append(h("option", { value: id }, `snapshot ${id}`)); }).catch(() => {});
  await load(true);
  return release;
}

function chosenNames(text) { try { return text ? JSON.parse(text) : null; } catch { return null; } }
