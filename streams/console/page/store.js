// The state of the page, and how snapshots and events change it.
import { useEffect, useState } from "./lib.js";

const MOST_DECISIONS = 10000;
const MOST_SAMPLES = 1800;
const CURVE = 60;

export const state = {
  loaded: false,
  source: "live", // or "recording"
  link: "connecting", // live, lost, locked (a token is needed), outdated
  lost_at: 0, // real ms of the first failure, if the link is lost
  led_until: 0, // ms of the last figures, if the controller stopped leading
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

/** Marks the connection as lost, from the first failure on. */
export function lostLink() {
  update({ link: "lost", lost_at: state.link === "lost" ? state.lost_at : Date.now() });
}

/** Whether this controller stopped leading, so that it has no figures any more. */
const stopsLeading = (controller) => state.source === "live" && !controller.leads && (state.controller.leads || state.led_until > 0);

/** The news of a controller that stopped leading, with the figures from before. */
function lastFigures(controller) {
  const { usd, gap, planned_at, budget, held } = state.controller;
  return { controller: { ...controller, usd, gap, planned_at, budget, held }, led_until: state.led_until || state.now_ms };
}

export function applySnapshot(found) {
  if (state.loaded && stopsLeading(found.controller)) {
    update({ ...lastFigures(found.controller), now_ms: found.now_ms, event: found.event, can_write: found.can_write });
    return;
  }
  const names = Object.keys(found.models);
  const model = state.model in found.models ? state.model : names[0] ?? "";
  update({
    loaded: true,
    led_until: 0,
    source: found.source,
    now_ms: found.now_ms,
    event: found.event,
    can_write: found.can_write,
    asks_token: found.asks_token,
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
  const stops = stopsLeading(event.controller);
  const returns = !stops && state.led_until > 0;
  if (stops) Object.assign(change, lastFigures(event.controller));
  if (returns) change.led_until = 0;
  for (const part of stops ? [] : ["models", "pools", "nodes", "proposals"]) {
    const gone = event.gone?.[part];
    if (!event[part] && !gone && !returns) continue;
    const rows = { ...(returns ? {} : state[part]), ...event[part] };
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
