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

// All pages of the browser share one stream, which a worker holds.
const followed = new Map();
let port = null, streams = 0;

function worker() {
  if (port) return port;
  port = window.SharedWorker ? new SharedWorker("/static/streams.js").port : new Worker("/static/streams.js");
  port.onmessage = ({ data: { key, text } }) => {
    port.postMessage({ read: key });
    followed.get(key)?.(JSON.parse(text));
  };
  return port;
}

// Follow something; when the stream is lost, follow it again, with `args()` from where it was. Pages that are not seen
// follow nothing.
export function stream(source, args, onEvent, onProblem, onLost = () => {}) {
  let key = null, timer = 0, closed = false;
  const leave = () => {
    clearTimeout(timer);
    if (key && followed.delete(key)) worker().postMessage({ leave: key });
  };
  const connect = () => {
    leave();
    if (closed || document.hidden) return;
    key = `${tab}-${++streams}`;
    followed.set(key, received);
    worker().postMessage({ follow: key, source, args: args() });
  };
  const received = ({ event, problem, session }) => {
    if (event) { onEvent(event); return; }
    if (!problem) { leave(); onLost(); timer = setTimeout(connect, 1000); return; }
    close();
    onProblem(problem);
    if (session === false) window.dispatchEvent(new Event("session-ended"));
  };
  const close = () => {
    closed = true;
    document.removeEventListener("visibilitychange", connect);
    leave();
  };
  document.addEventListener("visibilitychange", connect);
  connect();
  return { close };
}
