import { get, post } from "../api.js";
import { confirmDialog, count, field, fill, h, problem, tile, toast } from "../dom.js";
import { list } from "../grid.js";
import { codeView, propertyRows } from "./create.js";

export async function show(body, context) {
  const { table, session, refreshTables } = context;
  const [about, past] = await Promise.all([get("table", { table }), get("table/history", { table })]);
  const uses = (one) => [one.key && "primary key", one.partition && "partition", one.bucket && "bucket key", one.generated && "generated"].filter(Boolean).map((name) => [h("span", { class: "tag" }, name), " "]);
  const given = about.properties.filter((one) => one.value !== null), others = about.properties.filter((one) => one.value === null);
  const propertyList = (rows, label) => list([
    { name: "property", value: (one) => h("code", {}, one.name) }, { name: "value", value: (one) => one.value ?? "" }, { name: "default", value: (one) => one.default || "–" }, { name: "meaning", wrap: true, value: (one) => one.meaning },
  ], rows, label);
  const versions = past.versions.map((version, at) => {
    const older = new Set((past.versions[at + 1]?.columns || []).map(([name]) => name));
    const added = past.versions[at + 1] ? version.columns.filter(([name]) => !older.has(name)).map(([name, type]) => `${name} ${type}`) : [];
    return { id: version.schema_id, columns: version.columns.length, change: past.versions[at + 1] ? (added.length ? `added ${added.join(", ")}` : "changed") : "created" };
  });
  const errors = h("div", {}), code = h("div", {}), columnName = h("input", {}), columnType = h("input", { class: "mono", placeholder: "string" });
  const propertyPlace = h("div", {}), chosen = propertyRows(about.properties.filter((one) => one.alterable), propertyPlace);
  const form = () => ({ table, add_columns: columnName.value ? [{ name: columnName.value, type: columnType.value }] : [], properties: Object.fromEntries(Object.entries(chosen.values()).map(([name, value]) => [name, value === "" ? null : value])) });
  const act = async (work) => { fill(errors); try { await work(); } catch (error) { fill(errors, problem(error.message)); } };
  const alter = h("form", { class: "card", onsubmit: (event) => {
    event.preventDefault();
    act(async () => {
      await post("table/alter/code", form());
      if (!await confirmDialog("Change table", `Change ${table}? A column cannot be taken back.`, "Change")) return;
      await post("table/alter", form());
      toast("The table was changed.");
      await show(body, context);
    });
  } }, h("h2", {}, "Change the table"), h("div", { class: "bar" }, field("New column", columnName), field("Type", columnType)), propertyPlace, h("p", { class: "muted small" }, "An empty value resets a property to its default."),
    h("div", { class: "bar" }, h("button", { type: "button", onclick: chosen.add }, "Set a property"), h("button", { type: "button", onclick: () => act(async () => fill(code, codeView(await post("table/alter/code", form())))) }, "Show code"), h("button", { class: "primary", type: "submit" }, "Apply")));
  const drop = h("section", { class: "card dangerous" }, h("h2", {}, "Drop the table"), h("div", { class: "bar" }, h("span", { class: "wide" }, "All rows will be gone. This cannot be undone."), h("button", { class: "danger", type: "button", onclick: () => act(async () => {
    if (!await confirmDialog("Drop table", `All rows of ${table} will be gone.`, "Drop", table)) return;
    await post("table/drop", { table, confirm: table });
    toast(`${table} was dropped.`);
    await refreshTables();
    location.hash = "#/overview";
  }) }, "Drop table")));
  fill(body, h("div", { class: "tiles" }, tile("Kind", about.kind), tile("Buckets", count(about.buckets)), tile("Partitions", about.partition_keys.length ? count(about.partitions.length) : "none"), tile("Lake", about.lake || "off"), tile("Table id", about.id), tile("Created", new Date(about.created_ms).toLocaleDateString("en-CA"))),
    about.comment ? h("p", {}, about.comment) : null, errors,
    h("section", { class: "card" }, h("h2", {}, "Columns"), list([{ name: "column", value: (one) => h("code", {}, one.name) }, { name: "type", value: (one) => one.type }, { name: "used as", value: uses }, { name: "comment", wrap: true, value: (one) => one.comment || "" }], about.columns, "Columns")),
    h("section", { class: "card" }, h("h2", {}, "Properties"), given.length ? propertyList(given, "Properties that are set") : h("p", { class: "muted" }, "None is set."), Object.keys(about.custom_properties).length ? list([{ name: "custom property", value: ([name]) => name }, { name: "value", value: ([, value]) => value }], Object.entries(about.custom_properties), "Custom properties") : null, h("p", {}),
      h("details", {}, h("summary", {}, `${others.length} properties with their defaults`), propertyList(others, "Other properties"))),
    h("section", { class: "card" }, h("h2", {}, "History of the schema"), list([{ name: "version", value: (one) => one.id }, { name: "columns", number: true, value: (one) => one.columns }, { name: "change", wrap: true, value: (one) => one.change }], versions, "Versions of the schema")),
    session.read_only ? null : alter, code, session.read_only ? null : drop);
  return null;
}
