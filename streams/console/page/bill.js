// Cost of a span of time: the bill, and what a month, a request and a million tokens cost at its rate.
import { html } from "./lib.js";
import { DASH, clock, figure, known, usd } from "./format.js";

const GAP_MS = 600000;
const HOURS_OF_MONTH = 730;

/** The integral over hours of a series per hour, within `span` if there is one. A gap without samples counts for
 * nothing. */
export function spent(t, values, span = null) {
  const [from, to] = span ?? [-Infinity, Infinity];
  let total = 0;
  for (let i = 1; i < t.length; i += 1) {
    const ms = Math.min(t[i], to) - Math.max(t[i - 1], from);
    if (ms > 0 && t[i] - t[i - 1] < GAP_MS && known(values[i - 1])) total += (values[i - 1] * ms) / 3.6e6;
  }
  return total;
}

/** The USD of one unit: of the samples in which both the bill and the units are known. */
function unitCost({ t, usd: bill }, perSecond, span) {
  if (!perSecond) return null;
  const both = bill.map((value, i) => (known(perSecond[i]) ? value : null));
  const units = 3600 * spent(t, perSecond.map((value, i) => (known(bill[i]) ? value : null)), span);
  return units > 0 ? spent(t, both, span) / units : null;
}

/** The USD of a month at a bill in USD/h, as text. */
export const monthly = (now) => (known(now) ? Math.round(now * HOURS_OF_MONTH).toLocaleString("en") : DASH);

/** Sums over the span that the charts show. now: the present bill in USD/h. total: USD of the span, if another place
 * shows it too. */
export function UnitCosts({ name, columns, now, span, total }) {
  if (!span || !columns.usd.some(known)) return null;
  const request = unitCost(columns, columns.demand, span);
  const token = unitCost(columns, columns.tokens, span);
  const cells = [
    [`${name}, ${clock(span[0])} to ${clock(span[1])}`, usd(total ?? spent(columns.t, columns.usd, span)), "USD"],
    ["Now", usd(now), "USD/h"],
    ["A month at this rate", monthly(now), "USD"],
    ["1,000 requests", known(request) ? figure(1000 * request) : DASH, "USD"],
    ["A million tokens", known(token) ? figure(1e6 * token) : DASH, "USD"],
  ];
  return html`<dl class="sums">${cells.map(([label, value, unit]) => html`<div key=${label}><dt>${label}</dt><dd>${value} <small>${unit}</small></dd></div>`)}</dl>`;
}
