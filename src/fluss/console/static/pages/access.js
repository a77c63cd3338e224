import { get, post } from "../api.js";
import { confirmDialog, field, fill, h, problem, redraw, time, toast, when } from "../dom.js";
import { list } from "../grid.js";

export async function show(body, { session, current }) {
  const level = h("select", {}, ["DEBUG", "INFO", "WARNING", "ERROR"].map((name) => h("option", { value: name }, name.toLowerCase())));
  level.value = "INFO";
  const lines = h("div", {}), table = h("input", { placeholder: "fluss.orders", required: true }), principal = h("input", { placeholder: "alice", required: true }), effective = h("div", {});
  const users = h("div", {}), rules = h("div", {}), errors = h("div", {});
  const act = async (work) => { fill(errors); try { await work(); await load(); } catch (error) { fill(errors, problem(error.message)); } };
  const about = await get("access");
  const user = h("input", { placeholder: "alice", required: true }), operation = h("select", {}, about.operations.map((name) => h("option", { value: name }, name))), resource = h("input", { placeholder: "fluss.orders, db:shop or cluster", required: true });

  function revoke(rule) {
    const target = rule.resource === "CLUSTER" ? "cluster" : rule.resource === "DATABASE" ? `db:${rule.name}` : rule.name, right = `${rule.operation.toLowerCase()} on ${target}`;
    return act(async () => {
      if (!await confirmDialog("Revoke a right", `${rule.principal} will not have the right ${right} any more.`, "Revoke")) return;
      await post("access/revoke", rule);
      toast(`Revoked ${right}.`);
    });
  }
  function draw(found) {
    const known = Object.entries(found.listeners).flatMap(([listener, one]) => one.users.length ? one.users.map((name) => ({ listener, name, protocol: one.protocol })) : [{ listener, name: "everyone", protocol: one.protocol }]);
    redraw(users, found.users_problem ? h("div", { class: "hint" }, found.users_problem) : list([
      { name: "user", value: (one) => one.name }, { name: "listener", value: (one) => one.listener }, { name: "protocol", value: (one) => one.protocol },
    ], known, "Users"));
    redraw(rules, found.problem ? h("div", { class: "hint" }, found.problem) : found.acls.length ? list([
      { name: "user", value: (one) => one.principal }, { name: "may", value: (one) => one.operation }, { name: "on", value: (one) => `${one.resource.toLowerCase()} ${one.name}` }, { name: "from host", value: (one) => one.host },
      session.read_only ? null : { name: "", value: (one) => h("button", { type: "button", class: "small", "aria-label": `Revoke ${one.operation} on ${one.name} of ${one.principal}`, onclick: () => revoke(one) }, "Revoke") },
    ].filter(Boolean), found.acls, "Access rules") : h("div", { class: "empty" }, "There are no rules: only super users may do anything."));
  }
  async function load() { const found = await get("access"); if (current()) draw(found); }
  async function loadLog() {
    try {
      const found = await get("log", { level: level.value, count: 300 });
      if (!current()) return;
      redraw(lines, found.lines.length ? list([
        { name: "time", value: (one) => h("span", { title: when(one.time_ms) }, time(one.time_ms)) },
        { name: "level", value: (one) => h("span", { class: `tag ${one.severity >= 40 ? "bad" : one.severity >= 30 ? "warn" : ""}` }, one.level.toLowerCase()) },
        { name: "logger", value: (one) => one.logger.replace(/^fluss\.server\.?/, "") || "server" }, { name: "message", wrap: true, value: (one) => one.message },
      ], found.lines.slice().reverse(), "Log of the server") : h("div", { class: "empty" }, "No lines of this level since the server was started."));
    } catch (error) { if (current()) fill(lines, h("div", { class: "hint" }, error.message)); }
  }
  level.addEventListener("change", loadLog);
  const check = async (event) => {
    event.preventDefault();
    try {
      const found = await get("access/effective", { table: table.value, principal: principal.value });
      fill(effective, list([{ name: "operation", value: (one) => one.operation }, { name: "", value: (one) => h("span", { class: `tag ${one.allowed ? "good" : "bad"}` }, one.allowed ? "allowed" : "denied") }, { name: "because of", value: (one) => one.because || "no rule" }], found.operations, "Effective permissions"),
        found.by_rules_only ? h("p", { class: "muted small" }, "By the access rules. The console does not know the super users of this server.") : null);
    } catch (error) { fill(effective, problem(error.message)); }
  };
  fill(body, errors, h("div", { class: "two" }, h("section", { class: "card" }, h("h2", {}, "Users"), users), h("section", { class: "card" }, h("h2", {}, "Access rules"), rules)),
    about.problem || session.read_only ? null : h("form", { class: "card", onsubmit: (event) => { event.preventDefault(); act(async () => {
      const { right } = await post("access/grant", { principal: user.value, operation: operation.value, resource: resource.value });
      toast(`${right.principal} may ${right.operation} ${right.resource} now.`);
    }); } }, h("h2", {}, "Grant a right"), h("div", { class: "bar" }, field("User to allow", user), field("Operation", operation), field("On", resource, true), h("button", { class: "primary", type: "submit" }, "Grant"))),
    about.problem ? null : h("section", { class: "card" }, h("h2", {}, "Effective permissions"), h("form", { class: "bar", onsubmit: check }, field("User", principal), field("Table", table), h("button", { class: "primary", type: "submit" }, "Check")), effective),
    h("section", { class: "card" }, h("div", { class: "bar" }, h("h2", {}, "Server log"), h("span", { class: "grow" }), field("Level", level)), lines));
  draw(about);
  await loadLog();
  const timer = setInterval(loadLog, 3000);
  return () => clearInterval(timer);
}
