// Models: a table of all of them, and the curves, facts and guards of the selected one.
import { html, memo, steady, useEffect, useMemo, useState, classes } from "./lib.js";
import { Alternatives } from "./alternatives.js";
import { Chart, Spark } from "./charts.js";
import { known, lasting, latency, percent, rate, several, usd } from "./format.js";
import { Save } from "./export.js";
import { UnitCosts } from "./bill.js";
import { spanOf } from "./range.js";
import { loadHistory } from "./transport.js";
import { selectModel, state } from "./store.js";
import { ask } from "./operator.js";
import { Rollout, RolloutControls } from "./rollout.js";

const ROWS = 12;

const load = (row) => {
  const usable = (row.ready_rate ?? row.wanted_rate) * row.utilization;
  return row.demand === null || !(usable > 0) ? null : row.demand / usable;
};
const over = (value, limit) => value !== null && limit > 0 && value > limit;

/** Levels of the verdict, most urgent first. */
const LEVELS = [["broken", "Broken"], ["at_risk", "At risk"], ["attention", "Attention"], ["ok", "Well"]];
const SIGNS = { broken: ["✕", "bad"], at_risk: ["!", "warn"], attention: ["?", "hold"] };

/** Verdict of the controller as [sign, word, tone]; the sign repeats what the colour says. */
function condition(row) {
  const [sign, tone] = SIGNS[row.level] ?? (row.ready < row.wanted ? ["↗", "busy"] : ["✓", "ok"]);
  return [sign, row.word, tone];
}

const trouble = (row) => ["bad", "warn", "hold", "busy", "ok"].indexOf(condition(row)[2]);

export function Models({ models, curves, model }) {
  const [search, setSearch] = useState("");
  const [all, setAll] = useState(false);
  const [level, setLevel] = useState("");
  const counts = useMemo(() => LEVELS.map(([name]) => Object.values(models).filter((row) => row.level === name).length), [models]);
  const chosen = counts[LEVELS.findIndex(([name]) => name === level)] ? level : "";
  const names = useMemo(() => {
    const wanted = search.trim().toLowerCase();
    return Object.keys(models)
      .filter((name) => name.toLowerCase().includes(wanted) && (!chosen || models[name].level === chosen))
      .sort((a, b) => trouble(models[a]) - trouble(models[b]) || a.localeCompare(b));
  }, [models, search, chosen]);
  const few = names.length > ROWS && !all && !search && !chosen;
  let shown = few ? names.slice(0, ROWS) : names;
  if (few && model && !shown.includes(model) && names.includes(model)) shown = [...shown.slice(0, -1), model];
  return html`<section class="card" aria-labelledby="models-h">
    <header class="card-head"><h2 id="models-h">Models <span class="count">${Object.keys(models).length}</span></h2>
      ${names.length > ROWS || search
        ? html`<input type="search" placeholder="Find a model" aria-label="Find a model" value=${search}
            onInput=${(event) => setSearch(event.target.value)} />`
        : null}
    </header>
    <div class="filters" role="group" aria-label="Show models by state">
      ${LEVELS.map(([name, label], i) => counts[i] > 0 && html`<button class=${`toggle ${name}`} key=${name} aria-pressed=${chosen === name}
        onClick=${() => setLevel(chosen === name ? "" : name)}>${label} <b>${counts[i]}</b></button>`)}
    </div>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of models"><table class="models">
      <thead><tr>
        <th scope="col">Model</th><th scope="col" class="roomy">Demand in capacity</th>
        <th scope="col" class="num roomy">Demand<small>req/s</small></th>
        <th scope="col" class="num roomy">Target<small>req/s</small></th>
        <th scope="col" class="num roomy">Capacity<small>req/s</small></th>
        <th scope="col" class="num roomy">Load<small>of usable</small></th>
        <th scope="col" class="num roomy">TTFT p95<small>limit</small></th>
        <th scope="col" class="num roomy">TPOT p95<small>limit</small></th>
        <th scope="col" class="num">SLO met</th>
        <th scope="col" class="num">Cost<small>USD/h</small></th>
        <th scope="col">State</th>
      </tr></thead>
      <tbody>${shown.map((name) => html`<${ModelRow} key=${name} name=${name} row=${models[name]}
        curve=${curves[name]} chosen=${name === model} />`)}</tbody>
    </table></div>
    ${few && html`<button class="more" onClick=${() => setAll(true)}>Show all ${names.length} models</button>`}
    ${!names.length && html`<p class="empty">${search ? "No model matches." : "This controller has no figures of models."}</p>`}
  </section>`;
}

