"""The report of a backtest as one HTML page: table, cost against attainment, and values over time.

The page is self-contained: it opens without a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoscaler.simulation.cost_causes import ABOUT
from autoscaler.simulation.hindsight import hindsight_cost
from streams.html_text import escaped
from streams.tools.backtest.backtest_report import (
    WITHIN,
    Backtest,
    Row,
    cost_table,
    miss_table,
    table,
)
from streams.tools.backtest.backtest_runs import spread
from streams.tools.backtest.object_policy import policy_of
from streams.tools.backtest.svg_charts import Series, line_chart

STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--quiet:#4a5866;--page:#fff;--line:#ccd4dc;
--grid:#e6ebf0;--ours:#eef5fd}
@media screen and (prefers-color-scheme:dark){:root{--ink:#e6ebf0;--quiet:#aab6c2;--page:#12181f;
--line:#46525e;--grid:#2a343e;--ours:#1b3049}.series{filter:brightness(1.6) saturate(.9)}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page);max-width:900px;
margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin-bottom:0;overflow-wrap:anywhere}h2{font-size:1.15em;margin-top:2em}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:.9em;width:100%}th,td{padding:.25em .5em;text-align:right}
th:first-child,td:first-child{text-align:left}th{border-bottom:2px solid var(--line)}
td{border-bottom:1px solid var(--grid)}tr.ours td{font-weight:600;background:var(--ours)}
svg{width:100%;height:auto}.grid{stroke:var(--grid)}.tick,.legend{font-size:11px;fill:var(--quiet)}
.label{font-size:12px;fill:var(--ink)}.ring{stroke:var(--page)}
p.small,li{font-size:.9em;color:var(--quiet)}
@media print{:root{color-scheme:light}body{max-width:none;margin:0;padding:0;font-size:10pt}
h2{break-after:avoid}svg,tr,li{break-inside:avoid}thead{display:table-header-group}
.wide{overflow:visible}tr.ours td{print-color-adjust:exact;-webkit-print-color-adjust:exact}
@page{size:A4;margin:15mm}}
"""


_CURVES = (
    "Each line is one policy with its knob swept on what is judged here; the large point is the "
    "setting used in the table."
)
_POINTS = "Each point is one policy as in the table; its knob was not swept."


def page(found: Backtest) -> str:
    """The report of a backtest as an HTML page."""
    names = ", ".join(Path(trace).name for trace in (*found.traces, *found.also))
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>Backtest of {escaped(names)}</title><style>{STYLE}</style>",
        f"<main><h1>Backtest of {escaped(names)}</h1>",
        f"<p>{found.size}.</p>",
        _headline(found),
        _table(found),
        "<h2>Cost against attainment</h2>",
        f"<p class='small'>{_CURVES if found.curves else _POINTS} Thin lines are the middle "
        "90% over traces and seeds, where there are several. Up and to the left is better.</p>",
        _curves(found),
        _causes(found),
        _what_if(found),
        f"<h2>Demand and fleet over time{', first trace' if found.also else ''}</h2>",
        _demand(found),
        _spend(found),
        "<h2>Policies</h2>",
        _about(found),
        _notes(found),
        "<p class='small'>Cost is billed node time from the controller's start, 4 minutes before "
        "the first possible request, to the end of the trace. A request meets its SLO if its time "
        "to first token and its mean time per output token are within the model's limits; "
        "everything that arrived counts. Reaction is the mean time for which demand exceeds what "
        "the ordered fleet can carry.</p></main></html>\n",
    ]
    return "\n".join(parts)


def _headline(found: Backtest) -> str:
    rows = {row.policy: row for row in found.rows}
    ours = rows.get("shoal")
    others = [row for row in found.rows if not row.policy.startswith("shoal")]
    if ours is None or not others:
        return ""
    goal = ours.mean("slo_attainment") - WITHIN
    equal = [row for row in others if row.mean("slo_attainment") >= goal]
    text = (
        f"Shoal: {ours.mean('cost_usd'):.2f} USD, "
        f"{100 * ours.mean('slo_attainment'):.2f}% of requests met their SLO. "
    )
    if not equal:
        return f"<p>{text}No other policy attains as much (within 0.5 points).</p>"
    best = min(equal, key=lambda row: row.mean("cost_usd"))
    return (
        f"<p>{text}The cheapest other policy that attains as much (within 0.5 points) is "
        f"{escaped(best.policy)} at {best.mean('cost_usd'):.2f} USD.</p>"
    )


def _table(found: Backtest) -> str:
    header, *lines = table(found)
    return _html_table("Policies", header, [(line, line[0] == "shoal") for line in lines])


def _html_table(
    name: str, header: Sequence[str], lines: Sequence[tuple[Sequence[str], bool]]
) -> str:
    """A table. name: for screen readers. lines: cells of a row, and whether it is emphasised."""
    around = f"<div class='wide' tabindex='0' role='region' aria-label='{name}'>"
    head = "".join(f"<th scope='col'>{escaped(cell)}</th>" for cell in header)
    rows = [f"{around}<table><thead><tr>{head}</tr></thead><tbody>"]
    for line, is_ours in lines:
        mark = " class='ours'" if is_ours else ""
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in line)
        rows.append(f"<tr{mark}>{cells}</tr>")
    return "".join([*rows, "</tbody></table></div>"])


