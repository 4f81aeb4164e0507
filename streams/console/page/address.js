// The selection in the address of the page. A link shows the same model, decision and range of time
// to another person, and Back and Forward step through selections.
import { state, update, watch } from "./store.js";

const PARTS = ["model", "decision", "range"];
const TIMES = ["run", "at"]; // of a recording

let steps = 0;
let later = 0;

const parts = () => new URLSearchParams(location.hash.slice(1));

/** Selects what the address names, from now on both ways. */
export function followAddress() {
  Object.assign(state, selected(), { linked: linkedTime() });
  addEventListener("popstate", () => update(selected()));
  watch(write);
}

const selected = () => Object.fromEntries(PARTS.map((part) => [part, parts().get(part) ?? ""]));

/** {run, at} of a link to a moment of a recording; null if the address names none. */
function linkedTime() {
  const found = parts();
  return found.has("at") ? { run: Number(found.get("run")) || 0, at: Number(found.get("at")) || 0 } : null;
}

/** Writes the selection. Only the person's own steps are kept for Back; a moving slider is written when it rests. */
function write() {
  if (!state.loaded || state.recording?.playing) return;
  const found = parts();
  for (const part of PARTS) put(found, part, state[part]);
  for (const part of TIMES) put(found, part, state.recording && String(Math.round(state.recording[part])));
  const text = `#${found.toString().replaceAll("%2F", "/").replaceAll("%3A", ":")}`;
  const isStep = state.steps !== steps;
  steps = state.steps;
  clearTimeout(later);
  if (text === location.hash) return;
  if (isStep) history.pushState(null, "", text);
  else if (state.recording) later = setTimeout(() => history.replaceState(null, "", text), 300);
  else history.replaceState(null, "", text);
}

function put(found, part, value) {
  if (value) found.set(part, value);
  else found.delete(part);
}
