"""`shoal diff`: show the changes from the running fleet to the plan, for review.

The command plans like `shoal plan` and changes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.validation import finite
from autoscaler.domain.workload import Demand
from autoscaler.explain.combo_labels import several
from autoscaler.explain.reason_texts import text_with_subject
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.cost_attribution import usd_per_h_by_model
from autoscaler.planning.plan import Plan, PlannedCount
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions
from autoscaler.planning.strategies.registry import strategy_for
from autoscaler.planning.time_limits import drain_timeout_s
from autoscaler.rollout.wave_preview import WavePreview, preview_waves
from streams import text_layout
from streams.cli.config_option import add_config
from streams.cli.json_output import encoded
from streams.cli.plan import DECLARED_DEMAND, UNSERVED, default_demand, planned
from streams.cli.plan_view import usd_change
from streams.cli.run_part import bootstrap
from streams.cli.running_fleet import read_running
from streams.files.plan_inputs import load_demand, load_fleet
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.plain_text import age_words, quantity
from streams.terminal import show_json_bytes
from streams.text_layout import Line, columns, section, wrapped
from topics.topic_table import PREFIX


def add_parser(subparsers: Any) -> None:
    """Add `diff` to the command line."""
    parser = subparsers.add_parser(
        "diff",
        help="compare the running fleet with the plan",
        description="Plans for a demand and compares the plan with the running fleet: minus for "
        "removed, plus for added capacity. Nothing is changed. "
        "Exit code 3: the plan leaves demand unserved.",
    )
    add_config(parser)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--fleet",
        type=Path,
        help="YAML or JSON of the current fleet, combo: count; or what plan --json printed",
    )
    source.add_argument(
        "--broker",
        metavar="HOST:PORT",
        help="read the current fleet from here (default: kafka in the file)",
    )
    parser.add_argument(
        "--prefix", default=PREFIX, help=f"prefix of topic names (default {PREFIX})"
    )
    parser.add_argument(
        "--demand",
        type=Path,
        help="as for plan (default: the demand that the running controller last measured, else "
        "the declared workloads)",
    )
    parser.add_argument("--gap", type=float, default=1e-4, metavar="G", help="as for plan (0.0001)")
    parser.add_argument(
        "--time-limit", type=float, default=30.0, metavar="S", help="seconds for the plan (30)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Compare fleet and plan, and print the changes. Exit code 0, or 3 if the plan leaves demand
    unserved.
    """
    finite("--gap", args.gap, 0.0, 1.0)
    finite("--time-limit", args.time_limit, 1e-3, 1e5)
    config = load_config(args.config)
    cluster = config.cluster
    strangers: tuple[str, ...] = ()
    outdated: Mapping[str, int] = {}
    demands, whence = default_demand(cluster), DECLARED_DEMAND
    if args.fleet:
        fleet = load_fleet(args.fleet, cluster)
    else:
        if not args.broker and not config.kafka:
            raise UserError(
                f"{args.config}: names no kafka; name the running fleet with --fleet FILE or "
                "--broker HOST:PORT"
            )
        running = read_running(bootstrap(args, config), args.prefix, cluster)
        fleet, strangers = running.counts, running.strangers
        outdated = running.outdated
        seen = {m: d for m, d in running.demand_req_per_s.items() if m in demands}
        if seen:
            demands = _with_rates(demands, seen)
            whence = "the demand of the controller's last decisions"
    if args.demand:
        demands, whence = load_demand(args.demand, cluster), str(args.demand)
    started_s = time.monotonic()
    options = PlanOptions(args.gap, args.time_limit, lambda: time.monotonic() - started_s)
    profile = cluster_profile(cluster)
    problem, made = planned(cluster, demands, fleet, profile, strategy_for(cluster.policy), options)
    rollouts = _rollouts(problem, made, outdated)
    if args.json:
        show_json_bytes(_json(made, strangers, rollouts))
    else:
        text_layout.show([], lines(problem, made, whence, strangers, rollouts))
    return UNSERVED if made.shortfall_req_per_s else 0


def lines(
    problem: PlanningProblem,
    plan: Plan,
    whence: str,
    strangers: tuple[str, ...] = (),
    rollouts: Mapping[str, WavePreview] = MappingProxyType({}),
) -> Iterator[Line]:
    """One block per model that changes, then the nodes and their cost. whence: where the planned
    demand comes from. rollouts: by model."""
    yield from wrapped(f"Changes from the running fleet to the plan for {whence}", indent="")
    pools = problem.pools()
    before, after = _bills(problem, plan)
    same = []
    for service in problem.cluster.services:
        model = service.model
        targets = plan.targets_of(model)
        if all(target.now == target.count for target in targets):
            if model not in rollouts:
                same.append(f"{model}: {_now(targets, problem)}")
            continue
        usd = usd_change(before.get(model, 0.0), after.get(model, 0.0))
        title = f"{model}: {_capacity(problem, plan, model)}, {usd}"
        yield from section(title, _changes(targets, pools))
    said = (f"{model}: {_rollout_text(one)}" for model, one in rollouts.items())
    yield from section("Rollouts", (line for one in said for line in wrapped(one)))
    yield from section("Unchanged", (line for one in same for line in wrapped(one)))
    yield from section(
        "Rented nodes",
        columns(
            (f"{pool.region}/{pool.name} {pool.market}", f"{node.now} -> {node.count}")
            for node in plan.nodes
            for pool in (pools[node.pool],)
            if pool.market is not Market.OWNED and node.now != node.count
        ),
    )
    yield from section("Cost", [f"  {usd_change(plan.now_usd_per_h, plan.cost_usd_per_h)}"])
    yield from section("Demand that is not served", _unserved(problem, plan))
    notes = [text_with_subject(note) for note in plan.notes]
    if strangers:
        notes.append(f"running, but not declared in this file: {', '.join(strangers)}")
    yield from section("Notes", (line for note in notes for line in wrapped(note)))
    yield ""
    yield "Nothing was changed."


