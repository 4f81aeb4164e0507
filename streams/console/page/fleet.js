// The fleet by region and pool: how many nodes do what, and who serves on them.
import { html, memo, useMemo, useState, classes } from "./lib.js";
import { clock, lasting, several, shortGpu, usd } from "./format.js";

/** Conditions of a node in the order of attention: [word, sign on its cell]. */
const STATES = [
  ["lost", "✕"], ["failed", "!"], ["silent", "…"], ["provisioning", "○"], ["starting", "◔"],
  ["switching", "⇄"], ["draining", "◑"], ["serving", "●"], ["asleep", "z"], ["idle", "·"],
];
const SIGN = Object.fromEntries(STATES);
const RANK = Object.fromEntries(STATES.map(([word], index) => [word, index]));
const MOST_CELLS = 240;
const byName = new Intl.Collator("en", { numeric: true }).compare;

/** Reclaim time of a node that stays until it is empty (topics.fleet.NO_DEADLINE_MS). */
const NO_DEADLINE = 4102444800000;
const leaves = (node, now) => node.reclaim === NO_DEADLINE ? "reclaimed when empty"
  : `reclaimed at ${clock(node.reclaim)} (in ${lasting(node.reclaim - now)})`;
const stateOf = (node) => (node.reclaim && node.state !== "lost" ? "reclaimed" : node.state);

export const Fleet = memo((props) => html`<${FleetView} ...${props} />`);

function FleetView({ pools, nodes, model, now }) {
  const regions = useMemo(() => grouped(pools, nodes), [pools, nodes]);
  const [wide, setWide] = useState("");
  return html`<section class="card" aria-labelledby="fleet-h">
    <header class="card-head"><h2 id="fleet-h">Fleet</h2>
      <ul class="legend-states" aria-label="Signs">${STATES.filter(([word]) => regions.words.has(word)).map(([word, sign]) => html`<li key=${word}><span class=${`cell ${word}`} aria-hidden="true">${sign}</span>${word}</li>`)}
        ${regions.words.has("reclaimed") && html`<li><span class="cell reclaimed" aria-hidden="true">▽</span>being reclaimed</li>`}
        <li><span class="cell spot serving" aria-hidden="true"></span>spot</li></ul>
    </header>
    ${regions.list.map(([region, rows]) => html`<div class="region" key=${region}>
      <h3>${region}</h3>
      <ul class="pools">${rows.map((row) => html`<${Pool} key=${row.id} row=${row} model=${model} now=${now}
        open=${wide === row.id} onOpen=${() => setWide(wide === row.id ? "" : row.id)} />`)}</ul></div>`)}
    ${!regions.list.length && html`<p class="empty">No pool is known yet.</p>`}
  </section>`;
}

function grouped(pools, nodes) {
  const rows = new Map(Object.entries(pools).map(([id, pool]) => [id, { id, pool, nodes: [] }]));
  const words = new Set();
  for (const [name, node] of Object.entries(nodes)) {
    const row = rows.get(node.pool);
    if (!row || (node.state === "idle" && row.pool.market !== "owned")) continue;
    row.nodes.push([name, node]);
    words.add(stateOf(node)).add(node.state);
  }
  const regions = new Map();
  for (const row of rows.values()) {
    row.nodes.sort((a, b) => RANK[a[1].state] - RANK[b[1].state] || byName(a[0], b[0]));
    if (!regions.has(row.pool.region)) regions.set(row.pool.region, []);
    regions.get(row.pool.region).push(row);
  }
  const used = (row) => (row.nodes.length ? 0 : 1);
  for (const list of regions.values()) list.sort((a, b) => used(a) - used(b) || a.id.localeCompare(b.id));
  return { list: [...regions].sort(([a], [b]) => a.localeCompare(b)), words };
}

function counted(nodes) {
  const found = new Map();
  for (const [, node] of nodes) found.set(stateOf(node), (found.get(stateOf(node)) ?? 0) + 1);
  return [...found].map(([word, count]) => `${count} ${word}`).join(", ");
}

