// The time line of decisions and events: a list with filters and search. A decision says why, what changed and what
// it costs.
import { html, memo, steady, useMemo, useState, useEffect, useRef, classes } from "./lib.js";
import { DASH, changeText, clock, kindOf, known, lasting, moment, percent, rate, signed, signedUsd, usd } from "./format.js";
import { DecisionAlternatives } from "./alternatives.js";
import { saveTable } from "./export.js";
import { fixedSpan } from "./range.js";
import { isEvent, keyOf, selectDecision } from "./store.js";

const PAGE = matchMedia("(max-width: 640px)").matches ? 12 : 60;
const FILTERS = [
  ["changes", "Changes", ["scale_out", "scale_in", "replan", "replace"]],
  ["problems", "Problems", ["infeasible", "broken", "at_risk", "recovered", "lost", "alert"]],
  ["people", "People", ["command", "note"]],
  ["notes", "Notes", ["hold", "rebuilt"]],
];

function textOf(one) {
  return `#${one.n} ${one.model} ${kindOf(one.kind)[1]} ${one.reason} ${one.codes.join(" ")} ${changeText(one.change)}`.toLowerCase();
}

/** The listed rows as rows of a file. */
const tableOf = (list) => [
  ["time_utc", "number", "model", "kind", "applied", "change", "usd_per_h", "reason", "codes"],
  ...list.map((one) => [new Date(one.at).toISOString(), isEvent(one) ? "" : one.n, one.model, one.kind, isEvent(one) ? "" : one.applied ? "yes" : "no", changeText(one.change), one.usd, one.reason, one.codes.join(" ")]),
];

export function Decisions({ decisions, selected, model, range, source }) {
  const [search, setSearch] = useState("");
  const [kinds, setKinds] = useState(() => new Set(["changes", "problems", "people"]));
  const [onlyModel, setOnlyModel] = useState(false);
  const [most, setMost] = useState(PAGE);
  const texts = useRef(new WeakMap());
  const list = useMemo(() => {
    const allowed = new Set(FILTERS.filter(([id]) => kinds.has(id)).flatMap(([, , own]) => own));
    const span = fixedSpan(range);
    const words = search.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (let i = decisions.length - 1; i >= 0; i -= 1) {
      const one = decisions[i];
      if (keyOf(one) !== selected) {
        if (!allowed.has(one.kind)) continue;
        if (onlyModel && one.model !== model && one.model !== "*") continue;
        if (span && (one.at < span[0] || one.at > span[1])) continue;
      }
      if (words.length) {
        let text = texts.current.get(one);
        if (text === undefined) texts.current.set(one, (text = textOf(one)));
        if (!words.every((word) => text.includes(word))) continue;
      }
      found.push(one);
    }
    return found;
  }, [decisions, kinds, search, onlyModel, model, range, selected]);
  const at = list.findIndex((one) => keyOf(one) === selected);
  const shown = list.slice(0, Math.max(most, at + 1));
  const toggle = (id) => setKinds((now) => {
    const next = new Set(now);
    if (!next.delete(id)) next.add(id);
    return next;
  });
  return html`<section class="card decisions" aria-labelledby="decisions-h" id="decisions">
    <header class="card-head"><h2 id="decisions-h">Time line <span class="count">${list.length}</span></h2>
      <button class="small" disabled=${!list.length} onClick=${() => saveTable("timeline", tableOf(list))}>CSV</button>
      <input type="search" aria-label="Search decisions" placeholder="Search reason, model, code, #" value=${search}
        onInput=${(event) => { setSearch(event.target.value); setMost(PAGE); }} /></header>
    <div class="filters" role="group" aria-label="Show">
      ${FILTERS.map(([id, label]) => html`<button class="toggle" key=${id} aria-pressed=${kinds.has(id)} onClick=${() => toggle(id)}>${label}</button>`)}
      <button class="toggle" aria-pressed=${onlyModel} onClick=${() => setOnlyModel(!onlyModel)}>Only ${model || DASH}</button>
    </div>
    ${list.length
      ? html`<ol class="list">${shown.map((one) => html`<${Item} key=${keyOf(one)} one=${one} open=${keyOf(one) === selected} source=${source} />`)}</ol>`
      : html`<p class="empty">${decisions.length ? "Nothing matches the filter." : "Nothing was decided yet."}</p>`}
    ${shown.length < list.length && html`<button class="more" onClick=${() => setMost(most + 5 * PAGE)}>Show more of ${list.length}</button>`}
  </section>`;
}

const Item = steady(ItemView);

