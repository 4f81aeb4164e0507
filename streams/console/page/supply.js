// Cost over time, prices and availability of pools, and the health of the controller.
import { html, memo, useEffect, useMemo } from "./lib.js";
import { Chart } from "./charts.js";
import { DASH, clock, figure, lasting, percent, shortGpu, signedPercent, signedUsd, usd } from "./format.js";
import { Save } from "./export.js";
import { UnitCosts, sumsOf } from "./bill.js";
import { fixedSpan, spanOf } from "./range.js";
import { loadHistory } from "./transport.js";

const NONE = { t: [], usd: [] };

/** Names and dashes of the other fleets: a curve differs by more than its colour. */
const FLEETS = {
  peak: ["sized for the peak", "--limit", [10, 4]],
  type: ["one GPU type", "--demand", [5, 4]],
  "rented type": ["one rented GPU type", "--demand", [5, 4]],
  alone: ["each model alone", "--target", [2, 3]],
  together: ["all models together", "--planned", [8, 3, 2, 3]],
};
const nameOf = (fleet) => `${FLEETS[fleet.kind][0]}${fleet.gpu ? ` (${shortGpu(fleet.gpu)})` : ""}`;

export function Cost({ columns, other, otherwise, decisions, selected, at, range, whole, source, bill, now }) {
  useEffect(() => {
    loadHistory("*").catch(() => {});
  }, [!!columns]);
  const own = columns ?? NONE;
  const changes = useMemo(() => decisions.filter((one) => one.change.length), [decisions]);
  const span = spanOf(range, own.t, whole);
  const beside = useMemo(() => (other ? resampled(own.t, other) : null), [own.t, other?.t, other?.name]);
  const fleets = useMemo(() => (otherwise?.fleets ?? []).map((fleet) => {
    const [, color, dash] = FLEETS[fleet.kind];
    return { name: nameOf(fleet), values: stepped(own.t, otherwise, fleet.usd_per_h), color, dash, late: true };
  }), [own.t, otherwise]);
  const series = [{ name: "this fleet", values: own.usd, color: "--cost", fill: true }, ...fleets];
  if (other) series.push({ name: other.name, values: beside, color: "--other", dash: true });
  return html`<section class="card" aria-labelledby="cost-h">
    <header class="card-head"><h2 id="cost-h">Cost</h2>
      <span class="actions"><${Save} name="fleet" columns=${own} span=${span} /></span></header>
    <${Chart} title="Nodes on the bill" unit="USD/h" x=${own.t} series=${series} show=${usd} tick=${figure} decisions=${changes} selected=${selected} at=${at} range=${range} whole=${whole} />
    <${UnitCosts} name="This fleet" columns=${own} now=${bill} span=${span} total=${fixedSpan(range) ? null : columns?.total} />
    ${other && html`<dl class="sums"><div><dt>${other.name}</dt><dd>${usd((fixedSpan(range) ? null : other.total) ?? sumsOf(other, span).usd)} <small>USD</small></dd></div></dl>`}
    ${source === "live" && html`<${OtherFleets} otherwise=${otherwise} now=${now} />`}
  </section>`;
}

/** What the same demand would have cost otherwise, over the windows that were compared. */
function OtherFleets({ otherwise, now }) {
  if (!otherwise) return html`<p class="note quiet">The comparison with other fleets follows about five minutes after the start, while a page is open.</p>`;
  const { from, to, hours, fleets } = otherwise;
  const against = (fleet) => (otherwise.usd > 0 ? ` (${signedPercent(fleet.usd / otherwise.usd - 1)})` : "");
  return html`<div class="otherwise">
    <table class="plain"><caption>The same demand on other fleets, ${clock(from[0])} to ${clock(to.at(-1))} (${lasting(hours * 3.6e6)} compared)</caption>
      <thead><tr><th scope="col">Fleet</th><th scope="col" class="num">USD</th><th scope="col" class="num">Against this fleet</th><th scope="col" class="num">Demand served</th></tr></thead>
      <tbody><tr class="chosen"><th scope="row">this fleet</th><td class="num">${usd(otherwise.usd)}</td><td class="num">${DASH}</td><td class="num">${DASH}</td></tr>
      ${fleets.map((fleet) => html`<tr key=${fleet.kind}><th scope="row">${nameOf(fleet)}</th><td class="num">${usd(fleet.usd)}</td>
        <td class="num">${signedUsd(fleet.usd - otherwise.usd)}${against(fleet)}</td>
        <td class="num">${fleet.served < 0.995 ? "! " : ""}${percent(fleet.served, 0)}</td></tr>`)}</tbody></table>
    <p class="quiet">The other fleets know the demand in advance and their nodes start at once, so they cost less than they would in practice. They are planned for the busiest minute of each five minutes. Computed ${lasting(now - otherwise.at)} ago.</p>
  </div>`;
}

