// The rollout of one model: version, wave, and the comparison of its canary.
import { html } from "./lib.js";
import { lasting, latency, percent, rate } from "./format.js";
import { ask } from "./operator.js";

const PROPERTIES = {
  errors: ["Failed requests", (value) => percent(value, 2)],
  ttft: ["TTFT", latency],
  tpot: ["TPOT", latency],
  longer: ["Tokens, if longer", rate],
  shorter: ["Tokens, if shorter", rate],
};
const TONES = { worse: ["✕", "bad"], fit: ["✓", "ok"], open: ["…", "hold"] };

/** A fact for the list of facts; row.rollout: see `rollout_row`. */
export function Rollout({ rollout }) {
  const { state, engine, former, done, total, waves, since_s, why, canary } = rollout;
  const over = state === "taken back";
  return html`<div class="rollout"><dt>Rollout</dt><dd>
    <p><span class=${`tag ${over || state === "returning" ? "warn" : "busy"}`}>${state}</span>
      ${" "}${over ? `${former} was taken back ${lasting(1000 * since_s)} ago` : `${former} → ${engine}, wave ${waves}, begun ${lasting(1000 * since_s)} ago`};
      ${" "}${done} of ${total} run ${engine}</p>
    ${why && html`<p class="warn-text">${why}</p>`}
    ${canary && html`<${Canary} canary=${canary} />`}
  </dd></div>`;
}

function Canary({ canary }) {
  return html`<div class="scroll"><table>
    <caption>Canary after ${canary.answers} answers, ${canary.former_answers} of the former version; continues in ${lasting(1000 * canary.remaining_s)} at most</caption>
    <thead><tr><th scope="col">Property</th><th scope="col" class="num">New</th><th scope="col" class="num">Former</th>
      <th scope="col" class="num">Worse in</th><th scope="col" class="num">Fit in</th><th scope="col">Verdict</th></tr></thead>
    <tbody>${canary.properties.map((one) => {
      const [name, show] = PROPERTIES[one.property] ?? [one.property, rate];
      const [sign, tone] = TONES[one.verdict] ?? TONES.open;
      return html`<tr key=${one.property}><th scope="row">${name}</th>
        <td class="num">${show(one.new)}</td><td class="num">${show(one.former)}</td>
        <td class="num">${one.worse} of ${one.worse_of}</td><td class="num">${one.fit} of ${one.fit_of}</td>
        <td><span class=${`tag ${tone}`}><span aria-hidden="true">${sign}</span> ${one.verdict}</span></td></tr>`;
    })}</tbody>
  </table></div>`;
}

/** Commands about the rollout of a model. */
export function RolloutControls({ name, rollout, canWrite }) {
  const again = ["paused", "taken back", "returning"].includes(rollout.state);
  const button = (command, word) => html`<button class="small" disabled=${!canWrite}
    onClick=${() => ask({ command, model: name })}>${word}</button>`;
  return html`${again ? button("rollout-resume", "Resume rollout") : button("rollout-pause", "Pause rollout")}
    ${!again && button("rollout-back", "Take back")}`;
}
