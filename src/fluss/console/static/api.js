// Requests to the console. Errors carry the text of the server, to be shown as it is.

export class ApiError extends Error {
  constructor(message, status) { super(message); this.status = status; }
}

async function answer(response) {
  if (response.ok) return response;
  let message = `The console answered with status ${response.status}.`;
  let session = true;
  try {
    const body = await response.json();
    message = body.error || message;
    session = body.session !== false;
  } catch { /* not JSON: the status has to do */ }
  if (response.status === 401 && !session) window.dispatchEvent(new Event("session-ended"));
  throw new ApiError(message, response.status);
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

export function stream(path, args, onEvent, onProblem) {
  const source = new EventSource(`/api/${path}${query(args)}`);
  source.onmessage = (event) => onEvent(JSON.parse(event.data));
  source.addEventListener("problem", (event) => { source.close(); onProblem(JSON.parse(event.data).error); });
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) onProblem("The stream ended. Reload the page to go on.");
  };
  return source;
}
