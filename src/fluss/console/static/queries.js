// The queries of the SQL page: named tabs and a history, kept in the browser.

const HISTORY_MAX = 50, TABS_MAX = 20;

function read(name, otherwise) { try { return JSON.parse(localStorage.getItem(name)) ?? otherwise; } catch { return otherwise; } }
function write(name, value) { try { localStorage.setItem(name, JSON.stringify(value)); } catch { /* private window: it is not kept */ } }

export function history() { return read("fluss-sql", []); }
export function remember(query) { write("fluss-sql", [query, ...history().filter((one) => one !== query)].slice(0, HISTORY_MAX)); }

export class Tabs {
  constructor() {
    this.all = read("fluss-sql-tabs", []).filter((one) => typeof one?.text === "string" && typeof one?.name === "string");
    if (!this.all.length) this.all = [{ name: "Query 1", text: history()[0] || "" }];
    this.chosen = Math.min(read("fluss-sql-tab", 0), this.all.length - 1);
  }
  get current() { return this.all[this.chosen]; }
  choose(at) { this.chosen = Math.max(0, Math.min(at, this.all.length - 1)); this.save(); }
  // The tab with a query of a link; a new one unless there is one.
  open(text) {
    const at = this.all.findIndex((one) => one.text === text);
    if (at >= 0) { this.choose(at); return; }
    if (!this.current.text.trim()) { this.current.text = text; this.save(); return; }
    this.add(text);
  }
  add(text = "") {
    const numbers = this.all.map((one) => Number(/^Query (\d+)$/.exec(one.name)?.[1] || 0));
    this.all.push({ name: `Query ${Math.max(0, ...numbers) + 1}`, text });
    if (this.all.length > TABS_MAX) this.all.shift();
    this.choose(this.all.length - 1);
  }
  close(at) {
    this.all.splice(at, 1);
    if (!this.all.length) this.all.push({ name: "Query 1", text: "" });
    this.choose(at < this.chosen ? this.chosen - 1 : this.chosen);
  }
  save() { write("fluss-sql-tabs", this.all); write("fluss-sql-tab", this.chosen); }
}
