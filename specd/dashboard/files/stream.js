// Server-sent events by fetch: an EventSource cannot send the admin token.

const SILENT_SECONDS = 20; // status comes every second: whoever says nothing for so long is gone

/** The daemon wants a token, or another one. */
export class TokenWanted extends Error {}

/**
 * Read one stream until it ends. Calls `told(name, document)` for each event; returns the id of the last one.
 * Throws `TokenWanted`, or an Error with a sentence.
 */
export async function listen(url, { token, last, told }) {
  const stop = new AbortController();
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(new Error("the daemon has fallen silent")), SILENT_SECONDS * 1000);
  };
  alive();
  try {
    const response = await fetch(url, { headers: headers(token, last.id), cache: "no-store", signal: stop.signal });
    await check(response);
    for await (const event of events(response.body, alive)) {
      last.id = event.id ?? last.id;
      told(event.name, JSON.parse(event.data));
    }
  } finally {
    clearTimeout(timer);
  }
}

function headers(token, id) {
  return {
    Accept: "text/event-stream",
    ...(token && { Authorization: `Bearer ${token}` }),
    ...(id && { "Last-Event-ID": id }),
  };
}

async function check(response) {
  if (response.status === 401) throw new TokenWanted("The daemon does not take this token.");
  if (response.ok) return;
  const body = await response.json().catch(() => null);
  throw new Error(body?.error?.message ?? `the daemon answers ${response.status}`);
}

/** Events of a body: `{name, id, data}`. The daemon writes each field in one line. */
async function* events(body, alive) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const event = parsed(block);
      if (event.data !== undefined) yield event;
    }
  }
}

function parsed(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  return { name: fields.event, id: fields.id, data: fields.data };
}
