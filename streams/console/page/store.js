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
  decisions: [], // and events, oldest first
  complete: false, // all decisions were loaded, not only the recent ones
  curves: {},
  events: 0,
  history: {}, // by model, "*" = the fleet
  recording: null,
  model: "", // selected
  decision: "", // selected, as keyOf
  range: "", // of time, see range.js
  steps: 0, // number of selections by the person
  linked: null, // moment of a recording that the address names
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

/** Calls `listener` after each change; returns a function that ends this. */
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function useStore() {
  const [, again] = useState(0);
  useEffect(() => {
    const listener = () => again((n) => n + 1);
    listener(); // The state may have changed between the first rendering and this effect.
    return watch(listener);
  }, []);
  return state;
}

/** Whether a row of the time line is no decision: a command, a verdict, a loss, an alert or a note. */
export const isEvent = (one) => one.token === "e";

export const keyOf = (decision) => `${decision.token}/${decision.n}`;

/** Marks the connection as lost, from the first failure on. */
export function lostLink() {
  update({ link: "lost", lost_at: state.link === "lost" ? state.lost_at : Date.now() });
}

/** Whether this controller stopped leading, so that it has no figures any more. */
const stopsLeading = (controller) => state.source === "live" && !controller.leads && (state.controller.leads || state.led_until > 0);

/** The news of a controller that stopped leading, with the figures from before. */
function lastFigures(controller) {
  const { usd, attained, gap, planned_at, budget, held } = state.controller;
  return { controller: { ...controller, usd, attained, gap, planned_at, budget, held }, led_until: state.led_until || state.now_ms };
}

export function applySnapshot(found) {
  if (state.loaded && stopsLeading(found.controller)) {
    update({ ...lastFigures(found.controller), now_ms: found.now_ms, event: found.event, can_write: found.can_write });
    return;
  }
  const names = Object.keys(found.models);
  const model = Object.hasOwn(found.models, state.model) || !names.length ? state.model : names[0];
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
  const noun = isEvent(last) ? "event" : "decision";
  const more = telling.length > 1 ? `${telling.length} new decisions and events. ` : `New ${noun}. `;
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

/** A selection by the person: a step that Back takes back. */
export function select(change) {
  update({ ...change, steps: state.steps + 1 });
}

export const selectModel = (model) => select({ model });

export function selectDecision(decision) {
  const key = keyOf(decision);
  if (state.decision === key) return select({ decision: "" });
  const model = Object.hasOwn(state.models, decision.model) ? decision.model : state.model;
  select({ decision: key, model });
}
