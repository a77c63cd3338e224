import { get } from "../api.js";
import { field, fill, h, problem, time, when } from "../dom.js";
import { list } from "../grid.js";

export async function show(body, { current }) {
  const about = await get("access");
  const users = Object.entries(about.listeners).flatMap(([listener, one]) => one.users.length ? one.users.map((user) => ({ listener, user, protocol: one.protocol })) : [{ listener, user: "everyone", protocol: one.protocol }]);
  const level = h("select", {}, ["DEBUG", "INFO", "WARNING", "ERROR"].map((name) => h("option", { value: name }, name.toLowerCase())));
  level.value = "INFO";
  const lines = h("div", {}), table = h("input", { placeholder: "fluss.orders", required: true }), principal = h("input", { placeholder: "alice", required: true }), effective = h("div", {});
  async function loadLog() {
    try {
      const found = await get("log", { level: level.value, count: 300 });
      if (!current()) return;
      fill(lines, found.lines.length ? list([
        { name: "time", value: (one) => h("span", { title: when(one.time_ms) }, time(one.time_ms)) },
        { name: "level", value: (one) => h("span", { class: `tag ${one.severity >= 40 ? "bad" : one.severity >= 30 ? "warn" : ""}` }, one.level.toLowerCase()) },
        { name: "logger", value: (one) => one.logger.replace(/^fluss\.server\.?/, "") || "server" }, { name: "message", wrap: true, value: (one) => one.message },
      ], found.lines.slice().reverse(), "Log of the server") : h("div", { class: "empty" }, "No lines of this level since the server was started."));
    } catch (error) { if (current()) fill(lines, h("div", { class: "hint" }, error.message)); }
  }
  level.addEventListener("change", loadLog);
  fill(body, h("div", { class: "two" },
    h("section", { class: "card" }, h("h2", {}, "Users"), about.users_problem ? h("div", { class: "hint" }, about.users_problem) : list([
      { name: "user", value: (one) => one.user }, { name: "listener", value: (one) => one.listener }, { name: "protocol", value: (one) => one.protocol },
    ], users, "Users")),
    h("section", { class: "card" }, h("h2", {}, "Access rules"), about.problem ? h("div", { class: "hint" }, about.problem) : about.acls.length ? list([
      { name: "user", value: (one) => one.principal }, { name: "may", value: (one) => one.operation }, { name: "on", value: (one) => `${one.resource.toLowerCase()} ${one.name}` }, { name: "from host", value: (one) => one.host },
    ], about.acls, "Access rules") : h("div", { class: "empty" }, "There are no rules: only super users may do anything."))),
    about.problem ? null : h("section", { class: "card" }, h("h2", {}, "Effective permissions"), h("form", { class: "bar", onsubmit: async (event) => {
      event.preventDefault();
      try {
        const found = await get("access/effective", { table: table.value, principal: principal.value });
        fill(effective, list([{ name: "operation", value: (one) => one.operation }, { name: "", value: (one) => h("span", { class: `tag ${one.allowed ? "good" : "bad"}` }, one.allowed ? "allowed" : "denied") }, { name: "because of", value: (one) => one.because || "no rule" }], found.operations, "Effective permissions"));
      } catch (error) { fill(effective, problem(error.message)); }
    } }, field("User", principal), field("Table", table), h("button", { class: "primary", type: "submit" }, "Check")), effective),
    h("section", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, "Server log"), h("span", { class: "grow" }), field("Level", level)), lines));
  await loadLog();
  const timer = setInterval(loadLog, 3000);
  return () => clearInterval(timer);
}
