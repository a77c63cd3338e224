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
    return await answer(await fetch(path, options));
  } catch (error) {
    throw error instanceof ApiError ? error : new ApiError("The console does not answer. Is it still running?", 0);
  }
}

// The console takes changes only with a header of its own, which other sites cannot set.
function change(body, type = "application/json") {
  return { method: "POST", headers: { "content-type": type, "x-fluss-console": "1" }, body };
}

export async function get(path, args = {}) { return (await send(`/api/${path}${query(args)}`)).json(); }

export async function post(path, body = {}) { return (await send(`/api/${path}`, change(JSON.stringify(body)))).json(); }

export async function upload(path, file, args) {
  return (await send(`/api/${path}${query(args)}`, change(file, "application/octet-stream"))).json();
}

export async function download(path, body, name) {
  const url = URL.createObjectURL(await (await send(`/api/${path}`, change(JSON.stringify(body)))).blob());
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// This page of the browser, to which the SQL session belongs.
export const tab = [...crypto.getRandomValues(new Uint8Array(12))].map((one) => one.toString(16).padStart(2, "0")).join("");

export function leaveTab() {
  fetch("/api/sql/cancel", { ...change(JSON.stringify({ tab, close: true })), keepalive: true }).catch(() => {});
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
