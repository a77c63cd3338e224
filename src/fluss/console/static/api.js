// Requests to the console. Errors carry the text of the server, to be shown as it is.

export class ApiError extends Error {
  constructor(message, status, body = {}) { super(message); this.status = status; this.body = body; }
}

async function answer(response) {
  if (response.ok) return response;
  let message = `The console answered with status ${response.status}.`;
  let body = {};
  try {
    body = await response.json();
    message = body.error || message;
  } catch { /* not JSON: the status has to do */ }
  if (response.status === 401 && body.session === false) window.dispatchEvent(new Event("session-ended"));
  throw new ApiError(message, response.status, body);
}

function query(args) {
  const given = Object.entries(args).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

async function send(path, options) {
  try {
    return await fetch(path, options);
  } catch {
    throw new ApiError("The console does not answer. Is it still running?", 0);
  }
}

export async function get(path, args = {}) {
  return (await answer(await send(`/api/${path}${query(args)}`))).json();
}

export async function post(path, body = {}) {
  const headers = { "content-type": "application/json", "x-fluss-console": "1" };
  return (await answer(await send(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }))).json();
}

// This page of the browser, to which the SQL session belongs.
export const tab = [...crypto.getRandomValues(new Uint8Array(12))].map((one) => one.toString(16).padStart(2, "0")).join("");

export function leaveTab() {
  const headers = { "content-type": "application/json", "x-fluss-console": "1" };
  fetch("/api/sql/cancel", { method: "POST", headers, body: JSON.stringify({ tab, close: true }), keepalive: true }).catch(() => {});
}

export async function download(path, body, name) {
  const headers = { "content-type": "application/json", "x-fluss-console": "1" };
  const response = await answer(await send(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
  const url = URL.createObjectURL(await response.blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export async function upload(path, file, args) {
  const headers = { "content-type": "application/octet-stream", "x-fluss-console": "1" };
  return (await answer(await send(`/api/${path}${query(args)}`, { method: "POST", headers, body: file }))).json();
}

// Why the console refuses a request; null if it does not.
async function refusal(url) {
  const stop = new AbortController();
  try {
    await answer(await send(url, { signal: stop.signal }));
    return null;
  } catch (error) {
    return error.status ? error : null;
  } finally {
    stop.abort();
  }
}

// A stream of events that connects again when it was lost; `args()` are asked for anew, so that it goes on from where
// it was. A browser has six connections to one address for all of its pages: those that are not seen give theirs back.
export function stream(path, args, onEvent, onProblem, onLost = () => {}) {
  let source = null, timer = 0, closed = false;
  const connect = () => {
    source?.close();
    clearTimeout(timer);
    if (closed || document.hidden) return;
    const url = `/api/${path}${query(args())}`, opened = source = new EventSource(url);
    source.onmessage = (event) => onEvent(JSON.parse(event.data));
    source.addEventListener("problem", (event) => { close(); onProblem(JSON.parse(event.data).error); });
    source.onerror = async () => {
      const refused = opened.readyState === EventSource.CLOSED ? await refusal(url) : null;
      opened.close();
      if (closed || opened !== source) return;
      if (refused) { close(); onProblem(refused.message); return; }
      onLost();
      timer = setTimeout(connect, 1000);
    };
  };
  const close = () => {
    closed = true;
    document.removeEventListener("visibilitychange", connect);
    clearTimeout(timer);
    source?.close();
  };
  document.addEventListener("visibilitychange", connect);
  connect();
  return { close };
}
