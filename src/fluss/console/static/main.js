// The frame of the console: session, menu, routes, theme. Each page is a module with a function `show`.
import { get, post } from "./api.js";
import { append, fill, field, h, problem, toast } from "./dom.js";

const PAGES = {
  overview: "Overview", sql: "SQL", create: "New table", upload: "Upload a file", clients: "Clients", access: "Access and logs",
};
const TABLE_PAGES = { data: "Data", live: "Live", edit: "Lookup and edit", schema: "Schema", storage: "Storage", lake: "Lake" };

const nav = document.getElementById("nav");
const main = document.getElementById("main");
const state = { session: null, databases: [], leave: null, number: 0, filter: "", dropped: null };

export function tableLink(page, name) { return `#/${page}/${encodeURIComponent(name)}`; }

export async function refreshTables() {
  try {
    state.databases = (await get("tables")).databases;
  } catch (error) {
    toast(error.message, true);
  }
  drawTables();
}

function takeFile() {
  const file = state.dropped;
  state.dropped = null;
  return file;
}

function route() {
  const [page, table] = location.hash.replace(/^#\//, "").split("/");
  return { page: page || "overview", table: table ? decodeURIComponent(table) : null };
}

function drawNav() {
  const filter = h("input", { type: "search", placeholder: "Filter tables", "aria-label": "Filter tables", oninput: (event) => {
    state.filter = event.target.value.toLowerCase();
    drawTables();
  } });
  const links = Object.entries(PAGES)
    .filter(([page]) => !(state.session.read_only && (page === "create" || page === "upload")))
    .map(([page, title]) => h("a", { href: `#/${page}`, "data-page": page }, title));
  fill(nav, links, h("h2", {}, "Tables"), filter, h("div", { id: "tables" }));
  drawTables();
}

function drawTables() {
  const place = document.getElementById("tables");
  if (!place) return;
  const { page, table } = route();
  const target = page in TABLE_PAGES ? page : "data";
  fill(place, state.databases.map((database) => {
    const names = database.tables.filter((name) => `${database.name}.${name}`.toLowerCase().includes(state.filter)).slice(0, 300);
    return [h("h2", {}, database.name), names.map((name) => {
      const full = `${database.name}.${name}`;
      return h("a", { href: tableLink(target, full), title: full, "aria-current": full === table ? "page" : null }, name);
    }), names.length ? null : h("div", { class: "muted small" }, "no tables")];
  }));
  for (const link of nav.querySelectorAll("[data-page]")) {
    if (link.dataset.page === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function go() {
  if (!state.session?.inside) return;
  const number = ++state.number;
  state.leave?.();
  state.leave = null;
  nav.classList.remove("open");
  document.getElementById("menu").setAttribute("aria-expanded", "false");
  const { page, table } = route();
  drawTables();
  const known = page in PAGES || (page in TABLE_PAGES && table);
  const title = known ? PAGES[page] || `${TABLE_PAGES[page]} · ${table}` : "Not found";
  document.title = `${title} · Fluss console`;
  const body = h("div", {});
  if (!known) { fill(main, problem("There is no such page.")); return; }
  if (page in TABLE_PAGES) {
    fill(main, h("div", { class: "head" }, h("h1", {}, table)),
      h("div", { class: "tabs", role: "navigation", "aria-label": "Views of the table" }, Object.entries(TABLE_PAGES).map(([key, name]) =>
        h("a", { href: tableLink(key, table), "aria-current": key === page ? "page" : null }, name))), body);
  } else {
    fill(main, h("div", { class: "head" }, h("h1", {}, PAGES[page])), body);
  }
  try {
    const module = await import(`./pages/${page}.js`);
    const leave = await module.show(body, { table, session: state.session, refreshTables, takeFile, current: () => number === state.number });
    if (number === state.number) state.leave = leave;
    else leave?.();
  } catch (error) {
    if (number === state.number) fill(body, problem(error.message));
  }
  if (number === state.number) document.body.dataset.shown = `${page}/${table || ""}`;
}

function showLogin() {
  state.leave?.();
  state.leave = null;
  nav.replaceChildren();
  if (state.session.needs_link) {
    fill(main, h("div", { class: "card login" }, h("h1", {}, "Fluss console"), h("p", {}, "Open the link that the console printed when it was started.")));
    return;
  }
  const user = h("input", { autocomplete: "username", required: true });
  const password = h("input", { type: "password", autocomplete: "current-password", required: true });
  const errors = h("div", {});
  fill(main, h("form", { class: "card login", onsubmit: async (event) => {
    event.preventDefault();
    try {
      await post("login", { user: user.value, password: password.value });
      await begin();
    } catch (error) {
      fill(errors, problem(error.message));
      password.value = "";
      password.focus();
    }
  } }, h("h1", {}, "Fluss console"), h("p", { class: "muted" }, "Log in with a user of the server."), errors,
    field("User", user), field("Password", password), h("button", { class: "primary", type: "submit" }, "Log in")));
  user.focus();
}

async function begin() {
  try {
    state.session = await get("session");
  } catch (error) {
    fill(main, problem(error.message));
    return;
  }
  document.getElementById("server").textContent = state.session.server;
  fill(document.getElementById("flags"), state.session.read_only ? h("span", { class: "tag warn" }, "read-only") : null,
    state.session.user ? [" ", h("span", { class: "tag" }, state.session.user)] : null);
  document.getElementById("logout").hidden = !(state.session.login && state.session.inside);
  if (!state.session.inside) { showLogin(); return; }
  drawNav();
  if (state.session.problem) append(main, [problem(state.session.problem)]);
  await refreshTables();
  await go();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("fluss-theme", name); } catch { /* private window: it is forgotten */ }
}

let chosen = null;
try { chosen = localStorage.getItem("fluss-theme"); } catch { /* private window */ }
theme(chosen || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
document.getElementById("theme").addEventListener("click", () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.getElementById("menu").addEventListener("click", (event) => {
  event.currentTarget.setAttribute("aria-expanded", String(nav.classList.toggle("open")));
});
document.getElementById("logout").addEventListener("click", async () => { await post("logout"); location.reload(); });
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
// A file that is dropped on any page is looked at on the page for uploads; without this the browser would open it.
window.addEventListener("dragover", (event) => event.preventDefault());
window.addEventListener("drop", (event) => {
  event.preventDefault();
  const file = event.dataTransfer?.files[0];
  if (!file || !state.session?.inside || state.session.read_only) return;
  state.dropped = file;
  if (route().page === "upload") go();
  else location.hash = "#/upload";
});
window.addEventListener("hashchange", go);
window.addEventListener("session-ended", () => { toast("The session has ended.", true); setTimeout(begin, 500); });
begin();
