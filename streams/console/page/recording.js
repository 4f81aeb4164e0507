// A recorded or simulated span: one or two runs, and a slider that moves through time.
import { html, useEffect } from "./lib.js";
import { clock, moment, percent, usd } from "./format.js";
import { state, update } from "./store.js";

const STEPS = 1000;
const FEW_RUNS = 2;
const SPEEDS = [10, 60, 300];

/** Prepares the page for what /v1/console told of a recording. */
export function startRecording(found) {
  const span = [found.from, found.to];
  const { run, at } = state.linked ?? { run: 0, at: found.to };
  const shown = found.runs[run] ? run : 0;
  const beside = found.runs.length > 1 ? (shown === 1 ? 0 : 1) : -1;
  const recording = { ...found, span, at: Math.min(span[1], Math.max(span[0], at)), run: shown, beside, playing: 0 };
  update({ loaded: true, source: "recording", recording, controller: {}, can_write: false, complete: true });
  show(recording);
}

/** Histories of the shown run, and of the run beside it under its name. */
export function runOf(s) {
  if (!s.recording) return { own: (name) => s.history[name], other: () => null };
  const { runs, run } = s.recording;
  const beside = runs[s.recording.beside];
  return {
    own: (name) => historyOf(runs[run], name),
    other: (name) => (beside ? historyOf(beside, name) : null),
  };
}

const histories = new WeakMap();

/** Columns of a model or of the fleet, with the name and the cost of the run; the same object each time. */
function historyOf(run, name) {
  const columns = Object.hasOwn(run.history, name) ? run.history[name] : null;
  if (columns && !histories.has(columns)) histories.set(columns, { ...columns, name: run.name, total: name === "*" ? run.usd : null });
  return columns && histories.get(columns);
}

function show(recording) {
  const run = recording.runs[recording.run];
  const models = {};
  const curves = {};
  for (const [name, limits] of Object.entries(run.models)) {
    const columns = run.history[name];
    const index = indexAt(columns.t, recording.at);
    const now = (key) => (index < 0 ? null : columns[key]?.[index] ?? null);
    const where = whereOf(run, name, recording.at, recording.pools);
    models[name] = {
      held: "", spot_now: 0, spot_over: false, target_why: "", proposal: 0, uncertain: "", silent_s: null, guards: [], conditions: [], remedy: "",
      ...limits,
      demand: now("demand"), target: now("target"), wanted_rate: now("wanted"), ready_rate: now("ready"),
      ttft: now("ttft"), tpot: now("tpot"), attained: now("attained"), usd: now("usd"),
      ready: where.all ? where.ready : null, wanted: where.all ? where.all : null, where: where.list,
      level: "ok",
      word: where.all > where.ready ? `${where.all - where.ready} starting` : "steady",
    };
    const row = models[name];
    if (row.attained !== null && row.attained < row.percentile) Object.assign(row, { level: "broken", word: "below its promise" });
    const from = Math.max(0, index - 59);
    const capacity = columns.ready.some((v) => v !== null) ? columns.ready : columns.wanted;
    curves[name] = [columns.demand.slice(from, index + 1), capacity.slice(from, index + 1)];
  }
  const nodes = {};
  for (const [name, row] of nodesAt(run, recording.at)) nodes[name] = row;
  const fleet = run.history["*"];
  const index = indexAt(fleet.t, recording.at);
  const known = Object.hasOwn(models, state.model) ? state.model : Object.keys(models)[0] ?? "";
  update({
    recording, models, curves, nodes, pools: recording.pools, model: known, now_ms: recording.at,
    decisions: run.decisions,
    controller: { usd: index < 0 ? null : fleet.usd[index], attained: index < 0 ? null : fleet.attained[index], gap: run.gap ?? null },
  });
}

