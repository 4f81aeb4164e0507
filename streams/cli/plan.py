"""`shoal plan`: print the best fleet for a demand, its cost and the reasons.

`autoscaler.planning` makes the plan and `plan_view` prints it. The command changes nothing.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import finite
from autoscaler.domain.workload import Demand
from autoscaler.explain.plan_explanation import explain
from autoscaler.explain.reason_texts import text, text_with_subject
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.plan import Plan, PlanStatus, Strategy
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.planning.time_limits import contradictions
from autoscaler.simulation.strategies.registry import STRATEGIES, strategy
from streams.cli import (
    plan_budget,
    plan_components,
    plan_json,
    plan_quality,
    plan_stats,
    plan_verify,
    plan_view,
)
from streams.cli.config_option import add_config
from streams.cli.plan_modes import refuse_ignored
from streams.files.plan_inputs import load_demand, load_fleet
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.solver.plan_verification import RecordingSolver, verify_plan
from streams.terminal import show_json_bytes
from streams.warm_up import warm_plans

DEFAULT_REQ_PER_S = 1.0
DECLARED_DEMAND = f"the declared workloads ({DEFAULT_REQ_PER_S:g} req/s for a model without a rate)"
UNSERVED = 3
"""Exit code of a plan that leaves demand unserved."""


def add_parser(subparsers: Any) -> None:
    """Add `plan` to the command line."""
    parser = subparsers.add_parser(
        "plan",
        help="plan the fleet, with its cost and the reasons",
        description="Plans the whole fleet for a demand, and shows its limits and the changes "
        "that would help. "
        "Nothing is changed. Exit code 3: demand is left unserved.",
    )
    add_config(parser)
    parser.add_argument(
        "--demand",
        type=Path,
        help="YAML or JSON, model: {req_per_s: 14, input_tokens: 1155, output_tokens: 211}; "
        f"left out: the declared workload of every model, {DEFAULT_REQ_PER_S:g} req/s if it "
        "declares no rate",
    )
    parser.add_argument(
        "--fleet",
        type=Path,
        help="YAML or JSON of the current fleet, combo: count, or what plan --json printed; left "
        "out: nothing runs",
    )
    parser.add_argument(
        "--strategy",
        default="shoal",
        choices=list(STRATEGIES),
        help="shoal, or a baseline of the papers to compare with (default shoal)",
    )
    parser.add_argument(
        "--gap", type=float, default=1e-4, metavar="G", help="relative gap to stop at (0.0001)"
    )
    parser.add_argument(
        "--time-limit", type=float, default=30.0, metavar="S", help="seconds for the plan (30)"
    )
    parser.add_argument("--no-explain", action="store_true", help="leave out the reasons")
    parser.add_argument("--stats", action="store_true", help="print each step of the solver")
    plan_verify.add_argument(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    plan_budget.add_arguments(parser)
    plan_quality.add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Plan and print. Exit code 0, 3 if demand is left unserved, 1 if --verify finds a fault.

    UserError and InvalidValue become one line and exit code 2.
    """
    finite("--gap", args.gap, 0.0, 1.0)
    finite("--time-limit", args.time_limit, 1e-3, 1e5)
    config = load_config(args.config)
    refuse_ignored(args, config)
    plan_verify.check_option(args)
    cluster = config.cluster
    if config.graphs:
        return plan_components.run(args, config.graphs, cluster.pools)
    demands = load_demand(args.demand, cluster) if args.demand else default_demand(cluster)
    if cluster.routes:
        return plan_quality.run(args, config, demands)
    fleet = load_fleet(args.fleet, cluster) if args.fleet else {}
    profile = cluster_profile(cluster)
    if plan_budget.is_selected(args, cluster):
        return plan_budget.run(args, cluster, demands, fleet, profile)
    warm_plans(any(service.pipelines != "none" for service in cluster.services))
    started_s = time.monotonic()  # Compilation does not count towards the time limit.
    chosen = strategy(args.strategy)
    stats = plan_stats.Stats(lambda: time.monotonic() - started_s)
    options = PlanOptions(args.gap, args.time_limit, stats.elapsed_s)
    if args.stats:
        options = replace(options, on_step=stats.steps.append)
    recorded = RecordingSolver()
    solver = ShoalStrategy(recorded) if args.verify else chosen
    problem, made = planned(cluster, demands, fleet, profile, solver, options, stats)
    wall_s = time.monotonic() - started_s
    checks = verify_plan(problem, made, recorded, args.time_limit) if args.verify else ()
    unserved = UNSERVED if made.shortfall_req_per_s else 0
    reasons = None if args.no_explain else explain(problem, made, profile, chosen)
    if args.json:
        steps = plan_stats.as_json(stats.steps) if args.stats else None
        encoded = plan_json.encode(
            problem, made, reasons, config.mode, wall_s, profile, steps, checks
        )
        show_json_bytes(encoded)
        return plan_verify.exit_code(checks) or unserved
    demand = str(args.demand) if args.demand else DECLARED_DEMAND
    plan_view.show(problem, made, reasons, config.mode, profile, demand)
    if args.stats:
        print("\n".join(["", *stats.lines()]))
    for wrong in contradictions(cluster):
        print(f"time limits: {text(wrong.reason)}")
    plan_verify.show(checks)
    return plan_verify.exit_code(checks) or unserved


def planned(
    cluster: Cluster,
    demands: Mapping[str, Demand],
    fleet: Mapping[str, int],
    profile: Profile,
    chosen: Strategy,
    options: PlanOptions,
    stats: plan_stats.Stats | None = None,
) -> tuple[PlanningProblem, Plan]:
    """The problem and its plan. UserError: the planner found no plan."""
    problem = make_problem(cluster, demands, profile, fleet=fleet, options=options)
    if stats is not None:
        stats.problem_made(problem)
    made = chosen.solve(problem)
    if made.status is PlanStatus.FAILED:
        raise UserError(f"no plan: {text_with_subject(made.notes[-1])}")
    return problem, made


def default_demand(cluster: Cluster) -> dict[str, Demand]:
    """The declared workloads, with a default rate where a workload declares none."""
    return {
        s.model: Demand(
            s.model,
            s.req_per_s if s.req_per_s or s.rate_declared else DEFAULT_REQ_PER_S,
            s.lengths,
        )
        for s in cluster.services
    }
