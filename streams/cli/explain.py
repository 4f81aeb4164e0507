"""`shoal explain MODEL`: the last decision on a model, its reasons, the limits and their remedies.

The output has at most twelve lines. For further reasons, this process solves the controller's last
planning request again; the controller is not involved.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from autoscaler.explain.combo_labels import change_words
from autoscaler.explain.explanation import ModelReasons
from streams.cli.controller_client import add_url, explained
from streams.cli.json_output import show_json
from streams.cli.measure import measuring_words
from streams.cli.time_arguments import clock_words
from streams.plain_text import clipped
from streams.solver.plan_reasons import planned_again
from topics.reason_codes import ReasonCode

_LINES, _WIDTH = 12, 100
_QUIET = ("hold", "rebuilt")
_ENDS = {
    ReasonCode.PROPOSAL_EXPIRED,
    ReasonCode.PROPOSAL_WITHDRAWN,
    ReasonCode.PROPOSAL_REJECTED,
    ReasonCode.PROPOSAL_DROPPED,
}
"""How a proposal ends that changes nothing."""


def add_parser(subparsers: Any) -> None:
    """Add `explain` to the command line."""
    parser = subparsers.add_parser(
        "explain",
        help="the last decision on a model: why, what binds, what would help",
        description="Says why a model has what it has: the last decision, the demand, what binds, "
        "what was rejected and what would relieve it. Nothing is changed.",
    )
    parser.add_argument("model")
    add_url(parser)
    parser.add_argument(
        "--quick", action="store_true", help="leave out what is found by planning again"
    )
    parser.add_argument("--json", action="store_true", help="the same facts under stable names")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Explain and print."""
    found = explained(args.url, args.model)
    if "route" in found:
        return _show_route(found, args.json)
    reasons = None
    if not args.quick and found["request"] is not None:
        reasons = planned_again(found["request"], found["cluster"], args.model)
    if args.json:
        value = {k: v for k, v in found.items() if k not in ("request", "cluster")}
        value["reasons"] = reasons
        show_json(value)
        return 0
    for line in lines(found, reasons):
        print(line)
    return 0


def lines(found: Mapping[str, Any], reasons: ModelReasons | None) -> Iterator[str]:
    """The decision as text: at most twelve lines of at most 100 columns."""
    for number, line in enumerate(_all(found, reasons)):
        if number == _LINES:
            return
        yield clipped(line, _WIDTH)


def _all(found: Mapping[str, Any], reasons: ModelReasons | None) -> Iterator[str]:
    now = found["standing"]
    own = [one for one in found["decisions"] if one["model"] == now["model"]]
    telling = [one for one in own if one["kind"] not in _QUIET] or own
    if telling:
        last = telling[-1]
        yield _decision(last, now["proposal"])
        yield f"why       {last['reason']}"
        later = (one for one in own if one["number"] > last["number"])
        yield from (f"answer    {one['reason']}" for one in later if _ENDS & {*_codes(one)})
    else:
        yield f"{now['model']}: nothing was decided yet"
    yield f"demand    {_demand(found)}"
    yield f"runs      {_capacity(now)}"
    yield f"latency   {_latency(now)}"
    if now.get("uncertain"):  # older controllers do not report it
        yield f"uncertain {now['uncertain']}"
    if reasons is not None:
        yield "bound by  " + "; ".join(reasons.bound_by)
        rejected = "; ".join(f"{one.what} ({one.why})" for one in reasons.rejected[:3])
        if rejected:
            yield f"rejected  {rejected}"
        for relief in reasons.relief[:2]:
            worth = f"{-relief.saves_usd_per_h:+.2f} USD/h"
            if relief.serves_req_per_s > 0.0:
                worth = f"{relief.serves_req_per_s:.3g} req/s more served"
            yield f"relief    {relief.what} -> {worth}"
        for one in reasons.measuring[:1]:
            yield f"measuring {measuring_words(one)}: shoal profile measure"
        if reasons.uncertain:
            yield "uncertain capacity estimated, not measured on these GPUs"
    yield "guard     " + "; ".join(found["guards"])
    if now["proposal"]:
        yield f"proposal  #{now['proposal']} waits: shoal approve {now['proposal']}"