function ItemView({ one, open, source }) {
  const [sign, word, tone] = kindOf(one.kind);
  const row = useRef(null);
  useEffect(() => {
    if (open) row.current?.scrollIntoView({ block: "nearest" });
  }, [open]);
  const how = one.kind === "infeasible" || one.kind === "hold" || one.kind === "rebuilt" || isEvent(one) ? ""
    : one.applied ? "applied" : one.expires ? "proposed" : "recommended";
  return html`<li class=${classes("item", open && "open")} ref=${row}>
    <button class="item-head" aria-expanded=${open} onClick=${() => selectDecision(one)}>
      <span class=${`sign ${tone}`} aria-hidden="true">${sign}</span>
      <span class="item-main"><span class="item-top"><b>${one.model === "*" ? "All models" : one.model}</b>
        <span class="item-change">${one.change.length ? changeText(one.change) : word}</span></span>
        <span class="reason">${one.reason}</span>
        ${one.prices?.length ? html`<span class="prices">${one.prices.map((price) => `${price.pool} at ${usd(price.usd)} USD/h, declared ${usd(price.declared)}`).join("; ")}</span>` : null}</span>
      <span class="item-side"><time datetime=${new Date(one.at).toISOString()}>${clock(one.at)}</time>
        <span class="item-usd">${one.change.length ? `${signedUsd(one.usd)} USD/h` : ""}</span>
        ${how && how !== "applied" && html`<span class="how">${how}</span>`}</span>
    </button>
    ${open && html`<${Detail} one=${one} word=${word} how=${how} source=${source} />`}
  </li>`;
}

function Detail({ one, word, how, source }) {
  const after = one.before && new Map(one.before);
  if (after) for (const [label, count] of one.change) after.set(label, (after.get(label) ?? 0) + count);
  const labels = after ? [...after.keys()] : [];
  const before = new Map(one.before ?? []);
  return html`<dl class="facts item-facts">
    <div><dt>${isEvent(one) ? "Event" : "Decision"}</dt><dd>${isEvent(one) ? "" : `#${one.n}, `}${word.toLowerCase()}${how ? `, ${how}` : ""}, ${moment(one.at)} UTC${one.expires ? `, open until ${clock(one.expires)}` : ""}</dd></div>
    ${known(one.measured) && html`<div><dt>Demand</dt><dd>${rate(one.measured)} req/s in the last minutes${one.over ? `; above what the instances can serve for ${lasting(one.at - one.over)}` : ""}</dd></div>`}
    ${one.demand > 0 || one.capacity > 0 ? html`<div><dt>Target</dt><dd>planned for ${rate(one.demand)} req/s; capacity before ${rate(one.capacity)} req/s${one.capacity > 0 ? ` (${percent(one.demand / one.capacity, 0)})` : ""}</dd></div>` : null}
    ${labels.length > 0 && html`<div><dt>Before, after</dt><dd><table class="plain"><tbody>${labels.map((label) => html`<tr key=${label}>
      <td>${label}</td><td class="num">${before.get(label) ?? 0}</td><td class="num" aria-label="becomes">→</td><td class="num">${after.get(label)}</td></tr>`)}</tbody></table></dd></div>`}
    ${!labels.length && one.change.length > 0 ? html`<div><dt>Change</dt><dd>${one.change.map(([label, count]) => html`<span class="chip">${signed(count)} ${label}</span>`)}</dd></div>` : null}
    ${one.change.length > 0 && html`<div><dt>Cost</dt><dd>${signedUsd(one.usd)} USD/h at the prices of that time${fleetCost(one)}</dd></div>`}
    ${one.gap !== null && one.gap !== undefined ? html`<div><dt>Plan's gap</dt><dd>at most ${percent(one.gap)} above the cheapest plan</dd></div>` : null}
    ${source === "live" && one.planned_at > 0 && html`<${DecisionAlternatives} one=${one} key=${keyOf(one)} />`}
    ${one.codes.length > 0 && html`<div><dt>Codes</dt><dd>${one.codes.map((code) => html`<code>${code}</code> `)}</dd></div>`}
    ${one.trace && html`<div><dt>Trace</dt><dd><code>${one.trace.split("-")[1]}</code></dd></div>`}
  </dl>`;
}

/** The cost of the whole fleet; nodes that are being left stay on the bill for a while. */
function fleetCost({ plan_usd: billed, kept_usd: kept }) {
  if (!known(billed)) return "";
  if (!known(kept) || billed - kept < 0.005) return `; the whole fleet then ${usd(billed)} USD/h`;
  return `; the whole fleet then ${usd(kept)} USD/h, and ${usd(billed)} USD/h until emptied nodes are returned`;
}

/** The last decisions as text for a screen reader, without a stream of words. */
export const News = memo(({ news }) => html`<p class="unseen" role="status" aria-live="polite">${news}</p>`);
