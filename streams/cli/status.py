"""`shoal status`: the leader, the age of the data, and the state of every model."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from autoscaler.domain.condition_level import Level
from autoscaler.explain.change_texts import canary_figures
from streams import text_layout
from streams.cli.controller_client import add_url, status
from streams.cli.json_output import show_json
from streams.cli.time_arguments import clock_words
from streams.files.user_errors import UserError
from streams.plain_text import age_words, several
from streams.text_layout import Line, columns, labelled, section, wrapped

_MOST_ADAPTERS = 10
_WATCH_S = 2.0
_CENT = 0.005
_COLUMNS = ("model", "ready", "req/s", "TTFT p95", "TPOT p95", "SLO met", "USD/h")


def add_parser(subparsers: Any) -> None:
    """Add `status` to the command line."""
    parser = subparsers.add_parser(
        "status",
        help="show who leads, the age of the data, and every model",
        description="Shows the state of a running controller. A standby answers for itself. "
        "Exit code 1: the controller is not well, or a model breaks its promise.",
    )
    add_url(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--watch", action="store_true", help="show it every 2 s until Ctrl-C")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit code 0: the controller is well, and no model breaks its promise; 1: it answers, but one
    of both is not so."""
    if args.watch:
        text_layout.watch(lambda: _lines_now(args.url), _WATCH_S)
    found = status(args.url)
    if args.json:
        show_json(found)
    else:
        text_layout.show([], lines(found))
    is_broken = found.get("verdict", {}).get(str(Level.BROKEN), 0) > 0
    return 1 if found.get("unhealthy") or is_broken else 0


def _lines_now(url: str) -> list[Line]:
    """The lines of the status, or the error if no controller answers."""
    try:
        return [*lines(status(url))]
    except UserError as error:
        return [*wrapped(str(error))]


def lines(found: Mapping[str, Any]) -> Iterator[Line]:
    """The lines of the status. A standby controller reports only itself."""
    yield from labelled("controller", [_controller(found)])
    if found.get("unhealthy"):
        yield from labelled("NOT WELL", [found["unhealthy"]])
    if found.get("decision_log", {}).get("fault"):
        yield from labelled("LOG", [log_fault(found["decision_log"])])
    if not found["leads"]:
        return
    yield from labelled("data", ["; ".join(_data(found))])
    if found["usd_per_h"] is not None:
        yield from labelled("cost", [_cost(found)])
    if "verdict" in found:  # older controllers do not report it
        yield from labelled("verdict", [verdict_text(found["verdict"])])
    held = [f"{name.rsplit('/', 1)[0]}: {words}" for name, words in found["held"].items()]
    held += [
        f"{model}: the last declaration cannot be used, so the previous one stays in force: {why}"
        for model, why in found.get("refused", {}).items()
    ]
    yield from section("Held", (line for one in held for line in wrapped(one)))
    models = sorted(found["models"], key=lambda one: -Level(one.get("level", Level.OK)).urgency)
    yield from section("Models", _models(models))
    failed = [
        f"{one['model']} at {clock_words(one['at_ms'])}: {one['reason']}"
        for one in found.get("failed_starts", ())  # older controllers do not report them
    ]
    yield from section("Failed starts", (line for one in failed for line in wrapped(one)))
    waits = [
        f"{one['model']} on {one['node']}: {one['reason']} ({one['code']})"
        for one in found.get("waits", ())
    ]
    yield from section("Waiting starts", (line for one in waits for line in wrapped(one)))
    faults = [fault_line(one) for one in found.get("node_faults", ())]
    yield from section("Faults", (line for one in faults for line in wrapped(one)))
    rollouts = [
        f"{one['model']}: {rollout_text(one['rollout'])}"
        for one in found["models"]
        if one.get("rollout")
    ]
    yield from section("Rollouts", (line for one in rollouts for line in wrapped(one)))
    adapters = [adapters_line(one) for one in found["models"] if one.get("adapters_req_per_s")]
    yield from section("LoRA adapters", (line for one in adapters for line in wrapped(one)))
    caches = [
        f"{one['model']}: {one['kv_cache']}" for one in found["models"] if one.get("kv_cache")
    ]
    yield from section("KV cache", (line for one in caches for line in wrapped(one)))
    spanning = [gang_line(gang) for gang in found.get("gangs", ())]
    yield from section("Over several nodes", (line for one in spanning for line in wrapped(one)))
    services = [service_line(service) for service in found.get("services", ())]
    yield from section("Routes", (line for one in services for line in wrapped(one)))


