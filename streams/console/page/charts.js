// Curves over time with decision markers, drawn by the vendored uPlot.
import { html, useEffect, useRef, useState } from "./lib.js";
import { clock, kindOf } from "./format.js";
import { showPresent, showSpan, spanOf } from "./range.js";
import { keyOf, selectDecision } from "./store.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const TONES = { out: "--add", in: "--remove", plan: "--plan", bad: "--bad", warn: "--warn", ok: "--ok", person: "--ink", hold: "--muted" };
const NEAR_PX = 9;

/** Renders again when the colour scheme changes, because a canvas does not follow it. */
function useScheme() {
  const [scheme, set] = useState(0);
  useEffect(() => {
    const again = () => set((n) => n + 1);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", again);
    addEventListener("shoal-theme", again);
    return () => {
      media.removeEventListener("change", again);
      removeEventListener("shoal-theme", again);
    };
  }, []);
  return scheme;
}

/**
 * A chart. series: [{name, values, color, dash, fill, width, limit}], `color` a CSS variable, `dash`
 * true or the lengths of lines and gaps, `late` true if the legend shows the last known value.
 * x: ms. show: turns a value into text. range: of time, see range.js. whole: span of a recording.
 * axis: turns the lowest and highest shown value into the ends of the axis. at: ms of the time slider.
 */
export function Chart({ title, unit, x, series, show, tick = show, decisions, selected, axis, at, range = "", whole, height }) {
  const box = useRef(null);
  const plot = useRef(null);
  const shown = useRef({});
  const [index, setIndex] = useState(null);
  const scheme = useScheme();
  const tall = height ?? (innerWidth >= 2200 ? 210 : 132);
  const empty = !x.length;
  const span = spanOf(range, x, whole);
  shown.current = { decisions: decisions ?? [], selected, at, x, axis: axis ?? fromZero, span };
  const shape = JSON.stringify(series.map((one) => [one.name, one.color, one.dash, one.fill]));

  useEffect(() => {
    const { node, close } = build(box.current, series, tick, tall, shown, setIndex);
    plot.current = node;
    return () => {
      plot.current = null;
      close();
    };
  }, [shape, scheme, tall]);

  useEffect(() => {
    plot.current?.setData([x.map((ms) => ms / 1000), ...series.map((one) => one.values)]);
  }, [shape, scheme, tall, x, decisions, selected, at, span?.[0], span?.[1], ...columnsOf(series)]);

  const last = index ?? lastIndex(x, at);
  const shownValue = ({ values, late }) => (late && index === null && !at ? values.findLast((v) => v !== null) : values[last]);
  const text = series
    .filter((one) => one.label !== false)
    .map((one) => `${one.name} ${show(shownValue(one))}`)
    .join(", ");
  return html`<figure class="chart">
    <figcaption>
      <span class="chart-title">${title}${unit && html` <span class="unit">${unit}</span>`}</span>
      <span class="legend">
        ${series.map((one) => html`<span class="key" key=${one.name}>
          <svg width="16" height="8" aria-hidden="true"><line x1="0" y1="4" x2="16" y2="4"
            class=${`stroke ${one.color.slice(2)}`} stroke-width=${one.fill ? 6 : 2}
            stroke-dasharray=${one.dash ? dashOf(one.dash).join(" ") : ""}/></svg>
          ${one.name} <b>${show(shownValue(one))}</b></span>`)}
      </span>
    </figcaption>
    <div class="plot" ref=${box} role="img" aria-label=${`${title}: ${empty ? "no data yet" : text}`}></div>
    ${empty && html`<p class="no-data">No data yet</p>`}
  </figure>`;
}

const fromZero = (_, high) => [0, (high || 1) * 1.08];

/** A pattern of dashes; `true` is the usual one. */
const dashOf = (dash) => (dash === true ? [5, 4] : dash);

const MOST_SERIES = 6;

/** The values of each series, in a list of constant length. */
const columnsOf = (series) => Array.from({ length: MOST_SERIES }, (_, i) => series[i]?.values);

function lastIndex(x, at) {
  if (!at) return x.length - 1;
  let found = x.length - 1;
  while (found > 0 && x[found] > at) found -= 1;
  return found;
}

function build(box, series, show, height, shown, setIndex) {
  const axis = { stroke: css("--muted"), font: `${Math.round(parseFloat(css("--size")) * 0.85)}px ${css("--font")}`, ticks: { show: false },
                 grid: { stroke: css("--grid"), width: 1 } };
  const options = {
    width: Math.max(120, box.clientWidth),
    height,
    padding: [10, 18, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: "shoal", filters: { pub: (type) => type.startsWith("mousemove") || type.startsWith("mouseleave") } },
      points: { size: 6 },
      drag: { x: true, y: false, setScale: false },
      bind: { dblclick: () => () => showPresent() },
    },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    scales: {
      x: { range: (_, low, high) => shown.current.span?.map((ms) => ms / 1000) ?? [low, high] },
      y: { range: (_, low, high) => shown.current.axis(low, high) },
    },
    axes: [
      { ...axis, size: 26, space: 64, values: (_, splits) => splits.map(timeLabel) },
      { ...axis, size: 46, space: 28, values: (_, splits) => splits.map((v) => show(v)) },
    ],
    series: [{}, ...series.map((one) => ({
      label: one.name,
      stroke: css(one.color),
      width: one.width ?? 1.75,
      dash: one.dash ? dashOf(one.dash) : undefined,
      fill: one.fill ? css(`${one.color}-soft`) : undefined,
      points: { show: true, size: 4, filter: alone },
      spanGaps: one.spans ?? false,
    }))],
    hooks: {
      draw: [(u) => drawMarkers(u, shown.current)],
      setCursor: [(u) => setIndex(u.cursor.idx ?? null)],
      setSelect: [zoom],
    },
  };
  const node = new uPlot(options, [[], ...series.map(() => [])], box);
  box.plot = node;
  const click = (event) => {
    const near = nearest(node, shown.current.decisions, event.offsetX);
    if (near) selectDecision(near);
  };
  node.over.addEventListener("click", click);
  const watch = new ResizeObserver(() => {
    const width = box.clientWidth;
    if (width > 0 && Math.abs(width - node.width) > 1) node.setSize({ width, height });
  });
  watch.observe(box);
  return {
    node,
    close() {
      watch.disconnect();
      node.destroy();
    },
  };
}

