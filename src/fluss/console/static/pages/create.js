import { get, post } from "../api.js";
import { field, fill, h, problem, toast } from "../dom.js";

export function codeView(code) {
  const view = h("pre", { tabindex: 0 });
  const names = { python: "Python", cli: "Command line", spark: "Spark" };
  const chosen = h("select", { "aria-label": "Language of the code", onchange: () => { view.textContent = code[chosen.value]; } },
    Object.entries(names).map(([key, name]) => h("option", { value: key }, name)));
  view.textContent = code.python;
  return h("section", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, "The same as code"), h("span", { class: "grow" }), chosen), view);
}

export function propertyRows(properties, place) {
  const rows = [];
  const add = () => {
    const meaning = h("div", { class: "muted small" });
    const name = h("select", {}, h("option", { value: "" }, "choose"), properties.map((one) => h("option", { value: one.name }, one.name)));
    const value = h("input", { class: "mono" });
    name.addEventListener("change", () => {
      const one = properties.find((other) => other.name === name.value);
      meaning.textContent = one ? `${one.meaning} Default: ${one.default || "none"}.` : "";
    });
    rows.push({ name, value });
    place.append(h("div", { class: "bar" }, field("Property", name), field("Value", value), meaning));
  };
  return { add, values: () => Object.fromEntries(rows.filter((one) => one.name.value).map((one) => [one.name.value, one.value.value])) };
}

const words = (text) => text.split(",").map((one) => one.trim()).filter(Boolean);

export async function show(body, { refreshTables, session }) {
  const { properties } = await get("table/properties");
  const name = h("input", { required: true, placeholder: "shop.orders" });
  const columns = h("textarea", { rows: 4, required: true, placeholder: "id bigint not null, item string, price decimal(10, 2)" });
  const key = h("input", { placeholder: "id" }), partition = h("input", { placeholder: "day" }), buckets = h("input", { type: "number", min: 1, placeholder: "1" }), comment = h("input", {});
  const propertyPlace = h("div", {}), chosen = propertyRows(properties, propertyPlace);
  const errors = h("div", {}), code = h("div", {});
  const form = () => ({ name: name.value, columns: columns.value, primary_key: words(key.value), partition_by: words(partition.value), buckets: buckets.value, comment: comment.value, properties: chosen.values() });
  const act = async (work) => { fill(errors); try { await work(); } catch (error) { fill(errors, problem(error.message)); } };
  fill(body, errors, h("form", { class: "card", onsubmit: (event) => {
    event.preventDefault();
    act(async () => {
      const made = await post("table/create", form());
      toast(`Table ${made.name} was created.`);
      await refreshTables();
      location.hash = `#/schema/${encodeURIComponent(made.name)}`;
    });
  } }, h("div", { class: "form" }, field("Name", name), field("Primary key (empty: a log)", key), field("Partitioned by", partition), field("Buckets", buckets), field("Comment", comment)),
    field("Columns", columns), h("p", {}), propertyPlace,
    h("div", { class: "bar" }, h("button", { type: "button", onclick: chosen.add }, "Add a property"), h("button", { type: "button", onclick: () => act(async () => fill(code, codeView(await post("table/create/code", form())))) }, "Show code"),
      h("button", { class: "primary", type: "submit", disabled: session.read_only }, "Create table"))), code);
  return null;
}