const ModelRow = memo(({ name, row, curve, chosen }) => {
  const [sign, word, tone] = condition(row);
  const used = load(row);
  return html`<tr class=${classes(chosen && "chosen")}>
    <th scope="row"><button class="link" aria-pressed=${chosen} onClick=${() => selectModel(name)}>${name}</button></th>
    <td class="roomy"><${Spark} demand=${curve?.[0] ?? []} ready=${curve?.[1] ?? []} /></td>
    <td class="num roomy">${rate(row.demand)}</td>
    <td class="num roomy quiet">${rate(row.target)}</td>
    <td class="num roomy">${rate(row.ready_rate ?? row.wanted_rate)}${row.wanted === null ? "" : html`<small>${row.ready}/${row.wanted}</small>`}</td>
    <td class=${classes("num roomy", used > 1 && "bad")}>${used > 1 ? "! " : ""}${percent(used, 0)}</td>
    <td class=${classes("num roomy", over(row.ttft, row.ttft_limit) && "bad")}>${latency(row.ttft)}<small>${latency(row.ttft_limit)}</small></td>
    <td class=${classes("num roomy", over(row.tpot, row.tpot_limit) && "bad")}>${latency(row.tpot)}<small>${latency(row.tpot_limit)}</small></td>
    <td class=${classes("num", row.attained !== null && row.attained < row.percentile && "bad")}>${percent(row.attained)}${nowUnlike(row) && html`<small>now ${percent(row.attained_now)}</small>`}</td>
    <td class="num">${usd(row.usd)}</td>
    <td class="state"><span class=${`tag ${tone}`}><span aria-hidden="true">${sign}</span> ${word}</span></td>
  </tr>`;
});

/** Whether the last minutes differ from the long window. */
const nowUnlike = (row) => row.attained !== null && known(row.attained_now) && Math.abs(row.attained_now - row.attained) >= 0.02;

const EMPTY = { t: [], demand: [], target: [], wanted: [], ready: [], ttft: [], tpot: [], attained: [], usd: [] };
const LIMITS = ["percentile", "ttft_limit", "tpot_limit"];

/** Curves and facts of one model. other: the same model in the run beside it. */
export function ModelDetail({ name, row, columns, other, decisions, selected, at, range, whole, source, windows, canWrite }) {
  useEffect(() => {
    if (name) loadHistory(name).catch(() => {});
  }, [name, !!columns]);
  const mine = useMemo(
    () => decisions.filter((one) => (one.model === name || one.model === "*") && one.kind !== "hold"),
    [decisions, name],
  );
  const own = columns ?? EMPTY;
  const limits = useMemo(
    () => Object.fromEntries(LIMITS.map((key) => [key, own.t.map(() => row?.[key] ?? null)])),
    [own.t, ...LIMITS.map((key) => row?.[key])],
  );
  const aligned = useMemo(
    () => (other ? Object.fromEntries(Object.keys(EMPTY).map((key) => [key, align(own.t, other, key)])) : {}),
    [own.t, other?.t, other?.name],
  );
  if (!row) return null;
  const beside = (key, unit) => (other ? [{ name: `${unit} in ${other.name}`, values: aligned[key], color: "--other", dash: true, width: 1.25 }] : []);
  const common = { x: own.t, decisions: mine, selected, at, range, whole };
  return html`<section class="card detail" aria-labelledby="detail-h">
    <header class="card-head">
      <h2 id="detail-h"><span class="quiet">Model</span> ${name}</h2>
      <span class="actions"><${Save} name=${name} columns=${own} span=${spanOf(range, own.t, whole)} /></span>
      ${source === "live" && html`<${Controls} name=${name} row=${row} canWrite=${canWrite} />`}
    </header>
    <div class="charts">
      <${Chart} ...${common} title="Demand against capacity" unit="req/s" show=${rate} series=${[
        { name: "ready", values: own.ready, color: "--capacity", fill: true },
        { name: "planned", values: own.wanted, color: "--planned", dash: true },
        { name: "target", values: own.target, color: "--target", spans: true },
        { name: "demand", values: own.demand, color: "--demand", width: 2.25 },
        ...beside(other?.ready.some((v) => v !== null) ? "ready" : "wanted", "capacity"),
      ].filter((one) => one.values.some((v) => v !== null) || one.name === "demand")} />
      <${Chart} ...${common} title="SLO met" show=${(v) => percent(v, 1)} tick=${(v) => percent(v, 0)} axis=${attainedAxis} series=${[
        ...attainedCurves(own, windows),
        { name: "promised", values: limits.percentile, color: "--limit", dash: true },
        ...beside("attained", "met"),
      ]} />
      <${Chart} ...${common} title="TTFT p95" show=${latency} series=${[
        { name: "TTFT", values: own.ttft, color: "--demand" },
        { name: "limit", values: limits.ttft_limit, color: "--limit", dash: true },
        ...beside("ttft", "TTFT"),
      ]} />
      <${Chart} ...${common} title="TPOT p95" show=${latency} series=${[
        { name: "TPOT", values: own.tpot, color: "--demand" },
        { name: "limit", values: limits.tpot_limit, color: "--limit", dash: true },
        ...beside("tpot", "TPOT"),
      ]} />
    </div>
    <${UnitCosts} name=${name} columns=${own} now=${row.usd} span=${spanOf(range, own.t, whole)} />
    <${Facts} name=${name} row=${row} source=${source} />
  </section>`;
}

