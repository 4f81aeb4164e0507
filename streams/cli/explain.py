"""`shoal explain MODEL`: the last decision on a model, its reasons, the limits and their remedies.

For further reasons, this process solves the controller's last
planning request again; the controller is not involved.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from autoscaler.explain.combo_labels import change_words
from autoscaler.explain.explanation import ModelReasons, Relief
from streams import text_layout
from streams.cli.controller_client import add_url, explained
from streams.cli.json_output import show_json
from streams.cli.measure import measuring_words
from streams.cli.time_arguments import clock_words
from streams.plain_text import quantity
from streams.solver.plan_reasons import planned_again
from streams.text_layout import Line, labelled, section, wrapped
from topics.reason_codes import ReasonCode

_QUIET = ("hold", "rebuilt")
_VISIBLE_REQ_PER_S = 0.005
_ENDS = {
    ReasonCode.PROPOSAL_EXPIRED,
    ReasonCode.PROPOSAL_WITHDRAWN,
    ReasonCode.PROPOSAL_REJECTED,
    ReasonCode.PROPOSAL_DROPPED,
}
"""The ends of a proposal that changed no instance."""


def add_parser(subparsers: Any) -> None:
    """Add `explain` to the command line."""
    parser = subparsers.add_parser(
        "explain",
        help="explain the last decision on a model",
        description="Shows the last decision on a model, its demand, the limits, rejected "
        "alternatives, and changes that would help. Nothing is changed.",
    )
    parser.add_argument("model")
    add_url(parser)
    parser.add_argument(
        "--quick", action="store_true", help="leave out the parts that need a new plan"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
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
    text_layout.show([], lines(found, reasons))
    return 0


def lines(found: Mapping[str, Any], reasons: ModelReasons | None) -> Iterator[Line]:
    """The last decision, the present state, the reasons for the capacity, and the guards."""
    now = found["standing"]
    yield from _last_decision(found)
    state = [("demand", _demand(found)), ("fleet", _capacity(now)), ("latency", _latency(now))]
    if found.get("sizing"):  # older controllers do not report it
        state.insert(1, ("sizing", _sizing(found["sizing"])))
    if now.get("prefix_hit") or now.get("prefix_hit_measured"):
        state.append(("cached", _cached(now)))
    if now.get("uncertain"):  # older controllers do not report it
        state.append(("uncertain", now["uncertain"]))
    if now.get("kv_cache"):  # older controllers do not report it
        state.append(("KV cache", now["kv_cache"]))
    yield from section("Now", (line for label, text in state for line in labelled(label, [text])))
    if reasons is not None:
        yield from section("Capacity", _reasons(reasons))
    guards = (line for guard in found["guards"] for line in wrapped(guard))
    yield from section("Limits on changes", guards)
    if now["proposal"]:
        yield ""
        yield f"Proposal #{now['proposal']} waits: shoal approve {now['proposal']}"


def _last_decision(found: Mapping[str, Any]) -> Iterator[Line]:
    """The last decision that changed something or says why not, and the answer to a proposal."""
    now = found["standing"]
    own = [one for one in found["decisions"] if one["model"] == now["model"]]
    telling = [one for one in own if one["kind"] not in _QUIET] or own
    if not telling:
        yield f"{now['model']}: no decision yet"
        return
    last = telling[-1]
    yield from wrapped(_decision(last, now["proposal"]), indent="")
    yield from labelled("why", [last["reason"]])
    later = [one for one in own if one["number"] > last["number"] and _ENDS & {*_codes(one)}]
    yield from labelled("answer", [one["reason"] for one in later])


def _reasons(reasons: ModelReasons) -> Iterator[str]:
    yield from labelled("limited by", [", ".join(reasons.bound_by)] if reasons.bound_by else [])
    yield from labelled("cached", [reasons.cached] if reasons.cached else [])
    yield from labelled("rejected", [f"{one.what}: {one.why}" for one in reasons.rejected[:3]])
    yield from labelled("would help", [_relief(relief) for relief in reasons.relief[:2]])
    measuring = [f"{measuring_words(one)}: shoal profile measure" for one in reasons.measuring[:1]]
    yield from labelled("measuring", measuring)
    if reasons.uncertain:
        yield from labelled("uncertain", ["capacity is estimated, not measured on these GPUs"])


def _relief(relief: Relief) -> str:
    if relief.serves_req_per_s > 0.0:
        return f"{relief.what}: serves {quantity(relief.serves_req_per_s)} req/s more"
    return f"{relief.what}: {-relief.saves_usd_per_h:+.2f} USD/h"


def _codes(decision: Mapping[str, Any]) -> tuple[str, ...]:
    """The reason codes of a decision. Decisions of older controllers have none."""
    return tuple(decision.get("codes", ()))


def _show_route(found: Mapping[str, Any], as_json: bool) -> int:
    if as_json:
        show_json(found)
        return 0
    text_layout.show([], route_lines(found))
    return 0


def route_lines(found: Mapping[str, Any]) -> Iterator[Line]:
    """Lines about a service that routes over several models."""
    now, present = found["route"], found["present"]
    if found["decisions"]:
        last = found["decisions"][-1]
        title = f"#{last['number']} {clock_words(last['at_ms'])} {now['name']}: {last['reason']}"
        yield from wrapped(title)
    if not now["thresholds"]:
        yield f"{now['name']}: no thresholds yet; the first full plan chooses them"
        return
    shares = ", ".join(
        f"{model} {share:.1%}" for model, share in zip(now["models"], now["shares"], strict=True)
    )
    yield from labelled("in force", [f"thresholds {now['thresholds']}: {shares}"])
    if now["planned_thresholds"] != now["thresholds"]:
        planned = f"thresholds {now['planned_thresholds']}, once the fleet for them is ready"
        yield from labelled("planned", [planned])
    seen = f"{now['requests']} requests" if now["requests"] else "the declared sample"
    quality = f"{now['quality']:.4g} by {seen}; required: at least {now['at_least']:g}"
    yield from labelled("quality", [quality])
    if present is not None:
        rate = f"{quantity(present['req_per_s'])} req/s; {now['unscored']:.1%} without a score"
        yield from labelled("demand", [rate])
    if now["bound_by"]:
        yield from labelled("limited by", [now["bound_by"]])


def _decision(one: Mapping[str, Any], waits: int) -> str:
    change = change_words((name, count) for name, count in one["change"]) or one["kind"]
    how = "applied" if one["applied"] else "recommended, not applied"
    if one["expires_ms"]:
        how = f"proposed, waits for approval until {clock_words(one['expires_ms'])}"
        how = how if waits == one["number"] else "proposed, no longer open"
    if one["kind"] == "infeasible":
        how = "cannot be met"
    return f"#{one['number']} {clock_words(one['at_ms'])} {one['model']}: {change}, {how}"


def _demand(found: Mapping[str, Any]) -> str:
    now, present = found["standing"], found["present"]
    age_s = now["telemetry_age_s"]
    age = "no telemetry yet" if age_s is None else f"telemetry {age_s:.0f} s old"
    if present is None:
        return age
    low, high = quantity(present["low"]), quantity(present["high"])
    rate = f"{quantity(present['req_per_s'])} req/s over {present['s']:.0f} s"
    return f"{rate} (interval {low} to {high}); {age}"


def _sizing(found: Mapping[str, Any]) -> str:
    """The way from the present rate to the needed capacity, as a sum that a person can check."""
    target, needed = quantity(found["target_req_per_s"]), quantity(found["needed_req_per_s"])
    parts = []
    if found["present_req_per_s"] is not None:
        parts.append(f"{quantity(found['present_req_per_s'])} req/s now")
        headroom = found["headroom_req_per_s"]
        if headroom <= -_VISIBLE_REQ_PER_S:
            parts[-1] += f"; {target} target (more is not proven yet)"
        else:
            parts += [f"+ {quantity(headroom)}"] if headroom >= _VISIBLE_REQ_PER_S else []
            parts.append(f"= {target} target")
    else:
        parts.append(f"{target} req/s target")
    parts.append(f"/ {found['utilization']:g} utilization")
    if found["derate"] != 1.0:
        corrected = "derating" if found["derate"] < 1.0 else "learnt capacity"
        parts.append(f"/ {found['derate']:.2f} {corrected}")
    cause = f"; target: {found['cause']}" if found["cause"] else ""
    return f"{' '.join(parts)} = {needed} req/s of capacity{cause}"


def _cached(now: Mapping[str, Any]) -> str:
    """The share of prompt tokens from prefix caches: planned with, and measured."""
    measured = now["prefix_hit_measured"]
    seen = "not measured, as declared" if measured is None else f"{measured:.0%} measured"
    return f"{now['prefix_hit']:.0%} of prompt tokens planned with; {seen}"


def _capacity(now: Mapping[str, Any]) -> str:
    kinds = ", ".join(
        f"{count} in {region}/{pool}" + ("" if role == "aggregated" else f" {role}")
        for region, pool, role, count in now["desired"]
    )
    ready, wanted = quantity(now["ready_req_per_s"]), quantity(now["wanted_req_per_s"])
    return (
        f"{now['ready']} of {now['wanted']} {_nouns(now)} ready ({kinds or 'none'}); "
        f"capacity {ready} of {wanted} req/s; {now['usd_per_h']:.2f} USD/h"
    )


def _nouns(now: Mapping[str, Any]) -> str:
    """The unit that is counted: instances, or groups if prefill and decode are apart."""
    apart = any(role != "aggregated" for _, _, role, _ in now["desired"])
    return "groups" if apart else "instances"


def _latency(now: Mapping[str, Any]) -> str:
    met = "" if now["attained"] is None else f"; {now['attained']:.1%} met the SLO"
    if now["ttft_p95_ms"] is None:
        return f"no completed request lately{met}"
    if now.get("pooling"):
        whole_s, limit_s = now["ttft_p95_ms"] / 1000, now["ttft_limit_ms"] / 1000
        return f"whole answer p95 {whole_s:.2f} s (limit {limit_s:.2g} s){met}"
    tpot = "-" if now["tpot_p95_ms"] is None else f"{now['tpot_p95_ms']:.0f} ms"
    return (
        f"TTFT p95 {now['ttft_p95_ms'] / 1000:.2f} s (limit {now['ttft_limit_ms'] / 1000:.2g} s), "
        f"TPOT p95 {tpot} (limit {now['tpot_limit_ms']:.0f} ms){met}"
    )
