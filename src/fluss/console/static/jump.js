// Ctrl+K: go to a table or page by a part of its name.
import { fill, h } from "./dom.js";

const SHOWN = 12;

export function jump(places) {
  if (document.getElementById("jump")) return;
  const input = h("input", { type: "search", placeholder: "Table or page", role: "combobox", "aria-label": "Table or page", "aria-expanded": "true", "aria-controls": "jump-list", autocomplete: "off" });
  const choices = h("ul", { id: "jump-list", class: "choices", role: "listbox", "aria-label": "Matches" });
  let found = [], chosen = 0;
  const close = () => { dialog.close(); dialog.remove(); };
  const open = () => { if (found[chosen]) { location.hash = found[chosen].href; close(); } };
  const draw = () => {
    fill(choices, found.map((one, at) => h("li", { id: `jump-${at}`, role: "option", "aria-selected": String(at === chosen), onclick: () => { chosen = at; open(); } }, one.title)));
    if (found.length) input.setAttribute("aria-activedescendant", `jump-${chosen}`);
    else input.removeAttribute("aria-activedescendant");
  };
  const search = () => {
    const words = input.value.toLowerCase().split(/\s+/);
    found = places.filter((one) => words.every((word) => one.title.toLowerCase().includes(word))).slice(0, SHOWN);
    chosen = 0;
    draw();
  };
  input.addEventListener("input", search);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); open(); }
    if ((event.key !== "ArrowDown" && event.key !== "ArrowUp") || !found.length) return;
    event.preventDefault();
    chosen = (chosen + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length;
    draw();
  });
  const dialog = h("dialog", { id: "jump", "aria-label": "Go to", oncancel: () => dialog.remove(), onclick: (event) => { if (event.target === dialog) close(); } }, input, choices);
  document.body.append(dialog);
  dialog.showModal();
  search();
}