/** The value of the window that holds each time; null outside of every window. */
function stepped(t, { from, to }, values) {
  let at = 0;
  return t.map((ms) => {
    while (at < from.length && to[at] <= ms) at += 1;
    return at < from.length && from[at] <= ms ? values[at] : null;
  });
}

function resampled(t, other) {
  let at = 0;
  return t.map((ms) => {
    while (at + 1 < other.t.length && other.t[at + 1] <= ms) at += 1;
    return other.t.length && other.t[at] <= ms + 1 ? other.usd[at] : null;
  });
}

export const Supply = memo(({ pools, now }) => {
  const rows = Object.entries(pools).filter(([, pool]) => pool.market !== "owned");
  if (!rows.length) return null;
  return html`<section class="card" aria-labelledby="supply-h">
    <header class="card-head"><h2 id="supply-h">Prices and availability</h2></header>
    <div class="scroll" tabindex="0" role="region" aria-label="Table of prices"><table>
      <thead><tr><th scope="col">Pool</th><th scope="col" class="num">USD/h</th><th scope="col" class="num">Declared</th>
        <th scope="col" class="num">Can be had</th><th scope="col">Feed</th></tr></thead>
      <tbody>${rows.map(([id, pool]) => html`<tr key=${id}>
        <th scope="row">${pool.region}/${pool.name} <span class=${`market ${pool.market}`}>${pool.market}</span></th>
        <td class="num">${usd(pool.price)}${moved(pool)}</td><td class="num quiet">${usd(pool.declared)}</td>
        <td class="num">${pool.offer === null ? DASH : pool.offer}</td>
        <td>${feed(pool, now)}</td></tr>`)}</tbody></table></div>
  </section>`;
});

function moved(pool) {
  if (!pool.declared || Math.abs(pool.price / pool.declared - 1) < 0.01) return "";
  return html`<small>${pool.price > pool.declared ? "▲" : "▼"} ${percent(Math.abs(pool.price / pool.declared - 1), 0)}</small>`;
}

function feed(pool, now) {
  const parts = [];
  if (pool.price_at) parts.push(`price ${lasting(now - pool.price_at)} old`);
  if (pool.offer_at) parts.push(`nodes ${lasting(now - pool.offer_at)} old`);
  const stale = pool.price_stale || pool.offer_stale;
  const words = parts.join(", ") || "as declared";
  const aside = pool.aside === null ? "" : `; ${usd(pool.aside)} set aside as implausible`;
  return html`<span class=${stale ? "warn-text" : "quiet"}>${stale ? "! stale: " : ""}${words}${aside}</span>`;
}

export function Health({ controller, now, link }) {
  const late = Object.entries(controller.lag_ms ?? {});
  const facts = [
    ["Controller", `${controller.id}, ${controller.leads ? `leads with token ${controller.token}` : controller.leader && controller.leader !== controller.id ? `stands by; ${controller.leader} leads` : "no controller leads"}`],
    ["Decided", controller.leads ? `${lasting(controller.tick_age_s * 1000)} ago` : DASH],
    ["Last full plan", controller.planned_at ? `${clock(controller.planned_at)}${controller.gap !== null ? `, at most ${percent(controller.gap)} above the cheapest` : ""}${controller.planning ? "; planning" : ""}` : "none yet"],
    ["Reading", late.length ? late.map(([topic, ms]) => `! ${topic} ${lasting(ms)} late`).join(", ") : "in time"],
    ["Records", `${controller.signed ? "signed" : "! not signed"}${controller.refused ? `; ! ${controller.refused} refused` : ""}; ${controller.writes} written`],
    ["Budget", controller.budget ? `${usd(controller.budget)} USD/h` : "no limit"],
    ["This page", link === "live" ? `connected, ${clock(now)} UTC` : "not connected"],
  ];
  return html`<section class="card" aria-labelledby="health-h">
    <header class="card-head"><h2 id="health-h">Health</h2></header>
    <dl class="facts">${facts.map(([name, text]) => html`<div key=${name}><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>
    ${(controller.open ?? []).map((one) => html`<p class="warn-text note" key=${one.code}>! ${one.said}; to close it, ${one.mend}</p>`)}
  </section>`;
}

