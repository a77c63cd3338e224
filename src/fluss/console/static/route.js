// What is shown is in the address: #/page/table?name=value, so that it can be linked to, and back and forward work.

function decoded(text) { try { return decodeURIComponent(text); } catch { return text; } }

export function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [page, table] = path.split("/");
  return { page: page || "overview", table: table ? decoded(table) : null, args: Object.fromEntries(new URLSearchParams(query || "")) };
}

export function link(page, table = null, args = {}) {
  const given = Object.entries(args).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return `#/${page}${table ? `/${encodeURIComponent(table)}` : ""}${given.length ? `?${new URLSearchParams(given)}` : ""}`;
}

// Note what a page shows, without loading it again.
export function address(page, table, args, replace) {
  const hash = link(page, table, args);
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
}
