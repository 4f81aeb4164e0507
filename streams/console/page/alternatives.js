// Alternatives of a plan with their costs, computed by the controller on request.
import { html, useEffect, useState } from "./lib.js";
import { DASH, clock, percent, rate, signedUsd } from "./format.js";
import { readJson } from "./transport.js";
import { keyOf } from "./store.js";

const AGAIN_MS = 2000;
const MOST_TRIES = 12;
const MOST_KEPT = 50;
const kept = new Map(); // answers by decision

/** Alternatives of the model's last plan, on request. */
export function Alternatives({ name }) {
  const [found, setFound] = useState(null);
  const load = async () => {
    setFound({ waits: true });
    setFound(await answerOf(`model=${encodeURIComponent(name)}`));
  };
  return html`<div class="alternatives"><dt>Alternatives</dt><dd aria-live="polite">
    ${found ? html`<${Answer} found=${found} />`
      : html`<button class="small" onClick=${load}>Compare the last plan with its alternatives</button>`}
  </dd></div>`;
}

/** Alternatives of the plan that led to a decision. They are requested when the decision opens. */
export function DecisionAlternatives({ one }) {
  const key = keyOf(one);
  const [found, setFound] = useState(kept.get(key) ?? { waits: true });
  useEffect(() => {
    if (kept.has(key)) return undefined;
    let open = true;
    answerOf(`model=${encodeURIComponent(one.model)}&decision=${key}`, () => open).then((answer) => {
      if (answer.reasons) kept.set(key, answer);
      while (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
      if (open) setFound(answer);
    });
    return () => (open = false);
  }, [key]);
  return html`<div class="alternatives"><dt>Not chosen</dt><dd aria-live="polite"><${Answer} found=${found} /></dd></div>`;
}

/** The answer of the controller; asks again while it computes another one. */
async function answerOf(query, isOpen = () => true) {
  try {
    for (let tries = 1; ; tries += 1) {
      const found = await readJson(`/v1/console/reasons?${query}`);
      if (!found.busy || tries === MOST_TRIES || !isOpen()) return found;
      await new Promise((done) => setTimeout(done, AGAIN_MS));
    }
  } catch (error) {
    return { error: String(error.message ?? error) };
  }
}

function Answer({ found }) {
  if (found.waits) return "computing the alternatives";
  if (found.error) return html`<span class="warn-text">${found.error}</span>`;
  const { reasons, sizing } = found;
  return html`<div>
    ${sizing && html`<p>Needed: ${sizingText(sizing)}</p>`}
    ${reasons && html`<p>Plan of ${clock(found.at)}, limited by ${reasons.bound_by.join("; ") || DASH}${reasons.capacity_req_per_s > 0 ? `; load ${percent(reasons.demand_req_per_s / reasons.capacity_req_per_s, 0)}` : ""}${reasons.prefix_hit ? `; ${percent(reasons.prefix_hit, 0)} of prompt tokens cached, ${reasons.prefix_gpus.toFixed(1)} more GPUs without` : ""}${reasons.uncertain ? "; capacity is estimated, not measured on these GPUs" : ""}</p>`}
    ${reasons ? html`<${Table} reasons=${reasons} />` : html`<p>The plan had no alternative.</p>`}
  </div>`;
}

function Table({ reasons }) {
  const rows = [
    ...reasons.rejected.map((one) => [one.what, one.usd_per_h > 0 ? "costs more" : one.why, one.usd_per_h || null]),
    ...reasons.relief.map((one) => [one.what, `a looser limit${one.serves_req_per_s > 0 ? ` serves ${rate(one.serves_req_per_s)} req/s more` : ""}`, -one.saves_usd_per_h]),
    ...reasons.measuring.map((one) => [`measure on ${one.gpu}`, "unmeasured rates are planned with a reserve", -one.saves_usd_per_h]),
  ];
  if (!rows.length) return html`<p>The plan had no alternative.</p>`;
  return html`<table class="plain"><thead><tr><th scope="col">Alternative</th><th scope="col">Why not</th><th scope="col" class="num">USD/h</th></tr></thead>
    <tbody>${rows.map(([what, why, cost]) => html`<tr key=${what}><td>${what}</td><td>${why}</td><td class="num">${cost === null ? DASH : signedUsd(cost)}</td></tr>`)}</tbody></table>`;
}

/** The way from the rate to the needed capacity, as a sum that a person can check. */
function sizingText(one) {
  const parts = one.present_req_per_s === null ? [`${rate(one.target_req_per_s)} req/s target`] : [
    `${rate(one.present_req_per_s)} req/s now`,
    ...(Math.abs(one.headroom_req_per_s) >= 0.005 ? [`${one.headroom_req_per_s > 0 ? "+" : "−"} ${rate(Math.abs(one.headroom_req_per_s))}`] : []),
    `= ${rate(one.target_req_per_s)} target`,
  ];
  const corrected = one.derate < 1 ? "derating" : "learnt capacity";
  const derate = one.derate !== 1 ? ` / ${one.derate.toFixed(2)} ${corrected}` : "";
  return `${parts.join(" ")} / ${percent(one.utilization, 0)} utilization${derate} = ${rate(one.needed_req_per_s)} req/s of capacity${one.cause ? `; target: ${one.cause}` : ""}`;
}
