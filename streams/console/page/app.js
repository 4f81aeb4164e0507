// The page: header, alerts, and the sections. Selection of a model or a decision links them.
import { html, render, useEffect, useMemo, useState } from "./lib.js";
import { clock, figure, known, lasting, moment, percent, several, usd } from "./format.js";
import { state, useStore } from "./store.js";
import { follow, keepReadToken, tryAgain } from "./transport.js";
import { followAddress } from "./address.js";
import { monthly } from "./bill.js";
import { RangeChoice } from "./range.js";
import { Models, ModelDetail } from "./models.js";
import { Decisions, News } from "./decisions.js";
import { Fleet } from "./fleet.js";
import { Cost, Health, Supply } from "./supply.js";
import { CommandDialog, Proposals, ask, takeTokenFromAddress } from "./operator.js";
import { Player, Runs, runOf, startRecording } from "./recording.js";

const SCHEMES = ["system", "light", "dark"];

function Theme() {
  const [now, set] = useState(document.documentElement.dataset.theme ?? "system");
  const next = SCHEMES[(SCHEMES.indexOf(now) + 1) % SCHEMES.length];
  const change = () => {
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    localStorage.setItem("shoal-theme", next);
    set(next);
    dispatchEvent(new Event("shoal-theme"));
  };
  return html`<button class="small" onClick=${change}>Colours: ${now}</button>`;
}

const STALE_S = 3;

