// The frame of the console: session, menu, connection, theme. Each page is a module with a function `show`.
import { get, post, leaveTab } from "./api.js";
import { fill, field, h, problem, svg, toast } from "./dom.js";
import { jump } from "./jump.js";
import { address, link, route } from "./route.js";

const PAGES = {
  overview: "Overview", sql: "SQL", create: "New table", upload: "Upload a file", consumers: "Consumers", pipelines: "Pipelines", clients: "Clients", access: "Access and logs",
};
const TABLE_PAGES = { data: "Data", live: "Live", edit: "Lookup and edit", schema: "Schema", storage: "Storage", lake: "Lake" };
// Pages with input of the user are left as they are when the server is back.
const WITH_INPUT = new Set(["sql", "edit", "create", "upload", "schema", "live"]);
const REFRESH_MS = 5000, RETRY_MS = 1000;

const nav = document.getElementById("nav");
const main = document.getElementById("main");
const state = { session: null, databases: [], leave: null, number: 0, filter: "", dropped: null, failed: false, closed: new Set(), timer: 0 };

// The menu of tables; also the sign of life of console and server.
export async function refreshTables() {
  clearTimeout(state.timer);
  try {
    state.databases = (await get("tables")).databases;
    connected(null);
    drawTables();
  } catch (error) {
    if (error.status === 0 || error.status === 502) connected(error.message);
  }
  state.timer = setTimeout(refreshTables, document.body.dataset.connection === "lost" ? RETRY_MS : REFRESH_MS);
}

function connected(reason) {
  const was = document.body.dataset.connection, place = document.getElementById("connection");
  document.body.dataset.connection = reason ? "lost" : "ok";
  place.className = reason ? "tag bad" : "tag good";
  place.title = reason || "";
  if (place.textContent !== (reason ? "disconnected" : "connected")) place.textContent = reason ? "disconnected" : "connected";
  if ((was === "lost") === Boolean(reason)) return;
  window.dispatchEvent(new Event("connection"));
  if (!reason && was === "lost" && (state.failed || !WITH_INPUT.has(route().page))) go();
}

function takeFile() {
  const file = state.dropped;
  state.dropped = null;
  return file;
}

function drawNav() {
  const filter = h("input", { type: "search", placeholder: "Filter (Ctrl+K: jump)", "aria-label": "Filter tables", oninput: (event) => {
    state.filter = event.target.value.toLowerCase();
    drawTables();
  } });
  const links = Object.entries(PAGES)
    .filter(([page]) => !(state.session.read_only && (page === "create" || page === "upload")))
    .map(([page, title]) => h("a", { href: link(page), "data-page": page }, title));
  fill(nav, links, h("h2", {}, "Tables"), filter, h("div", { id: "tables" }));
  drawTables();
}

