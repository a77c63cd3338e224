import { get, post } from "../api.js";
import { confirmDialog, field, fill, h, problem, toast } from "../dom.js";
import { text } from "../grid.js";

// A field of the form. It knows what it showed first: what was not touched is never written.
function input(column, value) {
  const isNew = value === undefined, cut = typeof value === "object" && value !== null;
  const choices = column.boolean ? [...(column.nullable ? ["null"] : isNew ? [""] : []), "true", "false"] : null;
  const control = choices ? h("select", {}, choices.map((one) => h("option", { value: one }, one || "choose")))
    // A text area and not an input, which would join the lines of a text.
    : h("textarea", { class: "mono", rows: 1, placeholder: column.hint || null, spellcheck: "false", disabled: cut });
  const nullBox = column.nullable && !choices ? h("input", { type: "checkbox", "aria-label": `${column.name} is null`, disabled: cut }) : null;
  const isNull = value === null || (isNew && column.nullable);
  if (choices) control.value = isNull ? "null" : isNew ? "" : String(value);
  else control.value = isNull || isNew ? "" : text(value);
  if (nullBox) nullBox.checked = isNull;
  const size = () => { control.rows = Math.min(12, control.value.split("\n").length + Math.floor(control.value.length / 60)); };
  if (!choices) size();
  control.addEventListener("input", () => { if (nullBox) nullBox.checked = isNew && control.value === ""; if (!choices) size(); });
  nullBox?.addEventListener("change", () => { if (nullBox.checked) control.value = ""; });
  const read = () => nullBox?.checked || control.value === "null" && choices ? null : control.value;
  const first = read();
  const box = field(`${column.name} · ${column.type}`, control);
  if (nullBox) box.append(h("label", { class: "check small" }, nullBox, "null"));
  if (cut) box.append(h("span", { class: "small" }, `${value.length} characters: too long to be edited here`));
  // Browsers give line ends as \n, whatever the text had.
  const restored = (given) => given !== null && typeof value === "string" && value.includes("\r\n") ? given.replace(/\n/g, "\r\n") : given;
  return { box, control, name: column.name, touched: () => read() !== first, value: () => restored(read()) };
}

function differences(rows, names = ["column", "before", "after"]) {
  const cell = (value, tag) => h("td", { class: "wrap" }, value === undefined ? "" : h(tag, {}, text(value)));
  return h("div", { class: "grid" }, h("table", {}, h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, rows.map(([name, ...values]) => h("tr", {}, h("th", { scope: "row" }, name), values.map((value, at) => cell(value, ["del", "ins", "span"][at])))))));
}

