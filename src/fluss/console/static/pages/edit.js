import { get, post } from "../api.js";
import { confirmDialog, field, fill, h, problem, toast } from "../dom.js";
import { text } from "../grid.js";

export async function show(body, { table, session }) {
  const about = await get("table", { table });
  const isKeyed = about.primary_key.length > 0;
  const errors = h("div", {}), place = h("div", {});
  const fail = (error) => fill(errors, problem(error.message));
  const keys = new Map(about.primary_key.map((name) => [name, h("input", { class: "mono" })]));

  const input = (column, value) => {
    const nullBox = h("input", { type: "checkbox", "aria-label": `${column.name} is null` });
    const control = /boolean/i.test(column.type) ? h("select", {}, h("option", { value: "true" }, "true"), h("option", { value: "false" }, "false"))
      : h(text(value ?? "").length > 60 || /^(array|map|row)/i.test(column.type) ? "textarea" : "input", { class: "mono", placeholder: column.hint || null });
    if (value !== null && value !== undefined) control.value = text(value);
    nullBox.checked = value === null;
    const sync = () => { control.disabled = nullBox.checked; };
    nullBox.addEventListener("change", sync);
    sync();
    const nullable = !/not null/i.test(column.type);
    const box = field(`${column.name} · ${column.type}`, control);
    if (nullable) box.append(h("label", { class: "check small" }, nullBox, "null"));
    return { box, value: () => nullable && nullBox.checked ? null : control.value, name: column.name };
  };
  const readKey = () => Object.fromEntries([...keys].map(([name, control]) => [name, control.value]));
  const disabled = session.read_only;

  function edit(row) {
    const isNew = row === null;
    const columns = about.columns.filter((column) => !column.generated && (isNew || !column.key));
    const inputs = columns.map((column) => input(column, isNew ? (column.key && keys.get(column.name)?.value ? keys.get(column.name).value : undefined) : row[column.name]));
    const save = async (event) => {
      event.preventDefault();
      fill(errors);
      try {
        if (isNew) {
          const given = Object.fromEntries(inputs.map((one) => [one.name, one.value()]));
          if (!await confirmDialog(isKeyed ? "Insert row" : "Append row", `Write this row to ${table}?`, "Write")) return;
          await post("rows/save", { table, row: given });
          toast("The row was written.");
          if (!isKeyed) return;
          for (const name of about.primary_key) keys.get(name).value = given[name];
        } else {
          const changed = Object.fromEntries(inputs.filter((one) => one.value() === null ? row[one.name] !== null : one.value() !== text(row[one.name])).map((one) => [one.name, one.value()]));
          if (!Object.keys(changed).length) { toast("Nothing was changed."); return; }
          if (!await confirmDialog("Change row", `Change ${Object.keys(changed).join(", ")} of this row of ${table}?`, "Change")) return;
          await post("rows/update", { table, key: readKey(), row: changed });
          toast("The row was changed.");
        }
        await lookup();
      } catch (error) { fail(error); }
    };
    fill(place, h("form", { class: "card", onsubmit: save }, h("h2", {}, isNew ? (isKeyed ? "New row" : "Append a row") : "Row"), h("div", { class: "form" }, inputs.map((one) => one.box)),
      disabled ? h("p", { class: "muted" }, "This console is read-only.") : h("div", { class: "bar" },
        h("button", { class: "primary", type: "submit" }, isNew ? "Write" : "Save changes"),
        isNew ? null : h("button", { class: "danger", type: "button", onclick: remove }, "Delete row"))));
  }
  async function remove() {
    const key = readKey();
    if (!await confirmDialog("Delete row", `Delete the row ${JSON.stringify(key)} of ${table}?`, "Delete")) return;
    try {
      await post("rows/delete", { table, key });
      toast("The row was deleted.");
      fill(place, h("div", { class: "empty" }, "Deleted."));
    } catch (error) { fail(error); }
  }
  async function lookup() {
    fill(errors);
    try {
      const { row } = await post("lookup", { table, key: readKey() });
      if (row === null) {
        fill(place, h("div", { class: "card empty" }, "There is no row with this key. ", disabled ? null : h("button", { type: "button", onclick: () => edit(null) }, "Insert it")));
      } else edit(row);
    } catch (error) { fail(error); }
  }
  if (!isKeyed) {
    fill(body, h("div", { class: "hint" }, "A log table has no key: its rows cannot be looked up or changed, only appended."), errors, place);
    edit(null);
    return null;
  }
  fill(body, h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); lookup(); } },
    about.columns.filter((column) => column.key).map((column) => field(`${column.name} · ${column.type}`, keys.get(column.name))),
    h("button", { class: "primary", type: "submit" }, "Look up"), disabled ? null : h("button", { type: "button", onclick: () => edit(null) }, "New row")), errors, place);
  const kept = JSON.parse(sessionStorage.getItem("fluss-key") || "null");
  sessionStorage.removeItem("fluss-key");
  if (kept && kept.table === table) {
    for (const [name, value] of Object.entries(kept.key)) if (keys.has(name)) keys.get(name).value = text(value);
    await lookup();
  }
  return null;
}