/** Curves of the SLO met: an outage of minutes shows in the short window, and its weight in the long one. */
function attainedCurves(own, windows) {
  if (!windows || !own.attained_now) return [{ name: "met", values: own.attained, color: "--ok" }];
  const [short, long] = windows.map((s) => lasting(1000 * s));
  return [{ name: `met in ${short}`, values: own.attained_now, color: "--demand" }, { name: `in ${long}`, values: own.attained, color: "--ok" }];
}

const attainedAxis = (low) => [Math.max(0, Math.floor(((low ?? 1) - 0.02) * 20) / 20), 1.005];

/** Values of another run at the times of this one; both runs have the same step. */
function align(t, other, key) {
  let at = 0;
  return t.map((ms) => {
    while (at + 1 < other.t.length && other.t[at + 1] <= ms) at += 1;
    return other.t.length && other.t[at] <= ms + 1 ? other[key][at] : null;
  });
}

const Facts = steady(({ name, row, source }) => html`<dl class="facts">
  <div><dt>Runs</dt><dd>${row.where.length
    ? row.where.map(([region, pool, role, count]) => html`<span class="chip">${count} × ${region}/${pool}${role === "aggregated" ? "" : ` ${role}`}</span>`)
    : source === "live" ? "nothing" : "not recorded"}</dd></div>
  ${row.rollout && html`<${Rollout} rollout=${row.rollout} />`}
  ${row.target_why && html`<div><dt>Target</dt><dd>${rate(row.target)} req/s: ${row.target_why}</dd></div>`}
  <div><dt>Policy</dt><dd>mode ${row.mode}, load up to ${percent(row.utilization, 0)}, spot up to ${percent(row.spot_share, 0)} of capacity, at least ${several(row.min, "instance")}${row.max ? `, at most ${row.max}` : ""}</dd></div>
  ${row.spot_now > 0 && html`<div><dt>On spot</dt><dd class=${row.spot_over ? "warn-text" : ""}>${percent(row.spot_now, 0)} of planned capacity${row.spot_over ? `; ! over the limit of ${percent(row.spot_share, 0)}` : ""}</dd></div>`}
  ${row.guards.length > 0 && html`<div><dt>Guards</dt><dd>${row.guards.join("; ")}</dd></div>`}
  ${row.uncertain && html`<div><dt>Uncertain</dt><dd class="warn-text">${row.uncertain}</dd></div>`}
  ${source === "live" && html`<${Alternatives} name=${name} key=${name} />`}
</dl>`);

function Controls({ name, row, canWrite }) {
  const held = Object.keys(state.controller.held ?? {});
  const has = (kind) => held.includes(`${name}/${kind}`);
  const one = (on, off, active) => html`<button class="small" disabled=${!canWrite}
    onClick=${() => ask({ command: active ? off[0] : on[0], model: name })}>${active ? off[1] : on[1]}</button>`;
  return html`<div class="actions" role="group" aria-label=${`Commands for ${name}`}>
    ${one(["pause", "Pause"], ["resume", "Resume"], has("pause"))}
    ${one(["freeze", "Freeze"], ["unfreeze", "Unfreeze"], has("frozen"))}
    ${one(["release", "Release"], ["adopt", "Adopt"], has("release"))}
    ${row.rollout && html`<${RolloutControls} name=${name} rollout=${row.rollout} canWrite=${canWrite} />`}
  </div>`;
}