function tenants(nodes) {
  const found = new Map();
  for (const [, node] of nodes) {
    for (const [model, , , gpus] of node.instances) found.set(model, (found.get(model) ?? 0) + gpus.length);
  }
  return [...found].sort((a, b) => b[1] - a[1]);
}

/** GPUs in use; without records of instances, all of the node. */
const gpusOf = (node, pool) => (node.instances.length || node.state === "idle"
  ? node.instances.reduce((sum, one) => sum + one[3].length, 0) : pool.per_node);

function Pool({ row, model, now, open, onOpen }) {
  const { pool, nodes } = row;
  const held = tenants(nodes);
  const serves = (node) => node.instances.some(([name]) => name === model);
  const gpus = nodes.reduce((sum, [, node]) => sum + gpusOf(node, pool), 0);
  return html`<li class=${classes("pool", !nodes.length && "unused")}>
    <div class="pool-head">
      <span class="pool-name"><b>${pool.name}</b> <span class=${`market ${pool.market}`}>${pool.market}</span>
        <span class="quiet">${pool.per_node} × ${shortGpu(pool.gpu)}</span></span>
      <span class="num">${pool.market === "owned" ? "" : `${usd(pool.price)}/h`}</span>
    </div>
    <p class="pool-count"><b>${nodes.length}</b> <span class="quiet">of ${several(pool.max, "node")}${nodes.length ? `, ${several(gpus, "GPU")}: ${counted(nodes)}` : ""}</span></p>
    ${nodes.length > 0 && html`<div class="cells" aria-hidden="true">${nodes.slice(0, MOST_CELLS).map(([name, node]) => html`<span key=${name}
      class=${classes("cell", stateOf(node), pool.market === "spot" && "spot", model && (serves(node) ? "mine" : "other"))}
      title=${title(name, node, now)}>${node.reclaim ? "▽" : SIGN[node.state]}</span>`)}${nodes.length > MOST_CELLS ? html`<span class="quiet">and ${nodes.length - MOST_CELLS} more</span>` : null}</div>
    <p class="pool-text">${held.slice(0, 6).map(([name, count]) => html`<span class=${classes("chip", name === model && "chosen")} key=${name}>${name} ${several(count, "GPU")}</span>`)}${held.length > 6 ? ` and ${held.length - 6} more models` : ""}
      <button class="link small" aria-expanded=${open} onClick=${onOpen}>${open ? "Hide nodes" : "Nodes"}<span class="unseen"> of ${row.id}</span></button></p>`}
    ${open && html`<${NodeTable} nodes=${nodes} now=${now} />`}
  </li>`;
}

function title(name, node, now) {
  const runs = node.instances.map(([model, phase, state]) => `${model}${phase === "aggregated" ? "" : ` ${phase}`} ${state}`);
  const reclaim = node.reclaim ? `; ${leaves(node, now)}` : "";
  return `${name}: ${runs.join(", ") || node.state}${reclaim}`;
}

function NodeTable({ nodes, now }) {
  const [most, setMost] = useState(40);
  return html`<table class="plain nodes"><thead><tr><th scope="col">Node</th><th scope="col">State</th><th scope="col">Serves</th></tr></thead>
    <tbody>${nodes.slice(0, most).map(([name, node]) => html`<tr key=${name}><th scope="row">${name}</th>
      <td>${node.state}${node.reclaim ? `, ${leaves(node, now)}` : ""}</td>
      <td>${node.instances.map(([model, phase, state, gpus, restarts, reason]) => html`<span class="chip">${model}${phase === "aggregated" ? "" : ` ${phase}`}, ${several(gpus.length, "GPU")}, ${state}${restarts ? `, ${several(restarts, "restart")}` : ""}${reason ? `: ${reason}` : ""}</span>`)}${node.faults.join("; ")}</td></tr>`)}</tbody></table>
    ${most < nodes.length && html`<button class="more" onClick=${() => setMost(most + 200)}>Show more of ${nodes.length} nodes</button>`}`;
}
