// Cost of a span of time: the bill, and what a month, a request and a million tokens cost at its rate.
import { html } from "./lib.js";
import { DASH, clock, figure, known, percent, usd } from "./format.js";

const GAP_MS = 600000;
const HOURS_OF_MONTH = 730;

/** How much a total grew within `span`, or over all samples. A total that fell was started again at 0. */
export function grown(t, totals, span = null) {
  const [from, to] = span ?? [-Infinity, Infinity];
  let sum = 0;
  let last = null;
  for (let i = 0; i < t.length; i += 1) {
    if (!known(totals[i])) continue;
    if (last !== null && t[i] > from && t[i] <= to) sum += totals[i] >= last ? totals[i] - last : totals[i];
    last = totals[i];
  }
  return sum;
}

/** The integral over hours of a series per hour, within `span` if there is one. A gap without samples counts for
 * nothing. */
function spent(t, values, span = null) {
  const [from, to] = span ?? [-Infinity, Infinity];
  let total = 0;
  for (let i = 1; i < t.length; i += 1) {
    const ms = Math.min(t[i], to) - Math.max(t[i - 1], from);
    if (ms > 0 && t[i] - t[i - 1] < GAP_MS && known(values[i - 1])) total += (values[i - 1] * ms) / 3.6e6;
  }
  return total;
}

/** Cost in USD, and ended requests within `span`. The GPUs of a model have no bill of their own: their cost is the
 * sum of their prices over time. */
export function sumsOf({ t, spent: bill, usd: perHour, tokens, ended, met }, span) {
  const requests = ended ? grown(t, ended, span) : 0;
  return {
    usd: bill ? grown(t, bill, span) : spent(t, perHour, span),
    requests,
    met: requests > 0 ? grown(t, met, span) / requests : null,
    tokens: tokens ? 3600 * spent(t, tokens, span) : 0,
  };
}

/** The USD of a month at a bill in USD/h, as text. */
export const monthly = (now) => (known(now) ? Math.round(now * HOURS_OF_MONTH).toLocaleString("en") : DASH);

/** Sums over the span that the charts show. now: the present bill in USD/h. total: USD of the span, if another place
 * shows it too. */
export function UnitCosts({ name, columns, now, span, total }) {
  if (!span || !columns.usd.some(known)) return null;
  const sums = sumsOf(columns, span);
  const cost = total ?? sums.usd;
  const each = (units, count) => (count > 0 ? figure((units * cost) / count) : DASH);
  const cells = [
    [`${name}, ${clock(span[0])} to ${clock(span[1])}`, usd(cost), "USD"],
    ["SLO met", percent(sums.met), known(sums.met) ? `of ${Math.round(sums.requests).toLocaleString("en")} requests` : ""],
    ["Now", usd(now), "USD/h"],
    ["A month at this rate", monthly(now), "USD"],
    ["1,000 requests", each(1000, sums.requests), "USD"],
    ["A million tokens", each(1e6, sums.tokens), "USD"],
  ];
  return html`<dl class="sums">${cells.map(([label, value, unit]) => html`<div key=${label}><dt>${label}</dt><dd>${value} <small>${unit}</small></dd></div>`)}</dl>`;
}
