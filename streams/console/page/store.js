// The state of the page, and how snapshots and events change it.
import { useEffect, useState } from "./lib.js";

const MOST_DECISIONS = 10000;
const MOST_SAMPLES = 1800;
const CURVE = 60;

export const state = {
  loaded: false,
  source: "live", // or "recording"
  link: "connecting", // live, lost, locked (a token is needed), outdated
  now_ms: 0,
  event: "",
  controller: {},
  models: {},
  pools: {},
  nodes: {},
  proposals: {},
  otherwise: null, // costs of other fleets
  decisions: [], // oldest first
  complete: false, // all decisions were loaded, not only the recent ones
  curves: {},
  events: 0,
  history: {}, // by model, "*" = the fleet
  recording: null,
  model: "", // selected
  decision: "", // selected, as keyOf
  news: "",
};

const listeners = new Set();
let queued = false;

/** Changes the state and renders once per frame. */
export function update(change) {
  Object.assign(state, change);
  if (queued) return;
  queued = true;
  queueMicrotask(() => {
    queued = false;
    for (const listener of listeners) listener();
  });
}

export function useStore() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    listeners.add(listener);
    listener(); // The state may have changed between the first rendering and this effect.
    return () => listeners.delete(listener);
  }, []);
  return state;
}

export const keyOf = (decision) => `${decision.token}/${decision.n}`;

export function applySnapshot(found) {
  const names = Object.keys(found.models);
  const model = state.model in found.models ? state.model : names[0] ?? "";
  update({
    loaded: true,
    source: found.source,
    now_ms: found.now_ms,
    event: found.event,
    can_write: found.can_write,
    speed: found.speed,
    controller: found.controller,
    models: found.models,
    pools: found.pools,
    nodes: found.nodes,
    proposals: found.proposals,
    curves: found.curves,
    otherwise: found.otherwise,
    decisions: merged(state.complete ? state.decisions : [], found.decisions),
    history: {},
    model,
  });
}

export function applyEvent(event) {
  const change = { now_ms: event.now_ms, controller: event.controller, events: state.events + 1 };
  for (const part of ["models", "pools", "nodes", "proposals"]) {
    const gone = event.gone?.[part];
    if (!event[part] && !gone) continue;
    const rows = { ...state[part], ...event[part] };
    for (const key of gone ?? []) delete rows[key];
    change[part] = rows;
  }
  if (event.decisions) {
    change.decisions = merged(state.decisions, event.decisions);
    change.news = newsOf(event.decisions);
  }
  if (event.otherwise) change.otherwise = event.otherwise;
  if (event.sample) Object.assign(change, withSample(event.sample));
  update(change);
}

export function merged(known, added) {
  const keys = new Set(known.slice(-2000).map(keyOf));
  const fresh = added.filter((one) => !keys.has(keyOf(one)));
  return fresh.length ? [...known, ...fresh].slice(-MOST_DECISIONS) : known;
}

function newsOf(decisions) {
  const telling = decisions.filter((one) => one.kind !== "hold");
  if (!telling.length) return state.news;
  const last = telling[telling.length - 1];
  const more = telling.length > 1 ? `${telling.length} new decisions. ` : "New decision. ";
  return `${more}${last.model}: ${last.reason}`;
}

function withSample({ t, of }) {
  const history = { ...state.history };
  for (const [name, columns] of Object.entries(history)) {
    const row = of[name];
    if (!row || columns.t.at(-1) >= t) continue;
    const next = { t: [...columns.t, t].slice(-MOST_SAMPLES) };
    for (const key of Object.keys(columns)) {
      if (key !== "t") next[key] = [...columns[key], row[key] ?? null].slice(-MOST_SAMPLES);
    }
    history[name] = next;
  }
  const curves = { ...state.curves };
  for (const [name, row] of Object.entries(of)) {
    const [demand, ready] = curves[name] ?? [[], []];
    curves[name] = [
      [...demand, row.demand ?? null].slice(-CURVE), [...ready, row.ready ?? null].slice(-CURVE),
    ];
  }
  return { history, curves };
}

export function selectModel(model) {
  update({ model });
}

export function selectDecision(decision) {
  const key = keyOf(decision);
  if (state.decision === key) return update({ decision: "" });
  const model = decision.model in state.models ? decision.model : state.model;
  update({ decision: key, model });
}
