// Files for other tools: the shown data as CSV, and the charts of a card as one picture.
import { html } from "./lib.js";

const GAP = 16;
const HEAD = 40;

/** Columns of a series in a CSV file, with their units. */
const UNITS = {
  demand: "demand_req_per_s", target: "target_req_per_s", wanted: "planned_req_per_s", ready: "ready_req_per_s",
  ttft: "ttft_p95_ms", tpot: "tpot_p95_ms", attained: "slo_met", attained_now: "slo_met_now", usd: "usd_per_h", tokens: "tokens_per_s",
  ended: "ended_requests_total", met: "slo_met_requests_total", spent: "usd_total",
};

/** Buttons that save the shown part of `columns`, and the charts of the card around them. */
export function Save({ name, columns, span }) {
  const csv = () => save(csvOf(seriesTable(columns, span)), "text/csv", `${fileName(name)}.csv`);
  const picture = async (event) => {
    const card = event.currentTarget.closest(".card");
    save(await pictureOf(card, name), "image/png", `${fileName(name)}.png`);
  };
  return html`<button class="small" onClick=${csv} disabled=${!columns.t.length}>CSV</button>
    <button class="small" onClick=${picture} disabled=${!columns.t.length}>Picture</button>`;
}

/** Saves rows of cells as a CSV file. */
export const saveTable = (name, rows) => save(csvOf(rows), "text/csv", `${fileName(name)}.csv`);

function seriesTable(columns, span) {
  const names = Object.keys(columns).filter((key) => key in UNITS && columns[key].some((value) => value !== null));
  const rows = [["time_utc", ...names.map((key) => UNITS[key])]];
  columns.t.forEach((ms, i) => {
    if (!span || (span[0] <= ms && ms <= span[1])) rows.push([new Date(ms).toISOString(), ...names.map((key) => columns[key][i])]);
  });
  return rows;
}

const csvOf = (rows) => rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";

/** A cell of a CSV file. A text that a spreadsheet would take for a formula begins with an apostrophe. */
function cell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const fileName = (name) => `shoal-${name.replace(/[^\w.-]+/g, "-").slice(0, 80)}`;

function save(content, type, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** All charts of a card with their titles and legends on one canvas, as PNG. */
function pictureOf(card, title) {
  const style = getComputedStyle(card);
  const charts = [...card.querySelectorAll(".chart")];
  const ratio = devicePixelRatio || 1;
  const wide = Math.max(...charts.map((one) => one.clientWidth)) + GAP;
  const tall = Math.max(...charts.map((one) => one.querySelector("canvas").clientHeight)) + HEAD + GAP;
  const across = charts.length > 1 ? 2 : 1;
  const canvas = document.createElement("canvas");
  canvas.width = (wide * across + GAP) * ratio;
  canvas.height = (tall * Math.ceil(charts.length / across) + HEAD) * ratio;
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.fillStyle = style.backgroundColor;
  ctx.fillRect(0, 0, canvas.width, canvas.height);
  const write = (text, x, y, weight = 400) => {
    ctx.font = `${weight} 13px ${style.fontFamily}`;
    ctx.fillStyle = style.color;
    ctx.fillText(text, x, y);
    return x + ctx.measureText(text).width;
  };
  write(title, GAP, 22, 600);
  charts.forEach((chart, i) => {
    const x = GAP + wide * (i % across);
    const y = HEAD + tall * Math.floor(i / across);
    write(chart.querySelector(".chart-title").textContent.trim(), x, y + 10, 600);
    let at = x;
    for (const key of chart.querySelectorAll(".key")) {
      const line = getComputedStyle(key.querySelector("line"));
      ctx.strokeStyle = line.stroke;
      ctx.globalAlpha = Number(line.strokeOpacity);
      ctx.lineWidth = parseFloat(line.strokeWidth);
      ctx.setLineDash(line.strokeDasharray.split(",").map(parseFloat).filter(Number.isFinite));
      ctx.beginPath();
      ctx.moveTo(at, y + 24);
      ctx.lineTo(at + 16, y + 24);
      ctx.stroke();
      ctx.globalAlpha = 1;
      at = write(key.textContent.trim().replace(/\s+/g, " "), at + 20, y + 28) + 12;
    }
    const drawn = chart.querySelector("canvas");
    ctx.drawImage(drawn, x, y + HEAD - 4, drawn.clientWidth, drawn.clientHeight);
  });
  return new Promise((done) => canvas.toBlob(done));
}
