import { get, stream } from "../api.js";
import { check, count, field, fill, h, problem, time } from "../dom.js";
import { openRow } from "../drawer.js";
import { isNumber, text } from "../grid.js";

// A browser lays a table out anew with each change, all of its rows: while many come, only the newest are in it.
const KEPT = 300, KEPT_WHILE_BUSY = 30, BUSY_ROWS = 8, BUSY_MS = 500, RATE_MS = 5000;

export async function show(body, { table, args, setArgs, session }) {
  const about = await get("table", { table });
  const where = h("input", { class: "mono", placeholder: "price > 10", spellcheck: "false", value: args.where || "" });
  const start = h("select", {}, [["latest", "now"], ["earliest", "the beginning"], ["time", "a time"], ["offset", "an offset"], ["position", "a position"]].map(([value, name]) => h("option", { value }, name)));
  const at = h("input", { type: "datetime-local", step: 1 }), offset = h("input", { type: "number", min: 0, value: 0 }), position = h("input", { class: "mono", placeholder: '{"version":1,…}' });
  const atField = field("Time", at), offsetField = field("Offset", offset), positionField = field("Position", position);
  const every = check("every change, even if it takes long");
  const pause = h("button", { type: "button", class: "primary" }, "Pause");
  const status = h("span", { class: "tag" }, "…"), figures = h("span", { class: "muted" });
  const head = h("thead", {}), rows = h("tbody", {}), errors = h("div", {});
  let source = null, columns = [], types = [], last = null, total = 0, skipped = 0, waiting = [], drawing = false, paused = false;
  let recent = [], kept = [], drawn = -Infinity, began = 0;

  function row(change, glows) {
    const cells = columns.map((_, index) => {
      const after = change.new ? change.new[index] : null, before = change.old ? change.old[index] : null;
      const value = change.new ? after : before;
      const changed = change.kind === "update" && change.old && text(before) !== text(after);
      return h("td", { class: [isNumber(types[index]) ? "number" : "", value === null ? "null" : ""].join(" ").trim() },
        changed ? [h("del", {}, text(before)), h("ins", {}, text(after))] : change.kind === "delete" ? h("del", {}, text(value)) : text(value));
    });
    const line = h("tr", { class: [glows ? "fresh" : "", change.kind === "delete" ? "deleted" : "", "opens"].join(" ").trim(), tabindex: 0 }, h("td", {}, h("span", { class: `tag ${change.kind}` }, change.kind)), h("td", { class: "number" }, time(change.time_ms)),
      h("td", { class: "number" }, change.partition ? `${change.partition}/${change.bucket}` : change.bucket), h("td", { class: "number" }, change.offset), cells);
    const open = () => { if (!paused) pause.click(); openRow({ table, about, session, columns, row: change.new || change.old }); };
    line.addEventListener("click", () => { if (!String(getSelection())) open(); });
    line.addEventListener("keydown", (event) => { if (event.key === "Enter") open(); });
    return line;
  }
  // One drawing per frame of the screen, however many events came.
  function draw() {
    drawing = false;
    // Buckets are read on their own: what came together is shown in the order of time.
    const some = waiting.reverse().sort((a, b) => b.time_ms - a.time_ms).slice(0, KEPT), now = performance.now();
    const busy = some.length > BUSY_ROWS && now - drawn < BUSY_MS;
    waiting = []; drawn = now;
    kept = some.concat(kept).slice(0, KEPT);
    const most = busy && !paused ? KEPT_WHILE_BUSY : KEPT;
    rows.prepend(...some.slice(0, most).map((change) => row(change, some.length <= BUSY_ROWS)));
    while (rows.childElementCount > most) rows.lastElementChild.remove();
    body.dataset.drawn = String(total);
    countUp();
  }
  function countUp() {
    const now = performance.now();
    recent = recent.filter(([moment]) => now - moment < RATE_MS);
    const rate = recent.reduce((sum, [, n]) => sum + n, 0) / Math.max(1, Math.min(RATE_MS, now - began) / 1000);
    figures.textContent = `${count(total)} changes, ${count(rate)} per second${skipped ? `; the newest of each moment are shown, ${count(skipped)} are not` : ""}`;
  }
  // Pausing is for a look at what came before.
  function drawKept() {
    rows.append(...kept.slice(rows.childElementCount).map((change) => row(change, false)));
  }
  function showStatus() {
    const lost = document.body.dataset.connection === "lost";
    const [name, kind] = paused ? ["paused", "warn"] : lost ? ["disconnected", "bad"] : columns.length ? ["live", "good"] : ["connecting", "warn"];
    if (status.textContent === "stopped" && !paused) return;
    status.className = `tag ${kind}`;
    status.textContent = name;
  }
  function received(event) {
    if (event.columns) {
      columns = event.columns; types = event.types;
      fill(head, h("tr", {}, ["change", "time", "bucket", "offset"].map((name, index) => h("th", { scope: "col", class: index ? "number" : "" }, name)),
        columns.map((name, index) => h("th", { scope: "col", class: isNumber(types[index]) ? "number" : "" }, name, h("small", {}, types[index])))));
      showStatus();
      return;
    }
    total += event.count; skipped += event.skipped;
    if (event.position) last = event.position;
    if (event.count) recent.push([performance.now(), event.count]);
    waiting.push(...event.changes);
    if (waiting.length > KEPT) waiting = waiting.slice(-KEPT);
    if (!drawing) { drawing = true; requestAnimationFrame(draw); }
  }
  function follow(from) {
    source?.close();
    fill(errors);
    status.textContent = "…";
    // Going on from the last change misses and repeats nothing.
    source = stream("live", () => ({ table, where: where.value, start: last || from, all: every.box.checked ? "1" : "0" }), received, (message) => {
      status.className = "tag bad"; status.textContent = "stopped";
      fill(errors, problem(message));
    }, () => { status.className = "tag warn"; status.textContent = "connecting"; });
  }
  function chosen() {
    if (start.value === "time") return at.value ? new Date(at.value).toISOString() : "latest";
    return start.value === "offset" ? offset.value || "0" : start.value === "position" ? position.value : start.value;
  }
  function restart(replace = false) {
    rows.replaceChildren(); waiting = []; kept = []; total = 0; skipped = 0; last = null; recent = []; columns = []; began = performance.now();
    paused = false; pause.textContent = "Pause";
    setArgs({ where: where.value, start: chosen() === "latest" ? "" : chosen(), all: every.box.checked ? "1" : "" }, replace);
    follow(chosen());
  }
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    if (paused) { source?.close(); draw(); drawKept(); } else follow(last || chosen());
    showStatus();
  });
  if (args.start === "earliest") start.value = "earliest";
  else if (/^\d+$/.test(args.start || "")) { start.value = "offset"; offset.value = args.start; }
  else if ((args.start || "").startsWith("{")) { start.value = "position"; position.value = args.start; }
  else if (args.start && !Number.isNaN(Date.parse(args.start))) {
    const moment = new Date(args.start);
    start.value = "time"; at.value = new Date(moment - moment.getTimezoneOffset() * 60000).toISOString().slice(0, 19);
  }
  every.box.checked = args.all === "1";
  const arrange = () => { atField.hidden = start.value !== "time"; offsetField.hidden = start.value !== "offset"; positionField.hidden = start.value !== "position"; };
  start.addEventListener("change", () => { arrange(); if (start.value === "latest" || start.value === "earliest") restart(); });
  arrange();
  body.classList.add("data-first");
  fill(body, h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); restart(); } }, field("Filter", where, true), field("Begin at", start), atField, offsetField, positionField, every,
    h("button", { type: "submit" }, "Restart")), h("div", { class: "bar line" }, pause, status, figures), errors,
    h("div", { class: "grid", tabindex: 0, role: "region", "aria-label": `Changes of ${table}` }, h("table", {}, head, rows)));
  restart(true);
  const timer = setInterval(countUp, 1000);
  window.addEventListener("connection", showStatus);
  return () => { paused = true; source?.close(); clearInterval(timer); window.removeEventListener("connection", showStatus); };
}