def _codes(decision: Mapping[str, Any]) -> tuple[str, ...]:
    """The reason codes of a decision; none if an older controller made the decision."""
    return tuple(decision.get("codes", ()))


def _show_route(found: Mapping[str, Any], as_json: bool) -> int:
    if as_json:
        show_json(found)
        return 0
    for line in route_lines(found):
        print(clipped(line, _WIDTH))
    return 0


def route_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Lines on a service that stands for several models."""
    now, present = found["route"], found["present"]
    if found["decisions"]:
        last = found["decisions"][-1]
        yield f"#{last['number']} {clock_words(last['at_ms'])} {now['name']}: {last['reason']}"
    if not now["thresholds"]:
        yield f"{now['name']}: no thresholds yet; the first full plan chooses them"
        return
    yield f"in force  thresholds {now['thresholds']}: " + ", ".join(
        f"{model} {share:.1%}" for model, share in zip(now["models"], now["shares"], strict=True)
    )
    if now["planned_thresholds"] != now["thresholds"]:
        yield f"planned   thresholds {now['planned_thresholds']}, once the fleet for them is ready"
    seen = f"{now['requests']} requests" if now["requests"] else "the declared sample"
    yield f"quality   {now['quality']:.4g} by {seen}, at least {now['at_least']:g} is asked for"
    if present is not None:
        yield f"demand    {present['req_per_s']:.3g} req/s; {now['unscored']:.1%} without a score"
    if now["bound_by"]:
        yield f"bound by  {now['bound_by']}"


def _decision(one: Mapping[str, Any], waits: int) -> str:
    change = change_words((name, count) for name, count in one["change"]) or one["kind"]
    how = "applied" if one["applied"] else "recommended, not applied"
    if one["expires_ms"]:
        how = f"proposed, waits for approval until {clock_words(one['expires_ms'])}"
        how = how if waits == one["number"] else "proposed, not open any more"
    if one["kind"] == "infeasible":
        how = "cannot be met"
    return f"#{one['number']} {clock_words(one['at_ms'])} {one['model']}: {change}, {how}"


def _demand(found: Mapping[str, Any]) -> str:
    now, present = found["standing"], found["present"]
    parts = [f"planned for {now['target_req_per_s']:.3g} req/s"]
    if present is not None:
        parts.insert(
            0,
            f"{present['req_per_s']:.3g} req/s ({present['low']:.3g} to {present['high']:.3g}, "
            f"over {present['s']:.0f} s)",
        )
    if now["telemetry_age_s"] is not None:
        parts.append(f"telemetry {now['telemetry_age_s']:.0f} s old")
    else:
        parts.append("no telemetry yet")
    return "; ".join(parts)


def _capacity(now: Mapping[str, Any]) -> str:
    kinds = ", ".join(
        f"{count} in {region}/{pool}" + ("" if role == "aggregated" else f" {role}")
        for region, pool, role, count in now["desired"]
    )
    return (
        f"{now['ready']} of {now['wanted']} ready ({kinds or 'nothing'}); holds "
        f"{now['ready_req_per_s']:.3g} of {now['wanted_req_per_s']:.3g} req/s; "
        f"{now['usd_per_h']:.2f} USD/h"
    )


def _latency(now: Mapping[str, Any]) -> str:
    met = "" if now["attained"] is None else f"; {now['attained']:.1%} met the SLO"
    if now["ttft_p95_ms"] is None:
        return f"no completions lately{met}"
    tpot = "-" if now["tpot_p95_ms"] is None else f"{now['tpot_p95_ms']:.0f}"
    return (
        f"TTFT p95 {now['ttft_p95_ms'] / 1000:.2f} of {now['ttft_limit_ms'] / 1000:.2g} s, "
        f"TPOT p95 {tpot} of {now['tpot_limit_ms']:.0f} ms{met}"
    )