// Rebuilds only what changed: the menu is drawn every few seconds, and keeps its scroll position and focus.
let drawnTables = "";
function drawTables() {
  const place = document.getElementById("tables");
  if (!place) return;
  const { page, table } = route();
  const target = page in TABLE_PAGES ? page : "data";
  for (const one of nav.querySelectorAll("[data-page]")) {
    if (one.dataset.page === page) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  const key = JSON.stringify([state.databases, state.filter, target, table]);
  if (key === drawnTables && place.childElementCount) return;
  drawnTables = key;
  const focused = place.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  fill(place, state.databases.map((database) => {
    const tables = database.tables.filter((one) => `${database.name}.${one.name}`.toLowerCase().includes(state.filter));
    const group = h("details", { open: !state.closed.has(database.name) },
      h("summary", {}, database.name, " ", h("span", { class: "small" }, database.tables.length)),
      tables.map((one) => {
        const full = `${database.name}.${one.name}`, kind = one.kind ? icon(one.kind) : null;
        return h("a", { href: link(target, full), title: one.kind ? `${full}: ${one.kind === "log" ? "log" : "primary-key table"}` : full, "aria-current": full === table ? "page" : null },
          h("span", { class: "kind" }, kind), h("span", { class: "name" }, one.name), one.rows === null || one.rows === undefined ? null : h("span", { class: "rows" }, short(one.rows)));
      }), tables.length ? null : h("div", { class: "muted small" }, "no tables"));
    group.addEventListener("toggle", () => { if (group.open) state.closed.delete(database.name); else state.closed.add(database.name); });
    return group;
  }));
  if (focused) place.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

// A log is lines one below the other; a table with a primary key has a key.
function icon(kind) {
  const path = kind === "log" ? "M1 3h10M1 6h10M1 9h10" : "M4.5 7.5a2 2 0 1 1-2-2 2 2 0 0 1 2 2ZM4 6l6-5M8 3l2 2";
  return svg("svg", { viewBox: "0 0 12 12", width: 12, height: 12, "aria-hidden": "true" }, svg("path", { d: path }));
}

function short(rows) {
  const unit = rows >= 1e9 ? [1e9, "G"] : rows >= 1e6 ? [1e6, "M"] : rows >= 1e4 ? [1e3, "k"] : [1, ""];
  return `${unit[0] === 1 ? rows : (rows / unit[0]).toFixed(rows / unit[0] < 10 ? 1 : 0)}${unit[1]}`;
}

async function go() {
  if (!state.session?.inside) return;
  const number = ++state.number;
  const current = () => number === state.number;
  state.leave?.();
  state.leave = null;
  nav.classList.remove("open");
  document.getElementById("menu").setAttribute("aria-expanded", "false");
  const { page, table, args } = route();
  drawTables();
  const known = page in PAGES || (page in TABLE_PAGES && table);
  const title = known ? PAGES[page] || `${TABLE_PAGES[page]} · ${table}` : "Not found";
  document.title = `${title} · Fluss console`;
  const body = h("div", { "aria-busy": "true" }, h("div", { class: "empty" }, "Loading…"));
  state.failed = false;
  if (!known) { fill(main, problem("There is no such page.")); document.body.dataset.shown = `${page}/${table || ""}`; return; }
  if (page in TABLE_PAGES) {
    fill(main, h("div", { class: "head" }, h("h1", {}, table)),
      h("div", { class: "tabs", role: "navigation", "aria-label": "Views of the table" }, Object.entries(TABLE_PAGES).map(([key, name]) =>
        h("a", { href: link(key, table), "aria-current": key === page ? "page" : null }, name))), body);
  } else {
    fill(main, h("div", { class: "head" }, h("h1", {}, PAGES[page])), body);
  }
  const setArgs = (given, replace = false) => { if (current()) address(page, table, given, replace); };
  try {
    const module = await import(`./pages/${page}.js`);
    const leave = await module.show(body, { table, args, setArgs, session: state.session, refreshTables, takeFile, current });
    if (current()) state.leave = leave;
    else leave?.();
  } catch (error) {
    if (current()) { state.failed = true; fill(body, problem(error.message)); }
  }
  body.removeAttribute("aria-busy");
  if (current()) document.body.dataset.shown = `${page}/${table || ""}`;
}

function showLogin() {
  state.leave?.();
  state.leave = null;
  state.number++;
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
  clearTimeout(state.timer);
  try {
    state.session = await get("session");
  } catch (error) {
    connected(error.message);
    if (!state.session) fill(main, problem(error.message));
    state.timer = setTimeout(begin, RETRY_MS);
    return;
  }
  document.getElementById("server").textContent = state.session.server;
  fill(document.getElementById("flags"), state.session.read_only ? h("span", { class: "tag warn" }, "read-only") : null,
    state.session.user ? [" ", h("span", { class: "tag" }, state.session.user)] : null);
  document.getElementById("logout").hidden = !(state.session.login && state.session.inside);
  if (!state.session.inside) { showLogin(); return; }
  drawNav();
  if (state.session.problem) connected(state.session.problem);
  await refreshTables();
  await go();
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  try { localStorage.setItem("fluss-theme", name); } catch { /* private window: it is not kept */ }
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
window.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || !state.session?.inside) return;
  event.preventDefault();
  const target = route().page in TABLE_PAGES ? route().page : "data";
  jump([...Object.entries(PAGES).map(([page, title]) => ({ title, href: link(page) })),
    ...state.databases.flatMap((database) => database.tables.map((one) => ({ title: `${database.name}.${one.name}`, href: link(target, `${database.name}.${one.name}`) })))]);
});
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
window.addEventListener("pagehide", leaveTab);
let ending = 0;
window.addEventListener("session-ended", () => { clearTimeout(ending); ending = setTimeout(begin, 500); });
begin();
