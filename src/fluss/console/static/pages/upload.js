import { upload } from "../api.js";
import { bytes, count, field, fill, h, problem, toast } from "../dom.js";
import { grid } from "../grid.js";

const BYTES_MAX = 256 * 1024 * 1024;

export async function show(body, { refreshTables, takeFile }) {
  const place = h("div", {});
  const chooser = h("input", { type: "file", accept: ".csv,.tsv,.txt,.parquet,.pq", "aria-label": "File", onchange: () => chooser.files[0] && preview(chooser.files[0]) });
  const zone = h("div", { class: "drop", ondragover: (event) => { event.preventDefault(); zone.classList.add("over"); }, ondragleave: () => zone.classList.remove("over") }, h("p", {}, "Drop a CSV or Parquet file here, or choose one. You see its schema before a table is created."), chooser);
  async function preview(file) {
    if (file.size > BYTES_MAX) { fill(place, problem(`The file has ${bytes(file.size)}; the console takes up to ${bytes(BYTES_MAX)}. Load larger files with Python: db.create_table(name, data).`)); return; }
    fill(place, h("div", { class: "empty" }, "Reading…"));
    try {
      draw(file, await upload("upload/preview", file, { file: file.name }));
    } catch (error) { fill(place, problem(error.message)); }
  }
  function draw(file, found) {
    const name = h("input", { value: file.name.replace(/\.[^.]*$/, "").replace(/\W+/g, "_").toLowerCase(), required: true });
    const key = h("select", { multiple: true, size: Math.min(4, found.columns.length) }, found.columns.map(([column]) => h("option", { value: column }, column)));
    const buckets = h("input", { type: "number", min: 1, value: 1 });
    const types = found.columns.map(([column, type]) => ({ column, type, input: h("input", { class: "mono", value: type, list: "upload-types", spellcheck: "false" }) }));
    const changed = () => JSON.stringify(Object.fromEntries(types.filter((one) => one.input.value.trim() !== one.type).map((one) => [one.column, one.input.value.trim()])));
    const errors = h("div", {}), create = h("button", { class: "primary", type: "submit" }, "Create table and load");
    fill(place, errors, h("form", { class: "card", onsubmit: async (event) => {
      event.preventDefault();
      create.disabled = true;
      try {
        const chosen = [...key.selectedOptions].map((one) => one.value).join("\n");
        const made = await upload("upload/create", file, { file: file.name, name: name.value, key: chosen, buckets: buckets.value, types: changed() });
        toast(`${made.name} has ${count(made.rows)} rows.`);
        await refreshTables();
        location.hash = `#/data/${encodeURIComponent(made.name)}`;
      } catch (error) { fill(errors, problem(error.message)); create.disabled = false; }
    } }, h("h2", {}, `${file.name}: ${count(found.total)} rows, ${found.columns.length} columns`), h("div", { class: "form" }, field("Table", name), field("Primary key (none: a log)", key), field("Buckets", buckets)),
      h("datalist", { id: "upload-types" }, ["string", "int", "bigint", "double", "decimal(10, 2)", "boolean", "date", "timestamp(3)"].map((type) => h("option", { value: type }))),
      h("details", {}, h("summary", {}, "Types of the columns"), h("div", { class: "form" }, types.map((one) => field(`Type of ${one.column}`, one.input)))), create),
      grid(found.columns.map(([column]) => column), found.columns.map(([, type]) => type), found.rows, "First rows of the file"));
  }
  fill(body, zone, h("p", {}), place);
  const dropped = takeFile();
  if (dropped) await preview(dropped);
  return null;
}