export async function show(body, { table, session, args, setArgs }) {
  const about = await get("table", { table });
  const isKeyed = about.primary_key.length > 0;
  const errors = h("div", {}), place = h("div", {});
  const keys = new Map(about.primary_key.map((name) => [name, h("input", { class: "mono" })]));
  const readKey = () => Object.fromEntries([...keys].map(([name, control]) => [name, control.value]));
  const disabled = session.read_only;
  const fail = (error) => fill(errors, problem(error.message));

  // The row was changed by another client meanwhile: both versions, and what was to be written.
  function conflict(error, row, wanted, key) {
    const now = error.body.row, names = Object.keys(row).filter((name) => name in wanted || (now && text(now[name]) !== text(row[name])));
    fill(errors, problem(`${error.message} Nothing was written.`),
      now ? differences(names.map((name) => [name, row[name], now[name], wanted[name]]), ["column", "when it was shown", "now", "to be written"]) : null,
      h("p", {}, h("button", { type: "button", onclick: () => lookup(key) }, "Show the row as it is now")));
  }

  function edit(row, version) {
    const key = Object.fromEntries(about.primary_key.map((name) => [name, row[name]]));
    const inputs = about.columns.filter((column) => !column.generated && !column.key).map((column) => input(column, row[column.name]));
    const save = async (event) => {
      event.preventDefault();
      fill(errors);
      const touched = inputs.filter((one) => one.touched()), wanted = Object.fromEntries(touched.map((one) => [one.name, one.value()]));
      if (!touched.length) { toast("Nothing was changed."); return; }
      if (!await confirmDialog("Change row", differences(touched.map((one) => [one.name, row[one.name], wanted[one.name]])), "Change")) return;
      try {
        await post("rows/update", { table, key, row: wanted, version });
        toast("The row was changed.");
        await lookup(key);
      } catch (error) { if (error.status === 409) conflict(error, row, wanted, key); else fail(error); }
    };
    const remove = async () => {
      if (!await confirmDialog("Delete row", `Delete the row ${named(key)} of ${table}?`, "Delete")) return;
      try {
        await post("rows/delete", { table, key, version });
        toast("The row was deleted.");
        fill(place, h("div", { class: "empty" }, "Deleted."));
      } catch (error) { if (error.status === 409) conflict(error, row, {}, key); else fail(error); }
    };
    fill(place, h("form", { class: "card", onsubmit: save }, h("h2", {}, "Row ", h("code", {}, named(key))), h("div", { class: "form" }, inputs.map((one) => one.box)),
      disabled ? h("p", { class: "muted" }, "This console is read-only.") : h("div", { class: "bar" },
        h("button", { class: "primary", type: "submit" }, "Save changes"), h("span", { class: "grow" }), h("button", { class: "danger", type: "button", onclick: remove }, "Delete row"))));
  }
  function insert(key) {
    const inputs = about.columns.filter((column) => !column.generated).map((column) => input(column, undefined));
    for (const one of inputs) if (key[one.name]) one.control.value = key[one.name];
    const save = async (event) => {
      event.preventDefault();
      fill(errors);
      const row = Object.fromEntries(inputs.map((one) => [one.name, one.value()]));
      if (!await confirmDialog(isKeyed ? "Insert row" : "Append row", `Write this row to ${table}?`, "Write")) return;
      try {
        await post("rows/save", { table, row });
        toast("The row was written.");
        if (isKeyed) await lookup(Object.fromEntries(about.primary_key.map((name) => [name, row[name]])));
      } catch (error) { fail(error); }
    };
    fill(place, h("form", { class: "card", onsubmit: save }, h("h2", {}, isKeyed ? "New row" : "Append a row"), h("div", { class: "form" }, inputs.map((one) => one.box)),
      disabled ? h("p", { class: "muted" }, "This console is read-only.") : h("div", { class: "bar" }, h("button", { class: "primary", type: "submit" }, "Write"))));
  }
  async function lookup(key) {
    fill(errors);
    for (const [name, control] of keys) control.value = text(key[name]);
    setArgs({ key: JSON.stringify(key) });
    try {
      const { row, version } = await post("lookup", { table, key });
      if (row === null) fill(place, h("div", { class: "card empty" }, "There is no row with this key. ", disabled ? null : h("button", { type: "button", onclick: () => insert(key) }, "Insert it")));
      else edit(row, version);
    } catch (error) { fill(place); fail(error); }
  }
  if (!isKeyed) {
    fill(body, h("div", { class: "hint" }, "A log table has no key: its rows cannot be looked up or changed, only appended."), errors, place);
    insert({});
    return null;
  }
  fill(body, h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); lookup(readKey()); } },
    about.columns.filter((column) => column.key).map((column) => field(`${column.name} · ${column.type}`, keys.get(column.name))),
    h("button", { class: "primary", type: "submit" }, "Look up"), disabled ? null : h("button", { type: "button", onclick: () => { fill(errors); insert(readKey()); } }, "New row")), errors, place);
  if (args.key) try { await lookup(JSON.parse(args.key)); } catch (error) { fail(error); }
  return null;
}

function named(key) { return Object.entries(key).map(([name, value]) => `${name} = ${text(value)}`).join(", "); }