function indexAt(t, at) {
  let low = 0;
  let high = t.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (t[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** Nodes in use at a time. A span that ends with the recording includes its end. */
function* nodesAt(run, at) {
  const end = state.recording?.to ?? Infinity;
  for (const [name, pool, from, to, word, instances, reclaim] of run.nodes) {
    if (from <= at && (at < to || (at >= end && to >= end))) yield [name, { pool, state: word, reclaim, instances, faults: [] }];
  }
}

function whereOf(run, model, at, pools) {
  const found = new Map();
  let ready = 0;
  let all = 0;
  for (const [, row] of nodesAt(run, at)) {
    for (const [name, phase, word] of row.instances) {
      if (name !== model) continue;
      all += 1;
      ready += word === "serving" ? 1 : 0;
      const pool = pools[row.pool];
      const key = JSON.stringify([pool?.region ?? "", pool ? `${pool.name} ${pool.market}` : row.pool, phase]);
      found.set(key, (found.get(key) ?? 0) + 1);
    }
  }
  return { ready, all, list: [...found].map(([key, count]) => [...JSON.parse(key), count]) };
}

export function Player({ recording }) {
  const { span, at, playing } = recording;
  const change = (next) => show({ ...recording, ...next });
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setInterval(() => {
      const now = state.recording;
      const next = Math.min(span[1], now.at + playing * 100);
      show({ ...now, at: next, playing: next >= span[1] ? 0 : playing });
    }, 100);
    return () => clearInterval(timer);
  }, [playing]);
  const step = (span[1] - span[0]) / STEPS;
  const speed = SPEEDS[(SPEEDS.indexOf(playing) + 1) % SPEEDS.length];
  return html`<section class="card player" aria-labelledby="player-h">
    <h2 id="player-h" class="unseen">Time</h2>
    <div class="player-row">
      <button class="primary small" onClick=${() => change({ playing: playing ? 0 : SPEEDS[1], at: at >= span[1] ? span[0] : at })}>${playing ? "Pause" : "Play"}</button>
      <button class="small" onClick=${() => change({ playing: playing ? speed : SPEEDS[0] })}>${playing || SPEEDS[1]}×</button>
      <input type="range" min="0" max=${STEPS} value=${Math.round((at - span[0]) / step)} aria-label="Time" aria-valuetext=${`${moment(at)} UTC`}
        onInput=${(event) => change({ at: span[0] + Number(event.target.value) * step, playing: 0 })} />
      <output>${clock(at)} <span class="quiet">UTC</span></output>
    </div>
  </section>`;
}

/** The runs of a recording, of which one is shown and one stands beside it as dashed curves. */
export function Runs({ recording }) {
  const { at, runs, run, beside } = recording;
  const change = (next) => show({ ...recording, ...next });
  const words = (one) => `${one.name}, ${usd(one.usd)} USD, ${percent(one.attained)} met`;
  return html`<section class="card runs" aria-labelledby="runs-h"><details open=${runs.length <= FEW_RUNS}>
    <summary><h2 id="runs-h">Runs</h2> <span>${words(runs[run])}${runs[beside] ? `; dashed: ${words(runs[beside])}` : ""}</span></summary>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of runs"><table><thead><tr><th scope="col">Run</th><th scope="col" class="num">Cost, USD</th><th scope="col" class="num">Until now</th><th scope="col" class="num">SLO met</th><th scope="col" class="num">Decisions</th><th scope="col">Shown</th><th scope="col">Beside</th></tr></thead>
    <tbody>${runs.map((one, index) => html`<tr key=${one.name} class=${index === run ? "chosen" : ""}>
      <th scope="row">${one.name}${one.note ? html`<small>${one.note}</small>` : null}</th><td class="num">${usd(one.usd)}</td><td class="num quiet">${usd(until(one, at))}</td>
      <td class="num">${percent(one.attained)}</td><td class="num">${one.decisions.length}</td>
      <td><button class="toggle" aria-pressed=${index === run} onClick=${() => change({ run: index, beside: beside === index ? run : beside })}>${index === run ? "shown" : "show"}<span class="unseen"> ${one.name}</span></button></td>
      <td>${index === run ? "" : html`<button class="toggle" aria-pressed=${index === beside} onClick=${() => change({ beside: index === beside ? -1 : index })}>dashed<span class="unseen"> ${one.name}</span></button>`}</td></tr>`)}</tbody></table></div></details>
  </section>`;
}

function until(run, at) {
  const { t, spent } = run.history["*"];
  const index = indexAt(t, at);
  if (index < 0) return 0;
  return index === t.length - 1 ? run.usd : spent[index];
}
