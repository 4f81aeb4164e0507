// Commands of an operator: the reason is asked for each one, the token once per window. The token, or
// the proxy before the controller, tells who gives the command.
import { html, useEffect, useRef, useState } from "./lib.js";
import { clock, lasting } from "./format.js";

const TOKEN = "shoal-operator-token";
const WORDS = {
  pause: ["Pause", "Nothing is changed until it is resumed; everything is still computed.", true],
  resume: ["Resume", "Ends the pause.", false],
  freeze: ["Freeze", "Nothing is removed, moved or exchanged; capacity may still be added.", true],
  unfreeze: ["Unfreeze", "Ends the freeze.", false],
  release: ["Release", "Its instances keep running, and Shoal does not manage them.", true],
  adopt: ["Adopt", "Shoal manages it again as declared.", false],
  "rollout-pause": ["Pause rollout", "No further wave begins; a wave in progress ends.", true],
  "rollout-resume": ["Resume rollout", "The rollout continues; a version that was taken back is tried again.", false],
  "rollout-back": ["Take back", "The former version returns.", true],
  approve: ["Approve", "The change is carried out from the next tick on.", false],
  reject: ["Reject", "The change is dropped, and not proposed again before it would have expired.", true],
};

const listeners = new Set();

/** Opens the dialog of a command: {command, model} or {command, proposal, token, text}. A command that is
 * sent twice has the same id. */
export function ask(asked) {
  const found = { ...asked, id: newId() };
  for (const listener of listeners) listener(found);
}

function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (one) => one.toString(16).padStart(2, "0")).join("");
}

/** A token in the address is kept for this window and removed from the address. */
export function takeTokenFromAddress() {
  const found = /[#&]operator=([^&]+)/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem(TOKEN, decodeURIComponent(found[1]));
  const rest = location.hash.replace(found[0], "").replace(/^#?&?/, "#");
  history.replaceState(null, "", location.pathname + location.search + (rest === "#" ? "" : rest));
}

export function CommandDialog({ asksToken }) {
  const dialog = useRef(null);
  const first = useRef(null);
  const [asked, setAsked] = useState(null);
  const [answer, setAnswer] = useState(null);
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  useEffect(() => {
    const listener = (next) => {
      setAnswer(null);
      setAsked(next);
    };
    listeners.add(listener);
    return () => listeners.delete(listener);
  }, []);
  useEffect(() => {
    if (!asked || dialog.current.open) return;
    dialog.current.showModal();
    first.current?.focus();
  }, [asked]);
  const close = () => {
    dialog.current.close();
    setAsked(null);
  };
  const submit = async (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    const token = form.get("token") || sessionStorage.getItem(TOKEN) || "";
    const body = { command: asked.command, why: form.get("why"), id: asked.id };
    if (asked.proposal) Object.assign(body, { proposal: asked.proposal, token: asked.token });
    else body.model = asked.model;
    if (form.get("for")) body.for = form.get("for");
    setBusy(true);
    const result = await send(body, token);
    setBusy(false);
    if (result.error) {
      if (result.status === 401) sessionStorage.removeItem(TOKEN);
      if (result.status >= 400 && result.status < 500) asked.id = newId();
      setAnswer(result.error);
      return;
    }
    if (token) sessionStorage.setItem(TOKEN, token);
    setSaid(result.who ? `${result.said} (${result.who})` : result.said);
    close();
  };
  const [title, meaning, needsWhy] = asked ? WORDS[asked.command] : ["", "", false];
  const lasts = asked && (asked.command === "pause" || asked.command === "freeze");
  const subject = !asked ? "" : asked.proposal ? `#${asked.proposal}` : asked.model === "*" ? "every model" : asked.model;
  return html`<p class=${`toast${said ? "" : " unseen"}`} role="status">${said}</p>
  <dialog ref=${dialog} aria-labelledby="command-h" onClose=${() => setAsked(null)}>
    ${asked && html`<form onSubmit=${submit} key=${JSON.stringify({ ...asked, id: "" })}>
      <h2 id="command-h">${title} ${subject}</h2>
      <p>${asked.text ?? ""}</p><p class="quiet">${meaning}</p>
      <label>Why${needsWhy ? "" : " (optional)"}<input name="why" ref=${first} required=${needsWhy} maxlength="1000" autocomplete="off" /></label>
      ${lasts && html`<label>For (optional)<input name="for" placeholder="2h; empty: until it is ended" autocomplete="off" /></label>`}
      ${asksToken && !sessionStorage.getItem(TOKEN) && html`<label>Operator's token (shoal console prints a link with it)<input name="token" type="password" required autocomplete="current-password" /></label>`}
      ${answer && html`<p class="error" role="alert">${answer}</p>`}
      <div class="actions"><button type="submit" class="primary" disabled=${busy}>${title}</button>
        <button type="button" onClick=${close}>Cancel</button></div>
    </form>`}
  </dialog>`;
}

async function send(body, token) {
  try {
    const headers = { "Content-Type": "application/json" };
    if (token) headers.Authorization = `Bearer ${token}`;
    const answer = await fetch("/v1/controls", {
      method: "POST",
      headers,
      body: JSON.stringify(body),
    });
    const found = await answer.json().catch(() => ({ error: `HTTP ${answer.status}` }));
    return { status: answer.status, ...found };
  } catch {
    return { status: 0, error: "The controller does not answer. Whether the command takes effect is not known; it can be sent again." };
  }
}

export function Proposals({ proposals, now, canWrite }) {
  const rows = Object.values(proposals).sort((a, b) => a.expires - b.expires);
  if (!rows.length) return null;
  return html`<section class="card proposals" aria-labelledby="proposals-h">
    <header class="card-head"><h2 id="proposals-h">Waiting for approval <span class="count">${rows.length}</span></h2></header>
    <ul class="list">${rows.map((one) => html`<li class="proposal" key=${one.number}>
      <p><b>${one.model}</b> <span class="item-change">${one.change}</span></p>
      <p class="reason">${one.reasons.join("; ")}</p>
      <div class="proposal-foot"><span class="quiet">#${one.number}, since ${clock(one.at)}, expires in ${lasting(one.expires - now)}</span>
      <span class="actions">
        <button class="primary small" disabled=${!canWrite} onClick=${() => ask({ command: "approve", proposal: one.number, token: one.token, text: `${one.model}: ${one.change}` })}>Approve #${one.number}</button>
        <button class="small" disabled=${!canWrite} onClick=${() => ask({ command: "reject", proposal: one.number, token: one.token, text: `${one.model}: ${one.change}` })}>Reject #${one.number}</button>
      </span></div></li>`)}</ul>
    ${!canWrite && html`<p class="quiet note">Commands are off: the controller has no SHOAL_OPERATORS_FILE or SHOAL_OPERATOR_TOKEN. Use shoal approve and shoal reject.</p>`}
  </section>`;
}
