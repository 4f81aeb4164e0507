// The range of time that all charts show: the last part, which moves on with the data, or a fixed span.
import { html } from "./lib.js";
import { moment } from "./format.js";
import { select, state } from "./store.js";

/** Ranges that end now, by name in the address: [label, ms]. */
const LAST = new Map([["15m", ["15 min", 900e3]], ["1h", ["1 h", 3600e3]], ["2h", ["2 h", 7200e3]], ["6h", ["6 h", 21600e3]], ["all", ["All", Infinity]]]);
const USUAL = "2h";
const LEAST_MS = 10e3;

/** The fixed span [from, to] in ms that `range` names; null if it ends now. */
export function fixedSpan(range) {
  const [from, to] = range.split("/").map(Date.parse);
  return to - from >= LEAST_MS ? [from, to] : null;
}

/** The span that charts of data at the times `t` show. whole: span of a recording. */
export function spanOf(range, t, whole) {
  const fixed = fixedSpan(range);
  if (fixed) return fixed;
  if (whole) return whole;
  if (t.length < 2) return null;
  const [, last] = LAST.get(range) ?? LAST.get(USUAL);
  return [Math.max(t[0], t.at(-1) - last), t.at(-1)];
}

/** Shows the span from `from` to `to` in ms, until the person returns to the present. */
export function showSpan(from, to) {
  if (to - from < LEAST_MS) return;
  const text = (ms) => new Date(Math.round(ms / 1000) * 1000).toISOString().replace(".000", "");
  select({ range: `${text(from)}/${text(to)}` });
}

/** Shows the present again. */
export const showPresent = () => state.range && select({ range: "" });

export function RangeChoice({ range, isRecording }) {
  const fixed = fixedSpan(range);
  const move = (share) => showSpan(fixed[0] + share * (fixed[1] - fixed[0]), fixed[1] + share * (fixed[1] - fixed[0]));
  const choice = LAST.has(range) ? range : USUAL;
  return html`<div class=${fixed ? "range fixed" : "range"} role="group" aria-label="Range of time">
    ${!isRecording && [...LAST].map(([name, [label]]) => html`<button class="toggle" key=${name} aria-pressed=${!fixed && name === choice}
      onClick=${() => select({ range: name === USUAL ? "" : name })}>${label}</button>`)}
    ${fixed && html`<span class="actions"><button class="small" onClick=${() => move(-0.5)}>Earlier</button><button class="small" onClick=${() => move(0.5)}>Later</button>
      <button class="primary small" onClick=${showPresent}>${isRecording ? "Show all" : "Back to live"}</button></span>
      <span>${moment(fixed[0])} to ${moment(fixed[1]).slice(moment(fixed[0]).slice(0, 10) === moment(fixed[1]).slice(0, 10) ? 11 : 0)} UTC</span>`}
    ${!fixed && html`<span class="quiet roomy">Drag over a chart to zoom.</span>`}
  </div>`;
}
