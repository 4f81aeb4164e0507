"""`shoal plan` for a service of several models: each model's share of requests, and the fleet.

`autoscaler.modes.quality.answer_quality` makes the splits of requests among models. The planner
makes a fleet for each split.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import orjson
from rich.progress import track

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.workload import Demand
from autoscaler.explain.plan_explanation import explain
from autoscaler.explain.quality_texts import shares, thresholds
from autoscaler.explain.reason_texts import text, text_with_subject
from autoscaler.modes.quality.answer_quality import (
    PricedSplit,
    Split,
    cheapest_split,
    pareto_front,
    price_splits,
    splits,
)
from autoscaler.modes.quality.route_choice import binding_reason
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.simulation.strategies.registry import strategy
from streams.cli import plan_json, plan_verify, plan_view
from streams.cli.json_output import show_json
from streams.files.shoal_yaml import Config
from streams.files.user_errors import UserError
from streams.html_text import escaped
from streams.solver.plan_verification import RecordingSolver, verify_plan
from streams.terminal_console import SafeConsole
from streams.tools.backtest.html_report import STYLE
from streams.tools.backtest.svg_charts import Series, line_chart

Fleet = tuple[PlanningProblem, Plan, RecordingSolver]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of quality mode."""
    group = parser.add_argument_group(
        "quality mode", "for a service that stands for several models (docs/how-to/quality.md)"
    )
    group.add_argument(
        "--pareto", type=Path, metavar="FILE", help="write cost against quality here, as HTML"
    )


def run(args: argparse.Namespace, config: Config, demands: Mapping[str, Demand]) -> int:
    """Plan a fleet for every split, choose the cheapest split of sufficient quality, and print
    it."""
    cluster = config.cluster
    (route,) = cluster.routes
    own = {
        m: d if cluster.service(m).req_per_s or args.demand else replace(d, req_per_s=0.0)
        for m, d in demands.items()
    }
    profile = cluster_profile(cluster)
    started_s = time.monotonic()

    def price(split: Split) -> tuple[Fleet, float, bool]:
        fleet = _plan(args, cluster, loaded(route, split, own), profile)
        return fleet, fleet[1].cost_usd_per_h, bool(fleet[1].shortfall_req_per_s)

    found = splits(route)
    told = track(
        found,
        "plans",
        disable=args.json or not sys.stderr.isatty(),
        transient=True,
        console=SafeConsole(stderr=True),
    )
    options = list(price_splits(list(told), price))
    chosen = cheapest_split(route, options)
    wall_s = time.monotonic() - started_s
    if args.pareto:
        args.pareto.write_text(page(route, options, chosen), encoding="utf-8")
    problem, made, recorded = chosen.fleet
    checks = verify_plan(problem, made, recorded, args.time_limit) if args.verify else ()
    reasons = None if args.no_explain else explain(problem, made, profile, strategy(args.strategy))
    if args.json:
        body = orjson.loads(
            plan_json.encode(problem, made, reasons, config.mode, wall_s, profile, None, checks)
        )
        value = {"routing": _split_json(route, chosen), "plan": body}
        value["front"] = [_split_json(route, option) for option in pareto_front(options)]
        show_json(value)
        return plan_verify.exit_code(checks)
    print(_sentence(route, chosen.split))
    print(f"limited by  {text(binding_reason(route, chosen, options))}")
    plan_view.show(problem, made, reasons, config.mode, profile, "the cheapest split")
    print()
    print("quality   USD/h  " + "  ".join(f"{m:>8}" for m in route.models))
    for option in _few(pareto_front(options)):
        marked = "*" if option is chosen else " "
        shares = "  ".join(f"{f:8.1%}" for f in option.split.fractions)
        print(f"{option.split.quality:7.4g} {option.usd_per_h:7.2f}{marked} {shares}")
    if args.pareto:
        print(f"front of {len(pareto_front(options))} plans: {args.pareto}")
    plan_verify.show(checks)
    return plan_verify.exit_code(checks)


