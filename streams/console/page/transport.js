// Reads the controller: snapshot, history, decisions, and a stream of events that resumes.
import { applyEvent, applySnapshot, lostLink, merged, state, update } from "./store.js";

const FORM = 1;
const SILENT_MS = 15000;
const IDLE_MS = 500;
const READ = "shoal-read-token";

const readToken = () => sessionStorage.getItem(READ);

/** The controller refused the token of a request. */
export class Locked extends Error {
  constructor(token) {
    super("a token is needed");
    this.token = token;
  }
}

const headers = (token) => (token ? { Authorization: `Bearer ${token}` } : {});

export function keepReadToken(token) {
  sessionStorage.setItem(READ, token);
}

async function read(path) {
  const token = readToken();
  const answer = await fetch(path, { headers: headers(token), cache: "no-store" });
  if (answer.status === 401) throw new Locked(token);
  if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
  return answer.json();
}

export const readJson = read;

export async function loadHistory(model) {
  if (state.source !== "live" || state.history[model]) return;
  const columns = await read(`/v1/console/history?model=${encodeURIComponent(model)}`);
  if (columns.t) update({ history: { ...state.history, [model]: columns } });
}

export async function loadDecisions() {
  const { decisions } = await read("/v1/console/decisions");
  update({ decisions: merged(decisions, state.decisions), complete: true });
}

/** Shows the controller until the page is closed; after each loss of the connection it resumes. */
export async function follow() {
  let wait = 500;
  for (;;) {
    try {
      const found = await read("/v1/console");
      if (found.form !== FORM) {
        update({ link: "outdated" });
        return;
      }
      if (found.source === "recording") {
        update({ link: "live" });
        return found;
      }
      applySnapshot(found);
      update({ link: "live" });
      whenIdle(() => loadDecisions().catch(() => {}));
      wait = 500;
      await resumeUntilReset();
    } catch (error) {
      if (error instanceof Locked) {
        update({ link: "locked" });
        // The person may have given another token while this request was under way.
        if (error.token === readToken()) await unlocked();
        continue;
      }
      lostLink();
    }
    await pause(wait);
    wait = Math.min(8000, wait * 2);
  }
}

/** Runs `work` after the page has been painted and has nothing else to do. */
const whenIdle = (work) => setTimeout(() => (globalThis.requestIdleCallback ?? setTimeout)(work), IDLE_MS);

let unlock = () => {};
const unlocked = () => new Promise((done) => (unlock = done));
export const tryAgain = () => unlock();

const pause = (ms) => new Promise((done) => setTimeout(done, ms * (0.8 + 0.4 * Math.random())));

/** Streams events, and reconnects after the last one; returns if the whole state must be read. */
async function resumeUntilReset() {
  for (let failures = 0; ; failures += 1) {
    try {
      const reset = await stream(() => {
        failures = 0;
        if (state.link !== "live") update({ link: "live" });
      });
      if (reset) return;
    } catch (error) {
      if (error instanceof Locked) throw error;
      if (failures > 3) throw error;
    }
    lostLink();
    await pause(Math.min(8000, 500 * 2 ** failures));
  }
}

async function stream(onLine) {
  const stop = new AbortController();
  let heard = performance.now();
  const watch = setInterval(() => {
    if (performance.now() - heard > SILENT_MS) stop.abort();
  }, 1000);
  try {
    const token = readToken();
    const answer = await fetch("/v1/events", {
      headers: { ...headers(token), "Last-Event-ID": state.event },
      signal: stop.signal,
      cache: "no-store",
    });
    if (answer.status === 401) throw new Locked(token);
    if (!answer.ok) throw new Error(`HTTP ${answer.status}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return false;
      heard = performance.now();
      onLine();
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) if (take(block)) return true;
    }
  } finally {
    clearInterval(watch);
    stop.abort();
  }
}

/** Applies one block of the stream; true if the page must read everything again. */
function take(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  if (fields.event === "reset") return true;
  if (fields.event === "change") {
    applyEvent(JSON.parse(fields.data));
    state.event = fields.id;
  }
  return false;
}
