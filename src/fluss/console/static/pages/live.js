import { get, stream } from "../api.js";
import { check, count, field, fill, h, problem, time } from "../dom.js";
import { isNumber, text } from "../grid.js";

// A browser lays a table out anew with each change, all of its rows: while many come, only the newest are in it.
const KEPT = 300, KEPT_WHILE_BUSY = 30, BUSY_ROWS = 8, BUSY_MS = 500;

export async function show(body, { table }) {
  await get("table", { table });
  const start = h("select", {}, h("option", { value: "latest" }, "now"), h("option", { value: "earliest" }, "the beginning"), h("option", { value: "time" }, "a time"), h("option", { value: "position" }, "a position"));
  const at = h("input", { type: "datetime-local", step: 1 }), position = h("input", { class: "mono", placeholder: '{"version":1,…}' });
  const atField = field("Time", at), positionField = field("Position", position);
  const every = check("every change, even if it takes long");
  const pause = h("button", { type: "button", class: "primary" }, "Pause");
  const status = h("span", { class: "tag" }, "…"), figures = h("span", { class: "muted", role: "status" });
  const head = h("thead", {}), rows = h("tbody", {}), errors = h("div", {});
  let source = null, columns = [], types = [], last = null, total = 0, skipped = 0, waiting = [], drawing = false, paused = false;
  let recent = [], kept = [], drawn = -Infinity;

  function row(change, glows) {
    const cells = columns.map((_, index) => {
      const after = change.new ? change.new[index] : null, before = change.old ? change.old[index] : null;
      const value = change.new ? after : before;
      const changed = change.kind === "update" && change.old && text(before) !== text(after);
      const cell = h("td", { class: [isNumber(types[index]) ? "number" : "", value === null ? "null" : "", changed ? "changed" : ""].join(" ").trim() },
        changed ? h("span", { class: "old" }, text(before)) : null, text(value));
      return cell;
    });
    return h("tr", { class: [glows ? "fresh" : "", change.kind === "delete" ? "deleted" : ""].join(" ").trim() }, h("td", {}, h("span", { class: `tag ${change.kind}` }, change.kind)), h("td", { class: "number" }, time(change.time_ms)),
      h("td", { class: "number" }, change.partition ? `${change.partition}/${change.bucket}` : change.bucket), h("td", { class: "number" }, change.offset), cells);
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
    recent = recent.filter(([moment]) => now - moment < 3000);
    const rate = recent.reduce((sum, [, n]) => sum + n, 0) / 3;
    figures.textContent = `${count(total)} changes, ${count(rate)} per second${skipped ? `, ${count(skipped)} came too fast to be shown` : ""}`;
  }
  // Who pauses wants to look at what came before.
  function drawKept() {
    rows.append(...kept.slice(rows.childElementCount).map((change) => row(change, false)));
  }
  function received(event) {
    if (event.columns) {
      columns = event.columns; types = event.types;
      fill(head, h("tr", {}, ["change", "time", "bucket", "offset"].map((name, index) => h("th", { scope: "col", class: index ? "number" : "" }, name)),
        columns.map((name, index) => h("th", { scope: "col", class: isNumber(types[index]) ? "number" : "" }, name, h("small", {}, types[index])))));
      status.className = "tag good"; status.textContent = "live";
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
    // Going on from the last change misses and repeats nothing.
    source = stream("live", () => ({ table, start: last || from, all: every.box.checked ? "1" : "0" }), received, (message) => {
      status.className = "tag bad"; status.textContent = "stopped";
      fill(errors, problem(message));
    }, () => { status.className = "tag warn"; status.textContent = "connecting"; });
  }
  function chosen() {
    if (start.value === "time") return at.value ? new Date(at.value).toISOString() : "latest";
    return start.value === "position" ? position.value : start.value;
  }
  function restart() {
    rows.replaceChildren(); waiting = []; kept = []; total = 0; skipped = 0; last = null; recent = [];
    paused = false; pause.textContent = "Pause";
    follow(chosen());
  }
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.textContent = paused ? "Resume" : "Pause";
    status.className = paused ? "tag warn" : "tag good"; status.textContent = paused ? "paused" : "live";
    if (paused) { source?.close(); draw(); drawKept(); } else follow(last || chosen());
  });
  const arrange = () => { atField.hidden = start.value !== "time"; positionField.hidden = start.value !== "position"; };
  start.addEventListener("change", () => { arrange(); if (start.value === "latest" || start.value === "earliest") restart(); });
  arrange();
  fill(body, h("form", { class: "bar", onsubmit: (event) => { event.preventDefault(); restart(); } }, field("Begin at", start), atField, positionField, every,
    h("button", { type: "submit" }, "Restart"), pause, status, figures), errors,
    h("div", { class: "grid", tabindex: 0, role: "region", "aria-label": `Changes of ${table}` }, h("table", {}, head, rows)));
  restart();
  return () => { paused = true; source?.close(); };
}
