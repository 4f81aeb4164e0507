"""The summary of a run as text: sections of one fact a line, 80 columns wide.

The values are those of `streams.tools.up.run_summary`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from streams.plain_text import several
from streams.text_layout import Line, columns, labelled, section
from streams.tools.up.event_log import clock
from streams.tools.up.run_story import policy_lines, saving_lines, story_lines
from streams.tools.up.run_summary import JUDGED_UP_TO_SPEED

_MOST_GAPS = 3
_MOST_WAY = 34
_DECISIONS = {
    "scale_out": "instances added for more demand",
    "scale_in": "instances removed for less demand",
    "replace": "lost instances replaced",
    "replan": "instances exchanged",
    "infeasible": "demand that could not be served within its SLO",
    "hold": "no change, with a reason",
    "rebuilt": "state read again from the topics",
}


def show(summary: Mapping[str, Any], console: Console) -> None:
    """Print the summary."""
    for line in lines(summary):
        console.print(line if isinstance(line, Text) else Text(line), soft_wrap=True)


def lines(summary: Mapping[str, Any]) -> Iterator[Line]:
    """All sections of the summary."""
    yield from section("Requests", _requests(summary))
    yield from section("Models", _models(summary["models"]))
    yield from section("Cost", _cost(summary))
    yield from section(
        "Events, each with the decisions that followed", story_lines(summary["story"])
    )
    yield from section("Decisions", _decisions(summary))
    yield from section("Routes", _ways(summary["ways"]))
    marks = (line for item in summary["thresholds"].items() for line in _thresholds(*item))
    yield from section("Score thresholds at the end", marks)
    yield from section("Measurement", _measurement(summary))


def _requests(summary: Mapping[str, Any]) -> Iterator[str]:
    requests = summary["requests"]
    counts = (f"{requests[name]} {name}" for name in ("sent", "served", "failed", "dropped"))
    yield from labelled("requests", [", ".join(counts)])
    yield from labelled("failed", _failures(summary))
    attained = summary["slo_attainment"]
    if attained is not None:
        yield from labelled("SLO met", [f"{attained:.1%}{_least(summary['models'])}"])
    else:
        yield from labelled("SLO met", ["unknown" if requests["sent"] else "no request was sent"])
    yield from labelled("run", [f"{summary['wall_s']:.0f} s at speed {summary['speed']:g}"])
    yield from labelled("trace", [*_early(summary), *_gaps(summary)])


def _least(models: Mapping[str, Any]) -> str:
    """The model with the lowest share, if there are several models."""
    shares = {name: row.get("slo_attainment") or 0.0 for name, row in models.items()}
    if len(shares) < 2:
        return ""
    least = min(shares, key=lambda name: shares[name])
    return f"; least {shares[least]:.1%} ({least})"


def _early(summary: Mapping[str, Any]) -> list[str]:
    """The reason why the trace was not sent to its end, as text."""
    sent, total = summary["requests"]["sent"], summary["trace"]["requests"]
    why = {
        "interrupted": "it was interrupted",
        "time given": "the time of --for was over",
        "load lost": "the load generator was lost",
    }.get(summary["ended"])
    if why is None:
        return []
    if not sent:
        return [f"no request was sent: {why} before the first fleet was ready"]
    return [f"{sent} of its {total} requests were sent: {why}"]


def _gaps(summary: Mapping[str, Any]) -> list[str]:
    """Gaps without requests in the trace, in time of the trace."""
    gaps = [
        f"{clock(start * 1000)} to {clock(end * 1000)}" for start, end in summary["trace"]["gaps_s"]
    ]
    more = f" and {len(gaps) - _MOST_GAPS} more" if len(gaps) > _MOST_GAPS else ""
    return [f"it has no requests from {', '.join(gaps[:_MOST_GAPS])}{more}"] if gaps else []


def _failures(summary: Mapping[str, Any]) -> list[str]:
    """The reasons of failed requests with their counts."""
    failed, reasons = summary["requests"]["failed"], summary["failures"]
    if failed and not reasons:
        return [f"{failed}: the load generator ended before it reported why"]
    return [f"{count}: {why}" for why, count in reasons.items()]


def _models(models: Mapping[str, Any]) -> Iterator[str]:
    """Latencies of each model as median, 95th and 99th percentile."""
    if not models:
        return
    title = ("model", "requests", "TTFT p50/p95/p99", "TPOT p50/p95/p99", "SLO met")
    rows = [
        (
            model,
            str(row["requests"]),
            _quantiles(row["ttft_ms"]),
            _quantiles(row["tpot_ms"]),
            _share(row.get("slo_attainment")),
        )
        for model, row in models.items()
    ]
    yield from columns([title, *rows], 4)


def _cost(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = [("this run", f"{summary['cost_usd']:.2f} USD", _met(summary))]
    rows += [
        (f"{one['policy']}, simulated", f"{one['usd']:.2f} USD", _met(one))
        for one in summary["simulated"]
    ]
    for other in summary["otherwise"]:
        name = f"{other['what']} ({other['gpu']})" if "gpu" in other else other["what"]
        short = f"serves {1.0 - other['unserved']:.0%}" if other["unserved"] >= 0.005 else ""
        rows.append((name, f"{other['usd']:.2f} USD", short))
    yield from columns(rows)
    gpus = ", ".join(f"{hours:.2f} {name}" for name, hours in summary["gpu_hours"].items())
    yield from labelled("GPU hours", [gpus or "none"])
    yield from labelled("policies", [*policy_lines(summary)])
    yield from labelled("why", saving_lines(summary))


def _met(result: Mapping[str, Any]) -> str:
    """The share of requests within the SLO, with that of the worst model if it is known."""
    share = result["slo_attainment"]
    if share is None:
        return ""
    least = f", least {result['least']:.1%}" if "least" in result else ""
    return f"SLO met {share:.1%}{least}"


def _decisions(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (str(count), kind, _DECISIONS.get(kind, "")) for kind, count in summary["decisions"].items()
    ]
    yield from columns(rows)
    if summary["reaction_s"]:
        worst = max(summary["reaction_s"])
        count = several(len(summary["reaction_s"]), "addition")
        yield f"  slowest of {count}: decided {worst:.1f} s after demand exceeded capacity"


def _ways(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The routes of each kind of request: planned and served shares."""
    if rows:
        title = ("kind", "way", "requests", "planned", "served")
        cells = [
            (
                f"{row['model']}/{row['kind']}",
                _clipped(row["way"]),
                str(row["requests"]),
                f"{row['planned']:.1%}",
                f"{row['served']:.1%}",
            )
            for row in rows
        ]
        yield from columns([title, *cells], 3)