def verdict_text(counts: Mapping[str, int]) -> str:
    """Number of models by level, e.g. "1 broken, 2 at risk, 97 ok"."""
    shown = [f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    return ", ".join(shown) or "no model yet"


def log_fault(log: Mapping[str, Any]) -> str:
    """Text about a decision log that cannot be written."""
    return f"the decision log misses {several(log['lost'], 'tick')}: {log['fault']}"


def _cost(found: Mapping[str, Any]) -> str:
    """The bill of the assigned nodes. The models' shares may exceed it by servers that Shoal did
    not start."""
    bill = found["usd_per_h"]
    others = sum(model["usd_per_h"] for model in found["models"]) - bill
    if others < _CENT or not any(model.get("unmanaged") for model in found["models"]):
        return f"{bill:.2f} USD/h"
    return (
        f"{bill:.2f} USD/h for nodes that Shoal assigned, {others:.2f} USD/h for servers that it "
        "did not start"
    )


def _models(models: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One row per model; a long state stands in a line of its own."""
    if not models:
        return
    rows = [_COLUMNS, *map(_row, models)]
    table = list(columns(rows, 6))
    states = ["state", *(model["word"] for model in models)]
    width = max(map(len, table))
    for line, state in zip(table, states, strict=True):
        if width + 2 + len(state) <= text_layout.WIDTH:
            yield f"{line.ljust(width)}  {state}"
        else:
            yield line
            yield from textwrap.wrap(
                state, text_layout.WIDTH, initial_indent="    ", subsequent_indent="    "
            )


def adapters_line(model: Mapping[str, Any]) -> str:
    """Text on the demand of a model by LoRA adapter, highest first."""
    rates = sorted(model["adapters_req_per_s"].items(), key=lambda one: (-one[1], one[0]))
    shown = ", ".join(f"{name} {rate:.1f}" for name, rate in rates[:_MOST_ADAPTERS])
    rest = f", and {len(rates) - _MOST_ADAPTERS} more" if len(rates) > _MOST_ADAPTERS else ""
    return f"{model['model']} by adapter, req/s: {shown}{rest}"


def fault_line(fault: Mapping[str, Any]) -> str:
    """Text about a fault, and the nodes that have it."""
    first, *others = fault["nodes"]
    more = f" and {several(len(others), 'other node')}" if others else ""
    return f"{first}{more}: {fault['fault']}"


def rollout_text(rollout: Mapping[str, Any]) -> str:
    """The state of one rollout as text."""
    counts = f"{rollout['done']} of {rollout['total']} combos run {rollout['engine']}"
    ago = age_words(rollout["since_s"])
    why = f": {rollout['why']}" if rollout["why"] else ""
    if rollout["state"] == "taken back":
        return f"{rollout['former']} was taken back {ago} ago{why}; {counts}"
    if rollout["state"] == "asks":
        return f"waits for an approval since {ago}; {counts}"
    waves = f"wave {rollout['waves']}, begun {ago} ago"
    canary = f"; {canary_text(rollout['canary'])}" if rollout.get("canary") else ""
    return f"{rollout['state']}: {counts}; {waves}{canary}{why}"


def canary_text(canary: Mapping[str, Any]) -> str:
    """The comparison of a canary as text: figures, verdicts and evidence."""
    parts = [
        f"{canary_figures(one['property'], one['new'], one['former'])} ({one['verdict']}: worse in "
        f"{one['worse']} of {one['worse_of']}, fit in {one['fit']} of {one['fit_of']})"
        for one in canary["properties"]
    ]
    answers = f"canary after {several(canary['answers'], 'answer')}"
    return f"{answers}: {', '.join(parts)}; continues in {age_words(canary['remaining_s'])} at most"


def gang_line(gang: Mapping[str, Any]) -> str:
    """Text about an instance over several nodes: its nodes by rank."""
    ranks = []
    for rank in gang["ranks"]:
        reason = f" ({rank['reason']})" if rank["reason"] else ""
        state = rank["state"] or "not reported yet"
        holds = f"{rank['gpus']} x {rank['gpu']}, {rank['layers']} layers"
        ranks.append(f"{rank['node']} {holds}, {state}{reason}")
    return f"{gang['model']} over {len(ranks)} nodes: " + "; ".join(ranks)


def service_line(service: Mapping[str, Any]) -> str:
    """Text about a service of several models: each model's share of requests, and the quality."""
    name = service["name"]
    if not service["thresholds"]:
        return f"{name}: no thresholds yet"
    planned = service["planned_shares"] or service["shares"]
    shares = ", ".join(
        f"{model} {now:.1%}" + ("" if abs(now - then) < 5e-4 else f" (planned {then:.1%})")
        for model, now, then in zip(service["models"], service["shares"], planned, strict=True)
    )
    parts = [shares, f"thresholds {service['thresholds']}"]
    if service["planned_thresholds"] != service["thresholds"]:
        parts[-1] += f" (soon {service['planned_thresholds']})"
    quality = f"quality {service['quality']:.4g}"
    if service["planned_quality"] is not None:
        quality += f", planned {service['planned_quality']:.4g}"
    parts.append(f"{quality}, at least {service['at_least']:g}")
    parts.append(f"{service['fallbacks']} of the last {service['served']} fell back")
    rate = service["req_per_s"]
    return f"{name}{'' if rate is None else f' {rate:.1f} req/s'}: " + "; ".join(parts)


def _controller(found: Mapping[str, Any]) -> str:
    if not found["leads"]:
        return f"{found['controller']} stands by; leader: {found['leader'] or 'not known'}"
    config = f"config {found['config'] or 'not known'}"
    if not found["modes"]:
        return f"{found['controller']} leads, no decision yet; {config}"
    decided = f"last decision {age_words(found['tick_age_s'])} ago"
    return f"{found['controller']} leads, {decided}; mode {'/'.join(found['modes'])}; {config}"


def _data(found: Mapping[str, Any]) -> Iterator[str]:
    ages = [m["telemetry_age_s"] for m in found["models"] if m["telemetry_age_s"] is not None]
    yield f"telemetry {age_words(max(ages))} old" if ages else "no telemetry yet"
    for kind, pools in found["supply_age_s"].items():
        yield f"{kind} {age_words(max(pools.values()))} old" if pools else f"{kind} as declared"
    for topic, lag_ms in found.get("lag_ms", {}).items():
        yield f"{topic} read {age_words(lag_ms / 1000.0)} late"
    if late_s := found.get("window_workers_late_s"):
        yield f"window workers late for {age_words(late_s)}: the controller merges telemetry"
    yield f"{found['writes']} records written"


def _row(model: Mapping[str, Any]) -> tuple[str, ...]:
    demand, met = model["demand_req_per_s"], model["attained"]
    return (
        model["model"],
        f"{model['ready']}/{model['wanted']}",
        "-" if demand is None else f"{demand:.1f}",
        f"{_s(model['ttft_p95_ms'])}/{_s(model['ttft_limit_ms'])} s",
        "-"
        if model.get("pooling")
        else f"{_ms(model['tpot_p95_ms'])}/{_ms(model['tpot_limit_ms'])} ms",
        "-" if met is None else f"{met:.1%}",
        f"{model['usd_per_h']:.2f}",
    )


def _s(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1000.0:.1f}"


def _ms(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms:.0f}"