def _causes(found: Backtest) -> str:
    header, *lines = cost_table(found, found.rows)
    cost = _html_table("Rent by cause", header, [(line, line[0] == "shoal") for line in lines])
    header, *lines = miss_table(found.rows)
    missed = _html_table("Misses by cause", header, [(line, line[0] == "shoal") for line in lines])
    items = "".join(
        f"<li><b>{cause.replace('_', ' ')}</b>: {about}</li>" for cause, about in ABOUT.items()
    )
    return (
        "<h2>What the rent paid for</h2><p class='small'>In USD. The parts add up to the cost.</p>"
        f"{cost}<h2>Why requests missed their SLO</h2><p class='small'>Shares of all requests, by "
        f"the state of the fleet at their arrival.</p>{missed}<ul>{items}</ul>"
    )


def _what_if(found: Backtest) -> str:
    """A table of every swept setting, with its differences from Shoal as it ran."""
    ours = next((row for row in found.rows if row.policy == "shoal"), None)
    if ours is None or not found.curves:
        return ""
    usd, share = ours.mean("cost_usd"), ours.mean("slo_attainment")
    lines = []
    for name, rows in found.curves.items():
        for row in sorted(rows, key=lambda one: one.knob):
            cost, met = row.mean("cost_usd"), row.mean("slo_attainment")
            cells = (
                name,
                policy_of(name).knob,
                f"{row.knob:g}",
                f"{cost:.2f}",
                f"{100.0 * (cost / usd - 1.0):+.1f}%" if usd else "-",
                f"{100.0 * met:.2f}%",
                f"{100.0 * (met - share):+.2f}",
            )
            lines.append((cells, cost < usd and met >= share - WITHIN and name != "shoal"))
    header = ("policy", "knob", "setting", "USD", "cost", "SLO met", "points")
    return (
        "<h2>What if</h2><p class='small'>Each row is a run with another setting. Cost and points "
        "are differences from Shoal as it ran. Marked rows are other policies that cost less and "
        f"attain as much (within 0.5 points).</p>{_html_table('Settings', header, lines)}"
    )


def _curves(found: Backtest) -> str:
    series = []
    for row in found.rows:
        points = sorted(_point(one) for one in found.curves.get(row.policy, ()))
        spans = [span for one in (row, *found.curves.get(row.policy, ())) for span in _spans(one)]
        series.append(Series(row.policy, tuple(points), _point(row), spans=tuple(spans)))
    shares = [p[1] for one in series for p in (*one.points, one.mark) if p]
    shares += [end[1] for one in series for span in one.spans for end in span]
    low = max(0.0, min(shares) - 1.0)
    return line_chart(series, "USD", "requests that met their SLO, %", (low, 100.0))


def _point(row: Row) -> tuple[float, float]:
    return row.mean("cost_usd"), 100.0 * row.mean("slo_attainment")


def _spans(row: Row) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """The middle 90% of cost and of attainment, as a cross. Nothing for a single run."""
    if len(row.scores) < 2:
        return []
    usd, share = _point(row)
    low_usd, high_usd = spread([score.cost_usd for score in row.scores])
    low, high = (100.0 * value for value in spread([s.slo_attainment for s in row.scores]))
    return [((low_usd, share), (high_usd, share)), ((usd, low), (usd, high))]


def _shown(found: Backtest) -> Sequence[Row]:
    """Shoal's policy and at most three others, because more lines would hide each other."""
    wanted = ("shoal", "fixed-best", "knative", "hpa-utilization")
    rows = [row for name in wanted for row in found.rows if row.policy == name]
    return rows or found.rows[:4]


def _demand(found: Backtest) -> str:
    course = found.rows[0].scores[0].course
    points = tuple((point.at_s / 60.0, point.req_per_s) for point in course)
    return line_chart([Series("requests/s", points, steps=True, fill=True)], "minutes", "demand")


def _spend(found: Backtest) -> str:
    series = [
        Series(
            row.policy,
            tuple((point.at_s / 60.0, point.usd_per_h) for point in row.scores[0].course),
            steps=True,
        )
        for row in _shown(found)
    ]
    return line_chart(series, "minutes", "fleet, USD per hour")


def _about(found: Backtest) -> str:
    items = []
    for row in found.rows:
        policy = policy_of(row.policy)
        how = "tuned on another trace" if row.policy in found.tuned else "default"
        value = "as declared" if row.knob == 0.0 else f"{row.knob:g}"
        items.append(
            f"<li><b>{escaped(row.policy)}</b>: {escaped(policy.about)}; {escaped(policy.knob)} "
            f"{value} ({how}). Rule: {escaped(policy.source)}.</li>"
        )
    gap = found.hindsight.gap
    proof = "no plan was found" if gap is None else f"within {100 * gap:.1f}% of the best one"
    items.append(f"<li><b>{hindsight_cost.NAME}</b>: {hindsight_cost.ABOUT}; {proof}.</li>")
    items.append(f"<li><b>{hindsight_cost.BOUND_NAME}</b>: {hindsight_cost.BOUND_ABOUT}.</li>")
    return f"<ul>{''.join(items)}</ul>"


def _notes(found: Backtest) -> str:
    notes = "".join(f"<li>{escaped(note)}</li>" for note in found.notes)
    return f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""