/** Shows the dragged span in every chart. */
function zoom(u) {
  const { left, width } = u.select;
  if (!width) return;
  showSpan(1000 * u.posToVal(left, "x"), 1000 * u.posToVal(left + width, "x"));
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
}

/** Indices of values without a neighbour, which no line can show. */
function alone(u, index) {
  const values = u.data[index];
  const has = (i) => values[i] !== null && values[i] !== undefined;
  return values.flatMap((_, i) => (has(i) && !has(i - 1) && !has(i + 1) ? [i] : []));
}

const timeLabel = (seconds) => clock(seconds * 1000).slice(0, seconds % 60 ? 8 : 5);

function nearest(u, decisions, x) {
  let best = null;
  let distance = NEAR_PX;
  for (const one of decisions) {
    const away = Math.abs(u.valToPos(one.at / 1000, "x") - x);
    if (away <= distance) [best, distance] = [one, away];
  }
  return best;
}

function drawMarkers(u, { decisions, selected, at }) {
  const { ctx } = u;
  const ratio = devicePixelRatio || 1;
  const { left, top, width, height } = u.bbox;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left - 6 * ratio, 0, width + 12 * ratio, top + height);
  ctx.clip();
  for (const one of decisions) {
    const x = Math.round(u.valToPos(one.at / 1000, "x", true));
    if (x < left || x > left + width) continue;
    const chosen = keyOf(one) === selected;
    const [, , tone] = kindOf(one.kind);
    ctx.strokeStyle = ctx.fillStyle = css(TONES[tone] ?? "--muted");
    ctx.lineWidth = (chosen ? 2 : 1) * ratio;
    ctx.globalAlpha = chosen ? 1 : 0.55;
    ctx.setLineDash(chosen ? [] : [2 * ratio, 3 * ratio]);
    line(ctx, x, top, top + height);
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
    glyph(ctx, x, top - 4 * ratio, (chosen ? 5 : 4) * ratio, tone);
  }
  if (at) {
    const x = Math.round(u.valToPos(at / 1000, "x", true));
    ctx.setLineDash([]);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = css("--ink");
    ctx.lineWidth = 1.5 * ratio;
    line(ctx, x, top, top + height);
  }
  ctx.restore();
}

function line(ctx, x, from, to) {
  ctx.beginPath();
  ctx.moveTo(x, from);
  ctx.lineTo(x, to);
  ctx.stroke();
}

/** A triangle up for additions, down for removals, a diamond for plans, a dot otherwise. */
function glyph(ctx, x, y, r, tone) {
  ctx.beginPath();
  if (tone === "out") ctx.moveTo(x, y - r), ctx.lineTo(x + r, y + r), ctx.lineTo(x - r, y + r);
  else if (tone === "in") ctx.moveTo(x, y + r), ctx.lineTo(x + r, y - r), ctx.lineTo(x - r, y - r);
  else if (tone === "plan") {
    ctx.moveTo(x, y - r), ctx.lineTo(x + r, y), ctx.lineTo(x, y + r), ctx.lineTo(x - r, y);
  } else ctx.arc(x, y, r * 0.6, 0, 7);
  ctx.closePath();
  ctx.fill();
}

/** A small curve of demand (line) below ready capacity (area). */
export function Spark({ demand, ready, width = 96, height = 24 }) {
  const most = Math.max(1e-9, ...demand.map((v) => v ?? 0), ...ready.map((v) => v ?? 0));
  const x = (i, n) => (n > 1 ? (i * width) / (n - 1) : 0);
  const y = (v) => height - 1 - ((height - 3) * v) / most;
  const path = (values) => {
    let text = "";
    let pen = "M";
    values.forEach((value, i) => {
      if (value === null) return (pen = "M");
      text += `${pen}${x(i, values.length).toFixed(1)},${y(value).toFixed(1)}`;
      pen = "L";
    });
    return text;
  };
  const solid = ready.map((v) => v ?? 0);
  const area = solid.length > 1 ? `M0,${height}${path(solid).replace("M", "L")}L${width},${height}Z` : "";
  return html`<svg class="spark" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`}
      aria-hidden="true"><path class="spark-area" d=${area}/><path class="spark-line" d=${path(demand)}/></svg>`;
}