def _clipped(way: str) -> str:
    """A route name that leaves room for the other columns."""
    return way if len(way) <= _MOST_WAY else way[: _MOST_WAY - 1] + "…"


def _thresholds(name: str, marks: Sequence[float | None]) -> Iterator[str]:
    texts = ", ".join("none" if mark is None else f"{mark:.4g}" for mark in marks)
    yield from labelled(name, [texts])


def _measurement(summary: Mapping[str, Any]) -> Iterator[str]:
    """How far the run itself changed its latencies, in real time."""
    late, overhead = summary["replay_late_ms"], summary["overhead_ms"]
    yield from labelled("load", [f"sent late by {_ms(late['p50'])} p50, {_ms(late['p99'])} p99"])
    yield from labelled("overhead", [f"{_ms(overhead['p50'])} p50, {_ms(overhead['p99'])} p99"])
    if not summary["latency_judged"]:
        speed = f"{summary['speed']:g}"
        yield from labelled(
            "note",
            [
                f"speed {speed} multiplies the overhead in the latencies by {speed}; judge "
                f"latencies at speed {JUDGED_UP_TO_SPEED:g} or less"
            ],
        )


def _quantiles(values: Mapping[str, float | None]) -> str:
    return "/".join(_plain(values.get(q)) for q in ("p50", "p95", "p99")) + " ms"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms"
