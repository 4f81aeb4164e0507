"""The report of a run: a JSON file and an HTML page with the timeline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import orjson

from loadtests.chaos.run import Chaos, Outcome
from loadtests.session_load import Request
from streams.html_text import escaped
from streams.tools.backtest.html_report import STYLE

_WIDTH, _ROW, _LEFT = 860, 22, 190


def write(chaos: Chaos, folder: Path, title: str) -> tuple[Path, Path]:
    """Write both files into `folder`."""
    page, figures = folder / "chaos.html", folder / "chaos.json"
    page.write_text(html(chaos, title), encoding="utf-8")
    figures.write_bytes(orjson.dumps(summary(chaos, title), option=orjson.OPT_INDENT_2))
    return page, figures


def summary(chaos: Chaos, title: str) -> dict[str, object]:
    """All measurements of the run."""
    requests = chaos.requests
    takeovers = [o.takeover_s for o in chaos.outcomes if o.takeover_s >= 0]
    return {
        "run": title,
        "faults": len(chaos.outcomes),
        "broken": sum(bool(o.broken) for o in chaos.outcomes),
        "requests": len(requests),
        "failed": sum(bool(r.why) for r in requests),
        "lost": [_lost(r, chaos) for r in requests if r.why],
        "worst_takeover_s": round(max(takeovers, default=-1.0), 2),
        "worst_rate_off": round(max((o.rate_off for o in chaos.outcomes), default=-1.0), 5),
        "outcomes": [asdict(o) for o in chaos.outcomes],
    }


def _lost(request: Request, chaos: Chaos) -> dict[str, object]:
    """Describe a request without a whole answer, with the fault at its time ("" for none)."""
    at_s = request.sent_s - chaos.began_s
    met = (
        o.fault
        for o in chaos.outcomes
        if at_s <= o.until_s + max(o.well_s, 0.0) and at_s + request.took_s >= o.at_s
    )
    return {
        "at_s": round(at_s, 1),
        "took_s": round(request.took_s, 1),
        "model": request.model,
        "gateway": request.gateway,
        "said": f"{request.status} {request.why}".strip(),
        "during": next(met, ""),
    }


def html(chaos: Chaos, title: str) -> str:
    """Return the HTML page, which opens without a network."""
    found = summary(chaos, title)
    rows = "".join(_row(o) for o in chaos.outcomes)
    return "\n".join([
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>Chaos: {escaped(title)}</title><style>{STYLE}</style>",
        f"<h1>Chaos: {escaped(title)}</h1>",
        f"<p>{found['faults']} faults, {found['broken']} with a broken promise. "
        f"{found['failed']} of {found['requests']} requests got no answer. "
        f"Longest takeover {found['worst_takeover_s']} s.</p>",
        "<h2>Timeline</h2>", timeline(chaos),
        "<p class='small'>Dark: the fault lasts. Light: until all was well again. "
        "Red: a promise broke. Ticks at the bottom: requests without an answer.</p>",
        "<h2>Faults</h2><table><tr><th>fault</th><th>lines</th><th>hit</th><th>at s</th>"
        "<th>lasted s</th><th>well after s</th><th>promised s</th><th>host stall s</th>"
        "<th>takeover s</th><th>failed</th><th>started</th><th>broken</th></tr>",
        rows, "</table>",
        "<h2>Requests without an answer</h2><table><tr><th>at s</th><th>took s</th><th>model</th>"
        "<th>gateway</th><th>what came</th><th>during</th></tr>",
        "".join(_cells(_lost(r, chaos).values()) for r in chaos.requests if r.why),
        "</table></html>",
    ])  # fmt: skip


def _row(o: Outcome) -> str:
    well = f"{o.well_s:.1f}" if o.well_s >= 0 else "never"
    takeover = f"{o.takeover_s:.1f}" if o.takeover_s >= 0 else ""
    return _cells((
        o.fault, o.lines, o.hit, f"{o.at_s:.0f}", f"{o.until_s - o.at_s:.1f}", well,
        f"{o.limit_s:.0f}", f"{o.stall_s:.1f}", takeover, o.failed, o.started, "; ".join(o.broken),
    ))  # fmt: skip


def _cells(cells: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<td>{escaped(str(cell))}</td>" for cell in cells) + "</tr>"


def timeline(chaos: Chaos) -> str:
    """Draw a row for each kind of fault, with time to the right."""
    names = list(dict.fromkeys(o.fault for o in chaos.outcomes))
    end_s = max([o.until_s + max(o.well_s, 0.0) for o in chaos.outcomes], default=1.0)
    height = _ROW * (len(names) + 2)
    scale = (_WIDTH - _LEFT) / max(end_s, 1.0)
    parts = [f"<svg viewBox='0 0 {_WIDTH} {height}' role='img' aria-label='timeline of faults'>"]
    for at, name in enumerate(names):
        parts.append(f"<text class='label' x='0' y='{_ROW * at + 15}'>{escaped(name)}</text>")
    for o in chaos.outcomes:
        y = _ROW * names.index(o.fault) + 4
        well = max(o.well_s, 0.0) if o.well_s >= 0 else end_s - o.until_s
        colour, light = ("#c0392b", "#efb5ae") if o.broken else ("#1f5f99", "#bcd6ee")
        x, until = _LEFT + scale * o.at_s, _LEFT + scale * o.until_s
        parts.append(_bar(x, y, max(2.0, until - x), colour))
        parts.append(_bar(max(until, x + 2.0), y, scale * well, light))
    y = _ROW * len(names) + 4
    for r in chaos.requests:
        if r.why:
            x = _LEFT + scale * (r.sent_s - chaos.began_s)
            parts.append(_bar(x, y, 1.0, "#c0392b"))
    step = 300 if end_s > 900 else 60
    for second in range(0, int(end_s) + 1, step):
        x = _LEFT + scale * second
        parts.append(f"<text class='tick' x='{x:.1f}' y='{height - 4}'>{second // 60} min</text>")
        parts.append(f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='0' y2='{height - 16}'/>")
    return "".join([*parts, "</svg>"])


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='14' fill='{colour}'/>"
