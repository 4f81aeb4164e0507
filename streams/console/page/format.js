// Figures and times as text. A missing figure is a dash, never a zero.
export const DASH = "–";
const MINUS = "−";

export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export function figure(value, digits = 3) {
  if (!known(value)) return DASH;
  const size = Math.abs(value);
  if (size >= 10000) return `${(value / 1000).toFixed(size >= 100000 ? 0 : 1)}k`;
  if (size === 0) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toFixed(Math.min(places, 3));
}

export const rate = (value) => figure(value);

export function usd(value) {
  return known(value) ? value.toFixed(Math.abs(value) >= 1000 ? 0 : 2) : DASH;
}

export function signedUsd(value) {
  if (!known(value)) return DASH;
  if (Math.abs(value) < 0.005) return "±0.00";
  return (value > 0 ? "+" : MINUS) + usd(Math.abs(value));
}

export function percent(value, places = 1) {
  return known(value) ? `${(100 * value).toFixed(value === 1 ? 0 : places)}%` : DASH;
}

export function signedPercent(value) {
  if (!known(value)) return DASH;
  if (Math.abs(value) < 0.005) return "±0%";
  return (value > 0 ? "+" : MINUS) + percent(Math.abs(value), 0);
}

export const shortGpu = (name) => name.replace(/^NVIDIA[ -]/, "");

export function latency(ms) {
  if (!known(ms)) return DASH;
  return ms >= 1000 ? `${(ms / 1000).toFixed(ms >= 10000 ? 1 : 2)} s` : `${Math.round(ms)} ms`;
}

export function clock(ms) {
  return ms ? new Date(ms).toISOString().slice(11, 19) : DASH;
}

export function moment(ms) {
  return ms ? new Date(ms).toISOString().slice(0, 19).replace("T", " ") : DASH;
}

export function lasting(ms) {
  if (!known(ms)) return DASH;
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} d`;
}

export const several = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export const signed = (count) => (count > 0 ? `+${count}` : `${MINUS}${Math.abs(count)}`);

export const changeText = (change) =>
  change.map(([label, count]) => `${signed(count)} ${label}`).join(", ");

const KINDS = {
  scale_out: ["▲", "Add", "out"],
  scale_in: ["▼", "Remove", "in"],
  replan: ["⇄", "Replan", "plan"],
  replace: ["↻", "Replace", "plan"],
  hold: ["‖", "Note", "hold"],
  infeasible: ["!", "Cannot be met", "bad"],
  rebuilt: ["⟳", "Take-over", "hold"],
  broken: ["✕", "Broken", "bad"],
  at_risk: ["!", "At risk", "warn"],
  recovered: ["✓", "Well again", "ok"],
  lost: ["✕", "Lost", "bad"],
  alert: ["!", "Alert", "warn"],
  command: ["@", "Command", "person"],
  note: ["@", "Note", "person"],
};

/** Sign, word and tone of a kind of decision or event; the sign makes it readable without colour. */
export const kindOf = (kind) => KINDS[kind] ?? ["·", kind, "hold"];