/** Real seconds since the connection was lost; 0 while it is not. */
function useLostSeconds(s) {
  const [, again] = useState(0);
  const lost = s.link === "lost";
  useEffect(() => {
    if (!lost) return undefined;
    const timer = setInterval(() => again((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [lost]);
  return lost ? (Date.now() - s.lost_at) / 1000 : 0;
}

function Link({ link, now, lost_s }) {
  const words = { connecting: "connecting", live: "live", lost: `no answer for ${lasting(1000 * lost_s)}, retrying`, locked: "a token is needed", outdated: "load this page again" };
  return html`<span class=${`link-state ${link}`}><span class="dot" aria-hidden="true"></span>${words[link]}${link === "live" ? html` <time>${clock(now)} UTC</time>` : ""}</span>`;
}

function Header({ s, lost_s }) {
  const c = s.controller;
  const live = s.source === "live";
  return html`<header class="top">
    <h1><img src="/console/mark.svg" alt="" width="24" height="24" /> Shoal <span class="quiet">${live ? c.id : s.recording?.title}</span></h1>
    ${live ? html`<${Link} link=${s.link} now=${s.now_ms} lost_s=${lost_s} />` : html`<span class="link-state live">recording</span>`}
    <span class="grow"></span>
    ${live && html`<span class="actions">
      <button class="small" disabled=${!s.can_write} onClick=${() => ask({ command: c.held?.["*/pause"] ? "resume" : "pause", model: "*" })}>${c.held?.["*/pause"] ? "Resume all" : "Pause all"}</button>
      <button class="small" disabled=${!s.can_write} onClick=${() => ask({ command: c.held?.["*/frozen"] ? "unfreeze" : "freeze", model: "*" })}>${c.held?.["*/frozen"] ? "Unfreeze all" : "Freeze all"}</button></span>`}
    <${Theme} />
  </header>`;
}

const MOST_BROKEN = 3;

function Alerts({ s }) {
  const c = s.controller;
  const lines = [];
  if (s.link === "lost") lines.push(["bad", `The controller does not answer. This page keeps its last known state, of ${moment(s.now_ms)} UTC, and retries the connection.`]);
  if (s.link === "outdated") lines.push(["bad", "The controller has another version. Load this page again."]);
  if (s.loaded && s.source === "live") {
    if (c.unhealthy) lines.push(["bad", `The controller is not well: ${c.unhealthy}.`]);
    if (c.log_fault) lines.push(["warn", `The decision log cannot be written: ${c.log_fault}.`]);
    for (const [model, why] of Object.entries(c.declined ?? {})) lines.push(["warn", `${model}: the last declaration cannot be used, so the previous one stays in force: ${why}.`]);
    const leader = c.leader && c.leader !== c.id ? `${c.leader} leads and has the figures` : "no controller leads";
    if (s.led_until) lines.push(["bad", `This controller stopped leading; ${leader}. This page keeps its last known state, of ${moment(s.led_until)} UTC.`]);
    else if (!c.leads) lines.push(["warn", `This controller stands by; ${leader}.`]);
    for (const [key, why] of Object.entries(c.held ?? {})) {
      const scope = key.slice(0, key.lastIndexOf("/"));
      lines.push(["hold", `${scope === "*" ? "All models" : scope}: ${why}`]);
    }
    const broken = Object.entries(s.models).filter(([, row]) => row.level === "broken");
    if (broken.length > MOST_BROKEN) lines.unshift(["bad", `${broken.length} models break their promise; they are first in the table.`]);
    else lines.unshift(...broken.map(([name, row]) => ["bad", `${name}: ${row.word}. Remedy: ${row.remedy}.`]));
  }
  return html`<div class="alerts" role="alert">${lines.slice(0, 6).map(([tone, text]) => html`<p class=${`alert ${tone}`} key=${text}><span aria-hidden="true">${tone === "hold" ? "‖" : "!"}</span> ${text}</p>`)}${lines.length > 6 ? html`<p class="alert hold">and ${lines.length - 6} more</p>` : null}</div>`;
}

function Figures({ s }) {
  const facts = useMemo(() => totals(s), [s.models, s.nodes, s.pools]);
  const cells = [
    ["Cost now", usd(s.controller.usd), `USD/h, ${monthly(s.controller.usd)} a month`],
    ["Demand", figure(facts.demand), "req/s"],
    ["SLO met", percent(s.controller.attained), facts.missed ? `${several(facts.missed, "model")} below promise` : !known(s.controller.attained) ? "no requests yet" : "every model keeps its promise"],
    ["Nodes", String(facts.nodes), `${several(facts.gpus, "GPU")}, ${several(facts.spot, "spot node")}`],
    ["Changing", String(facts.moving), facts.lost ? `! ${facts.lost} lost` : "nodes start or drain"],
    ...(s.source === "live" ? [["Plan's gap", percent(s.controller.gap), s.controller.planned_at ? `planned ${lasting(s.now_ms - s.controller.planned_at)} ago` : "no full plan yet"]] : [["Time", clock(s.now_ms), "UTC"]]),
  ];
  return html`<dl class="figures">${cells.map(([name, value, note]) => html`<div key=${name}><dt>${name}</dt><dd>${value}<small>${note}</small></dd></div>`)}</dl>`;
}

function totals({ models, nodes, pools }) {
  const found = { demand: null, missed: 0, nodes: 0, gpus: 0, spot: 0, moving: 0, lost: 0 };
  for (const row of Object.values(models)) {
    if (row.demand !== null) found.demand = (found.demand ?? 0) + row.demand;
    if (row.level === "broken") found.missed += 1;
  }
  for (const node of Object.values(nodes)) {
    if (node.state === "lost") found.lost += 1;
    if (node.state === "idle" || node.state === "lost") continue;
    const pool = pools[node.pool];
    found.nodes += 1;
    found.gpus += node.instances.length ? node.instances.reduce((sum, one) => sum + one[3].length, 0) : pool?.per_node ?? 0;
    if (pool?.market === "spot") found.spot += 1;
    if (!["serving", "silent", "asleep"].includes(node.state)) found.moving += 1;
  }
  return found;
}

const LAYOUTS = [
  ["(min-width: 2200px)", [["models", "detail"], ["proposals", "decisions"], ["fleet", "cost", "supply", "health"]]],
  ["(min-width: 1081px)", [["models", "detail", "fleet"], ["proposals", "decisions", "cost", "supply", "health"]]],
  ["all", [["proposals", "models", "detail", "decisions", "fleet", "cost", "supply", "health"]]],
];
const fitting = () => LAYOUTS.find(([query]) => matchMedia(query).matches)[1];

/** The sections of each column. The order of the document is the order on the screen. */
function useLayout() {
  const [now, set] = useState(fitting);
  useEffect(() => {
    const change = () => set(fitting());
    addEventListener("resize", change);
    return () => removeEventListener("resize", change);
  }, []);
  return now;
}

function Locked() {
  const submit = (event) => {
    event.preventDefault();
    keepReadToken(new FormData(event.target).get("token"));
    tryAgain();
  };
  return html`<main class="locked"><form class="card" onSubmit=${submit}><h1>Shoal console</h1>
    <p>Reads need the controller's token (SHOAL_READ_TOKEN).</p>
    <label>Token<input name="token" type="password" required autocomplete="current-password" /></label>
    <div class="actions"><button class="primary">Open</button></div></form></main>`;
}

/** Moves the focus without a change of the address, which names the selection. */
function skip(event) {
  event.preventDefault();
  document.querySelector("#decisions input").focus();
}

function App() {
  const s = useStore();
  const layout = useLayout();
  const lost_s = useLostSeconds(s);
  const isStale = s.led_until > 0 || lost_s >= STALE_S;
  useEffect(() => {
    document.title = s.link === "lost" ? "! Shoal console" : "Shoal console";
  }, [s.link]);
  if (s.link === "locked") return html`<${Locked} />`;
  if (!s.loaded) return html`<main><p class="boot">${s.link === "lost" ? "The controller does not answer. Retrying." : "Loading the console"}</p></main>`;
  const { own, other } = runOf(s);
  const model = Object.hasOwn(s.models, s.model) ? s.model : "";
  const shared = { decisions: s.decisions, selected: s.decision, at: s.recording?.at, range: s.range, whole: s.recording?.span, source: s.source };
  const parts = {
    proposals: html`<${Proposals} key="proposals" proposals=${s.proposals} now=${s.now_ms} canWrite=${s.can_write} />`,
    models: html`<${Models} key="models" models=${s.models} curves=${s.curves} model=${model} />`,
    detail: html`<${ModelDetail} key="detail" ...${shared} name=${model} row=${model && s.models[model]} columns=${own(model)} other=${other(model)} windows=${s.controller.windows_s} canWrite=${s.can_write} />`,
    decisions: html`<${Decisions} key="decisions" decisions=${s.decisions} selected=${s.decision} model=${model} range=${s.range} source=${s.source} />`,
    fleet: html`<${Fleet} key="fleet" pools=${s.pools} nodes=${s.nodes} model=${model} now=${Math.floor(s.now_ms / 30000) * 30000} />`,
    cost: html`<${Cost} key="cost" ...${shared} columns=${own("*")} other=${other("*")} otherwise=${s.otherwise} bill=${s.controller.usd} now=${Math.floor(s.now_ms / 10000) * 10000} />`,
    supply: s.source !== "live" ? null : html`<${Supply} key="supply" pools=${s.pools} now=${Math.floor(s.now_ms / 10000) * 10000} />`,
    health: s.source === "live" ? html`<${Health} key="health" controller=${s.controller} now=${s.now_ms} link=${s.link} />` : null,
  };
  return html`<a class="skip" href="#decisions" onClick=${skip}>Skip to the time line</a>
  <${Header} s=${s} lost_s=${lost_s} />
  <main class=${isStale ? "stale" : ""}>
    <${Alerts} s=${s} />
    ${s.recording && html`<${Player} recording=${s.recording} /><${Runs} recording=${s.recording} />`}
    <${Figures} s=${s} />
    <${RangeChoice} range=${s.range} isRecording=${s.recording !== null} />
    <div class=${`columns ${["one", "two", "three"][layout.length - 1]}`}>
      ${layout.map((names) => html`<div class="column" key=${names[0]}>${names.map((name) => parts[name])}</div>`)}
    </div>
  </main>
  <${News} news=${s.news} />
  ${s.source === "live" && html`<${CommandDialog} asksToken=${s.asks_token !== false} />`}`;
}

takeTokenFromAddress();
addEventListener("hashchange", takeTokenFromAddress);
followAddress();
const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
follow().then((found) => found && startRecording(found));
globalThis.shoalState = () => ({ ...state });
