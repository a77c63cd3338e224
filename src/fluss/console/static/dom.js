// Elements are made here and nowhere else: names, values and errors become text nodes, never markup.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) { element.addEventListener(name.slice(2), value); element.listens = true; }
    else if (name === "class") element.className = value;
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  append(element, children);
  return element;
}

export function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

// The same as `fill`, but elements that are there already stay: their scroll position, focus and selection are kept.
export function redraw(element, ...children) { morph(element, append(document.createElement("div"), children)); }

function morph(old, fresh) {
  const before = [...old.childNodes], after = [...fresh.childNodes];
  after.forEach((node, at) => {
    const there = before[at];
    if (!there) old.append(node);
    else if (there.nodeType !== node.nodeType || there.nodeName !== node.nodeName || there.listens || node.listens) there.replaceWith(node);
    else if (node.nodeType === Node.TEXT_NODE) { if (there.data !== node.data) there.data = node.data; }
    else {
      for (const name of there.getAttributeNames()) if (!node.hasAttribute(name)) there.removeAttribute(name);
      for (const name of node.getAttributeNames()) if (there.getAttribute(name) !== node.getAttribute(name)) there.setAttribute(name, node.getAttribute(name));
      morph(there, node);
    }
  });
  before.slice(after.length).forEach((node) => node.remove());
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  for (const child of children) element.append(child);
  return element;
}

let fieldNumber = 0;
export function field(label, control, wide = false) {
  control.id ||= `field-${++fieldNumber}`;
  return h("div", { class: wide ? "field wide" : "field" }, h("label", { for: control.id }, label), control);
}

export function check(label, attributes = {}) {
  const box = h("input", { type: "checkbox", ...attributes });
  const line = h("label", { class: "check" }, box, label);
  line.box = box;
  return line;
}

export function tile(name, value) {
  return h("div", { class: "tile" }, h("div", { class: "name" }, name), h("div", { class: "value" }, value));
}

export function problem(text) { return h("div", { class: "problem", role: "alert" }, text); }

export function toast(text, bad = false) {
  const box = h("div", { class: bad ? "bad" : "" }, text);
  document.getElementById("toasts").append(box);
  setTimeout(() => box.remove(), bad ? 9000 : 4000);
}

export function confirmDialog(title, text, action, word = null) {
  return new Promise((resolve) => {
    const input = word === null ? null : h("input", { autocomplete: "off" });
    const yes = h("button", { type: "submit", class: "danger" }, action);
    const done = (value) => { dialog.close(); dialog.remove(); resolve(value); };
    const form = h("form", { onsubmit: (event) => {
      event.preventDefault();
      if (input === null || input.value === word) done(true);
    } }, h("h2", { id: "dialog-title" }, title), text instanceof Node ? text : h("p", {}, text),
      input ? field(`Enter ${word} to confirm`, input) : null,
      h("div", { class: "row" }, h("button", { type: "button", onclick: () => done(false) }, "Cancel"), yes));
    const dialog = h("dialog", { "aria-labelledby": "dialog-title", oncancel: () => done(false) }, form);
    document.body.append(dialog);
    dialog.showModal();
  });
}

const whole = new Intl.NumberFormat("en");
export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1e7 ? `${(value / 1e6).toFixed(1)} M` : whole.format(Math.round(value));
}
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1000 && unit < 5) { value /= 1000; unit++; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toFixed(1)} ${["B", "kB", "MB", "GB", "TB", "PB"][unit]}`;
}
export function ms(value) {
  if (value === null || value === undefined) return "–";
  return value >= 1000 ? `${(value / 1000).toFixed(1)} s` : value >= 10 ? `${Math.round(value)} ms` : `${value.toFixed(2)} ms`;
}
export function time(value) {
  const at = new Date(value);
  return `${at.toLocaleTimeString("en-GB")}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}
export function when(value) { return value > 0 ? new Date(value).toLocaleString("en-GB") : "–"; }
export function seconds(value) {
  if (value < 60) return `${value.toFixed(value < 10 ? 1 : 0)} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${Math.round(value / 3600)} h` : `${Math.round(value / 86400)} d`;
}