def loaded(route: QualityRoute, split: Split, own: Mapping[str, Demand]) -> dict[str, Demand]:
    """Demand of every model: its own demand plus its share of the demand of the service `route`."""
    made = dict(own)
    for model, fraction in zip(route.models, split.fractions, strict=True):
        extra = fraction * route.req_per_s
        made[model] = replace(own[model], req_per_s=own[model].req_per_s + extra)
    return made


def page(route: QualityRoute, options: list[PricedSplit[Fleet]], chosen: PricedSplit[Fleet]) -> str:
    """The trade-off of cost and quality as one HTML page: chart and table."""
    best = pareto_front(options)
    mark = (chosen.split.quality, chosen.usd_per_h)
    lines = [
        Series("front", tuple((o.split.quality, o.usd_per_h) for o in best), mark),
    ]
    for i, model in enumerate(route.models):
        alone = [
            o for o in options if math.isclose(o.split.fractions[i], 1.0) and not o.underserved
        ]
        lines += [Series(f"{model} alone", ((o.split.quality, o.usd_per_h),)) for o in alone[:1]]
    heads = "".join(f"<th>{escaped(m)}</th>" for m in route.models)
    rows = "".join(
        f"<tr{' class=ours' if o is chosen else ''}><td>{o.split.quality:.4g}</td>"
        f"<td>{o.usd_per_h:.2f}</td>"
        + "".join(f"<td>{f:.1%}</td>" for f in o.split.fractions)
        + "</tr>"
        for o in best
    )
    title = f"Quality and cost of {escaped(route.name)}"
    return (
        f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title>"
        f"<style>{STYLE}</style><h1>{title}</h1><p>{escaped(_sentence(route, chosen.split))}</p>"
        + line_chart(lines, "mean quality of answers", "USD per hour")
        + f"<table><tr><th>quality</th><th>USD/h</th>{heads}</tr>{rows}</table>"
        f"<p class='small'>Each row is a plan for {route.req_per_s:g} req/s; no other split of "
        f"{len(options)} is better in one and as good in the other. Quality is the mean over "
        f"{route.sampled} sampled requests.</p></html>\n"
    )


def _plan(
    args: argparse.Namespace, cluster: Cluster, demands: Mapping[str, Demand], profile: Profile
) -> Fleet:
    started_s = time.monotonic()
    options = PlanOptions(
        gap=args.gap,
        time_limit_s=args.time_limit,
        elapsed_s=lambda: time.monotonic() - started_s,
    )
    problem = make_problem(cluster, demands, profile, options=options)
    recorded = RecordingSolver()
    made = (ShoalStrategy(recorded) if args.verify else strategy(args.strategy)).solve(problem)
    if made.status is PlanStatus.FAILED:
        raise UserError(f"no plan: {text_with_subject(made.notes[-1])}")
    return problem, made, recorded


def _sentence(route: QualityRoute, split: Split) -> str:
    parts = shares(route.models, split.fractions)
    marks = thresholds(route.thresholds(split.cuts))
    return (
        f"{route.name}: {parts} (score thresholds {marks}); mean quality {split.quality:.4g}, "
        f"required: at least {route.at_least:g}"
    )


def _split_json(route: QualityRoute, option: PricedSplit[Fleet]) -> dict[str, object]:
    thresholds = [mark if math.isfinite(mark) else None for mark in option.split.thresholds]
    return {
        "service": route.name,
        "models": list(route.models),
        "fractions": list(option.split.fractions),
        "thresholds": thresholds,
        "quality": option.split.quality,
        "cost_usd_per_h": option.usd_per_h,
        "gap": option.fleet[1].gap,
    }


def _few(options: tuple[PricedSplit[Fleet], ...], most: int = 12) -> list[PricedSplit[Fleet]]:
    """At most `most` of `options`, evenly spaced, with the first and the last one."""
    if len(options) <= most:
        return list(options)
    return [options[round(i * (len(options) - 1) / (most - 1))] for i in range(most)]
