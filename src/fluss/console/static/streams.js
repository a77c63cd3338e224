// The worker that all pages of this browser share: it holds one stream of the console with all that they follow, for a
// browser has six connections to one address. Pages send { follow, source, args }, { leave } and { read }, each with a
// key; they get { key, text }, the JSON of an event or a problem, or of nothing where the stream is lost.

const UNREAD_MAX = 256;
const followed = new Map(); // by key: the port of the page, and how many messages it has not read
let stream = null;

const headers = { "content-type": "application/json", "x-fluss-console": "1" };
const post = (path, body) => fetch(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) });

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    const found = (rest + part.value).split("\n");
    rest = found.pop();
    yield* found;
  }
}

// The stream, opened for the first that follows something.
function open() {
  const stop = new AbortController();
  const opening = (async () => {
    const response = await fetch("/api/streams", { signal: stop.signal });
    if (!response.ok) return { refused: await response.json() };
    const found = lines(response.body);
    const id = (await found.next()).value;
    read(found, opening);
    return { id };
  })();
  opening.stop = () => { if (stream === opening) stream = null; stop.abort(); };
  return opening;
}

async function read(found, opened) {
  try {
    for await (const line of found) {
      const at = line.indexOf(" ");
      send(line.slice(0, at), line.slice(at + 1));
    }
  } catch { /* the console is gone, or the stream was stopped */ }
  lose(opened);
}

// Pages follow again what they followed, from where they were.
function lose(opened) {
  if (stream !== opened) return;
  opened.stop();
  for (const key of [...followed.keys()]) end(key);
}

function send(key, text) {
  const page = followed.get(key);
  if (!page) return;
  page.port.postMessage({ key, text });
  // A page that stands still, with a dialog for example, must not fill the memory.
  if (++page.unread > UNREAD_MAX) end(key);
}

function end(key, reason = {}) {
  followed.get(key)?.port.postMessage({ key, text: JSON.stringify(reason) });
  leave(key);
}

async function follow(port, { follow: key, source, args }) {
  followed.set(key, { port, unread: 0 });
  const opening = stream ??= open();
  try {
    const { id, refused } = await opening;
    const response = refused ? null : await post("streams/follow", { stream: id, key, source, args });
    const answer = refused || await response.json();
    if (answer.error) end(key, { problem: answer.error, session: answer.session });
    else if (!answer.open) lose(opening);
    else if (!followed.has(key)) await post("streams/leave", { stream: id, key }); // left meanwhile
    if (refused) opening.stop();
  } catch { end(key); lose(opening); }
}

async function leave(key) {
  if (!followed.delete(key) || !stream) return;
  if (!followed.size) { stream.stop(); return; }
  try { await post("streams/leave", { stream: (await stream).id, key }); } catch { /* the stream is lost with all in it */ }
}

function serve(port) {
  port.onmessage = ({ data }) => {
    if (data.follow) follow(port, data);
    else if (data.leave) leave(data.leave);
    else if (followed.has(data.read)) followed.get(data.read).unread--;
  };
  // Also when a page ends without leaving what it follows.
  port.onclose = () => { for (const [key, page] of [...followed]) if (page.port === port) leave(key); };
}

if ("onconnect" in self) self.onconnect = (event) => serve(event.ports[0]);
else serve(self); // browsers without shared workers: one for each page
