// One row at the side of the page: its values in full, as code, and the history of its key.
import { post } from "./api.js";
import { fill, h, problem, toast, when } from "./dom.js";
import { text } from "./grid.js";
import { link } from "./route.js";

const BYTES = /^(bytes|binary|varbinary)/i, NESTED = /^(array|map|row)/i, TEXTS = /^(string|char|varchar)/i;

// Exact numbers of JSON, also those that JavaScript would round.
function parsed(value) {
  try { return JSON.parse(value, (_, item, context) => typeof item === "number" && context?.source !== undefined && String(item) !== context.source ? { number: context.source } : item); } catch { return value; }
}

function tree(value) {
  if (value === null || typeof value !== "object") return h("span", { class: "mono" }, JSON.stringify(value));
  if ("number" in value && Object.keys(value).length === 1) return h("span", { class: "mono" }, value.number);
  const entries = Object.entries(value);
  return h("details", { open: true, class: "tree" }, h("summary", {}, Array.isArray(value) ? `${entries.length} items` : `${entries.length} fields`),
    h("ul", {}, entries.map(([name, item]) => h("li", {}, h("span", { class: "muted" }, `${name}: `), tree(item)))));
}

function hex(base64) {
  const bytes = atob(base64), lines = [];
  for (let at = 0; at < Math.min(bytes.length, 4096); at += 16) {
    const part = [...bytes.slice(at, at + 16)];
    lines.push(`${at.toString(16).padStart(6, "0")}  ${part.map((one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ").padEnd(47)}  ${part.map((one) => /[ -~]/.test(one) ? one : "·").join("")}`);
  }
  return h("pre", { tabindex: 0 }, `${lines.join("\n")}${bytes.length > 4096 ? `\n… ${bytes.length} bytes` : ""}`);
}

function shown(value, type) {
  if (value === null) return h("span", { class: "muted" }, "null");
  if (typeof value === "object") return text(value);
  if (NESTED.test(type)) return tree(parsed(value));
  if (BYTES.test(type)) return hex(value);
  return h("span", { class: "value" }, text(value));
}

// -- as code ---------------------------------------------------------------------------------------------------------

function json(value, type) {
  if (typeof value !== "string" || TEXTS.test(type) || !(NESTED.test(type) || /^bigint/i.test(type))) return JSON.stringify(value);
  return value;
}
const string = (value) => `'${value.replace(/'/g, "''")}'`;
function python(value, type) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number" || /^bigint/i.test(type)) return String(value);
  if (BYTES.test(type)) return `base64.b64decode(${JSON.stringify(value)})`;
  if (/^decimal/i.test(type)) return `Decimal("${value}")`;
  if (NESTED.test(type)) return `json.loads(${JSON.stringify(value)})`;
  if (/^(timestamp)/i.test(type)) return `datetime.fromisoformat("${value}")`;
  if (/^date/i.test(type)) return `date.fromisoformat("${value}")`;
  if (/^time/i.test(type)) return `time.fromisoformat("${value}")`;
  return JSON.stringify(value);
}
function sql(value, type) {
  if (value === null) return "NULL";
  if (typeof value !== "string" || /^(bigint|decimal)/i.test(type)) return String(value);
  return BYTES.test(type) ? `from_base64(${string(value)})` : NESTED.test(type) ? `CAST(${string(value)} AS JSON)` : string(value);
}
const name = (column) => `"${column.replace(/"/g, '""')}"`;

export function asCode(table, columns, values, types, form) {
  const pairs = columns.map((column, at) => [column, values[at], types[at]]);
  if (form === "JSON") return `{${pairs.map(([column, value, type]) => `${JSON.stringify(column)}: ${json(value, type)}`).join(", ")}}`;
  if (form === "Python") return `{${pairs.map(([column, value, type]) => `${JSON.stringify(column)}: ${python(value, type)}`).join(", ")}}`;
  return `INSERT INTO ${table.split(".").map(name).join(".")} (${columns.map(name).join(", ")}) VALUES (${pairs.map(([, value, type]) => sql(value, type)).join(", ")});`;
}

// -- the history of the key -----------------------------------------------------------------------------------------

function change(one, columns) {
  const cells = columns.map((column, at) => {
    const before = one.old?.[at], after = one.new?.[at];
    if (one.kind === "update" && one.old && text(before) === text(after)) return null;
    return h("div", {}, h("span", { class: "muted" }, `${column} `), one.old && one.kind !== "insert" ? h("del", {}, text(before)) : null, " ", one.new ? h("ins", {}, text(after)) : null);
  });
  return h("li", {}, h("div", {}, h("span", { class: `tag ${one.kind}` }, one.kind), " ", h("time", { datetime: new Date(one.time_ms).toISOString() }, when(one.time_ms)), h("span", { class: "muted small" }, ` offset ${one.offset}`)), cells);
}

async function history(place, table, key) {
  fill(place, h("div", { class: "muted" }, "Reading the changelog…"));
  try {
    const found = await post("rows/history", { table, key });
    fill(place, found.changes.length ? h("ol", { class: "history" }, found.changes.map((one) => change(one, found.columns))) : h("p", { class: "muted" }, "The changelog has no change of this key any more."),
      found.complete ? null : h("p", { class: "muted small" }, `Of the newest ${found.read.toLocaleString("en")} records of its bucket; older ones were not read.`));
  } catch (error) { fill(place, problem(error.message)); }
}

let drawer = null;

function closeRow() { drawer?.remove(); drawer = null; }

export async function openRow({ table, about, session, columns, row }) {
  closeRow();
  const opener = document.activeElement;
  const isKeyed = about.primary_key.length && about.primary_key.every((one) => columns.includes(one));
  const key = isKeyed ? Object.fromEntries(about.primary_key.map((one) => [one, row[columns.indexOf(one)]])) : null;
  const types = columns.map((column) => about.columns.find((one) => one.name === column)?.type || "");
  const copy = (form) => h("button", { type: "button", onclick: async () => {
    if (row.some((value) => typeof value === "object" && value !== null)) { toast("A value of this row is too long to be copied here.", true); return; }
    try { await navigator.clipboard.writeText(asCode(table, columns, row, types, form)); toast(`Copied as ${form}.`); } catch { toast("The browser does not allow copying here.", true); }
  } }, form);
  const past = h("section", {}), close = h("button", { type: "button", class: "ghost", "aria-label": "Close", onclick: () => { closeRow(); opener?.focus?.(); } }, "✕");
  drawer = h("aside", { class: "drawer", "aria-label": "Row", onkeydown: (event) => { if (event.key === "Escape") close.click(); } },
    h("div", { class: "bar" }, h("h2", {}, key ? Object.entries(key).map(([one, value]) => `${one} = ${text(value)}`).join(", ") : "Row"), h("span", { class: "grow" }), close),
    h("dl", {}, columns.map((column, at) => [h("dt", {}, column, " ", h("small", {}, types[at])), h("dd", {}, shown(row[at], types[at]))])),
    h("div", { class: "bar" }, h("span", { class: "muted" }, "Copy as"), ["JSON", "Python", "SQL"].map(copy), h("span", { class: "grow" }),
      key ? h("a", { class: "button", href: link("edit", table, { key: JSON.stringify(key) }) }, session.read_only ? "Look up" : "Edit") : null),
    key ? [h("h3", {}, "History of this key"), past] : null);
  document.getElementById("main").append(drawer);
  close.focus();
  if (key) await history(past, table, key);
}
window.addEventListener("hashchange", closeRow);