def _changes(targets: tuple[PlannedCount, ...], pools: Mapping[str, Pool]) -> Iterator[str]:
    """Combos that leave (-), that start (+), and that stay."""
    for sign, direction in (("-", -1), ("+", 1)):
        for target in targets:
            change = target.count - target.now
            if change * direction > 0:
                ready = f", ready in about {target.combo.start_s:.0f} s" if direction > 0 else ""
                counts = f" ({target.now} -> {target.count})" if target.now else ""
                yield f"  {sign} {several(abs(change), target.combo, pools)}{ready}{counts}"
    for target in targets:
        if target.now and target.now == target.count:
            yield f"    {several(target.count, target.combo, pools)}, unchanged"


def _rollouts(
    problem: PlanningProblem, plan: Plan, outdated: Mapping[str, int]
) -> dict[str, WavePreview]:
    """The rollout of each model with combos of another version. outdated: these, by combo id."""
    found = {}
    for service in problem.cluster.services:
        targets = plan.targets_of(service.model)
        old = [t.combo for t in targets for _ in range(outdated.get(t.combo.id, 0))]
        if old:
            total = sum(target.now for target in targets)
            drain_s = drain_timeout_s(service, problem.cluster.policy)
            found[service.model] = preview_waves(old, total, service.rollout, drain_s)
    return found


def _rollout_text(rollout: WavePreview) -> str:
    waves = f"{rollout.waves} wave{'' if rollout.waves == 1 else 's'}"
    cost = f", at most {rollout.usd:.2f} USD for replacements" if rollout.usd else ""
    canary = ""
    if rollout.canary_s:
        canary = f"first a canary, compared for at most {age_words(rollout.canary_s)}; "
    return (
        f"{rollout.combos} of {rollout.total} combos run another version; {canary}{waves}, at most "
        f"{age_words(rollout.seconds)} without waits{cost}"
    )


def _unserved(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    for model, missing in plan.shortfall_req_per_s.items():
        demand = quantity(problem.demands[model].req_per_s)
        yield f"  {model}: {quantity(missing)} of {demand} req/s cannot be served"


def _json(plan: Plan, strangers: tuple[str, ...], rollouts: Mapping[str, WavePreview]) -> bytes:
    value = {
        "now_usd_per_h": plan.now_usd_per_h,
        "cost_usd_per_h": plan.cost_usd_per_h,
        "demand_served": not plan.shortfall_req_per_s,
        "shortfall_req_per_s": dict(plan.shortfall_req_per_s),
        "changes": [
            {
                "model": target.combo.model,
                "combo": target.combo.id,
                "now": target.now,
                "proposed": target.count,
                "start_s": target.combo.start_s,
            }
            for target in plan.targets
            if target.now != target.count
        ],
        "nodes": [
            {"pool": node.pool, "now": node.now, "proposed": node.count}
            for node in plan.nodes
            if node.now != node.count
        ],
        "rollouts": [{"model": model, **asdict(one)} for model, one in rollouts.items()],
        "not_of_this_file": strangers,
        "notes": [text_with_subject(note) for note in plan.notes],
        "applied": False,
    }
    return encoded(value)


def _bills(problem: PlanningProblem, plan: Plan) -> tuple[dict[str, float], dict[str, float]]:
    """Each model's cost in USD/h: its share of the nodes rented now, and of the planned nodes."""
    now = {
        pool.id: problem.rented_nodes.get(pool.id, 0) * pool.price_usd_per_h
        for pool in problem.cluster.pools
    }
    then = {node.pool: node.usd_per_h for node in plan.nodes}
    return (
        usd_per_h_by_model([(t.combo, t.now) for t in plan.targets], now, problem.taken_gpus),
        usd_per_h_by_model([(t.combo, t.count) for t in plan.targets], then, problem.taken_gpus),
    )


def _capacity(problem: PlanningProblem, plan: Plan, model: str) -> str:
    now = sum(t.now * t.combo.req_per_s for t in plan.targets_of(model))
    then = plan.capacity_req_per_s.get(model, now)
    demand = problem.demands.get(model)
    needed = f" for {quantity(demand.req_per_s)} req/s" if demand else ""
    return f"capacity {quantity(now)} -> {quantity(then)} req/s{needed}"


def _now(targets: tuple[PlannedCount, ...], problem: PlanningProblem) -> str:
    pools = problem.pools()
    return ", ".join(several(t.now, t.combo, pools) for t in targets if t.now) or "no instance"


def _with_rates(demands: Mapping[str, Demand], rates: Mapping[str, float]) -> dict[str, Demand]:
    return {
        model: replace(demand, req_per_s=rates.get(model, demand.req_per_s))
        for model, demand in demands.items()
    }
