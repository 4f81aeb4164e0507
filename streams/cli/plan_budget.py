"""`shoal plan --budget`: what a budget buys, on a terminal and as JSON.

Owns the words and the names of this mode. The plan is made by `autoscaler.planning.budget`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping

import orjson
from rich.table import Table

from autoscaler.domain.checks import InvalidValue, finite
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Demand
from autoscaler.explain.names import several, short_name
from autoscaler.performance.profile import default_profile
from autoscaler.planning.budget import BudgetPlan, Objective, budget_problem, plan_budget
from streams.cli import pages

REQUESTS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of budget mode."""
    group = parser.add_argument_group(
        "budget mode", "the most work for a budget, instead of the least cost for a demand"
    )
    group.add_argument("--budget", type=float, metavar="USD", help="USD per hour to spend at most")
    group.add_argument(
        "--objective",
        choices=[objective.value for objective in Objective],
        default=Objective.THROUGHPUT.value,
        help="a sustained rate of the declared mix, or the time for a batch of it (throughput)",
    )
    group.add_argument(
        "--requests",
        type=int,
        default=REQUESTS,
        metavar="N",
        help=f"makespan: requests in the batch, split as the demand is ({REQUESTS})",
    )


def run(args: argparse.Namespace, cluster: Cluster, demands: Mapping[str, Demand]) -> int:
    """Plan for the budget and print."""
    finite("--budget", args.budget, 0.0, 1e9)
    objective = Objective(args.objective)
    work = {model: demand.req_per_s for model, demand in demands.items() if demand.req_per_s > 0}
    if not work:
        raise InvalidValue("demand", "0 req/s", "a rate above 0 for at least one model")
    if objective is Objective.MAKESPAN:
        finite("--requests", args.requests, 1, 1e12)
        total = sum(work.values())
        work = {model: args.requests * rate / total for model, rate in work.items()}
    started_s = time.monotonic()
    problem = budget_problem(cluster, work, default_profile(), args.budget, objective)
    made = plan_budget(problem, args.time_limit, args.gap)
    wall_s = time.monotonic() - started_s
    if args.json:
        sys.stdout.buffer.write(encode(made, wall_s))
        return 0
    pages.show([_fleet(made), _routing(made)], _lines(made))
    return 0


def encode(plan: BudgetPlan, wall_s: float) -> bytes:
    """One JSON object and a newline; the names stay."""
    problem = plan.problem
    value = {
        "objective": problem.objective,
        "budget_usd_per_h": problem.mix.budget_usd_per_h,
        "cost_usd_per_h": plan.usd_per_h,
        "multiple": plan.multiple,
        "multiple_upper_bound": plan.bound,
        "gap": plan.gap,
        "solved": plan.solved,
        "req_per_s": plan.req_per_s(),
        "makespan_s": plan.makespan_s() if problem.objective is Objective.MAKESPAN else None,
        "combos": [
            {"combo": combo.id, "count": count, "usd_per_h": combo.usd_per_h}
            for combo, count in plan.copies
        ],
        "nodes": dict(plan.nodes),
        "assignment": [
            {
                "model": share.type.model,
                "type": share.type.type.name,
                "combo": share.combo.id,
                "fraction": share.fraction,
            }
            for share in plan.shares
        ],
        "bound_by": list(plan.binding),
        "planned_in_s": wall_s,
    }
    return orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _fleet(plan: BudgetPlan) -> Table:
    made = pages.plain_table("model", "instances", "USD/h", numbers=["USD/h"])
    pools = {pool.id: pool for pool in plan.problem.cluster.pools}
    for combo, count in plan.copies:
        made.add_row(combo.model, several(count, combo, pools), f"{count * combo.usd_per_h:.2f}")
    return made


def _routing(plan: BudgetPlan) -> Table:
    """Where each type goes, in per cent of its requests."""
    pools = {pool.id: pool for pool in plan.problem.cluster.pools}
    made = pages.plain_table("requests", "input", "output", "goes to", numbers=["input", "output"])
    for typed in plan.problem.types:
        shares = [share for share in plan.shares if share.type == typed]
        goes = ", ".join(f"{s.fraction:.0%} {short_name(s.combo, pools)}" for s in shares)
        lengths = typed.type.lengths
        made.add_row(
            typed.name, f"{lengths.input_tokens:.0f}", f"{lengths.output_tokens:.0f}", goes
        )
    return made


def _lines(plan: BudgetPlan) -> Iterator[str]:
    problem = plan.problem
    spent = f"{plan.usd_per_h:.2f} of {problem.mix.budget_usd_per_h:.2f} USD/h"
    best = plan.gap < 1e-4
    proof = "proven optimal" if best else f"the best plan does at most {plan.gap:.1%} more"
    if problem.objective is Objective.MAKESPAN:
        batch = sum(typed.work for typed in problem.types)
        yield f"{batch:.0f} requests in {plan.makespan_s():.4g} s for {spent}; {proof}"
    else:
        yield (
            f"{plan.req_per_s():.4g} req/s of the declared mix ({plan.multiple:.2f}x) "
            f"for {spent}; {proof}"
        )
    if not plan.solved:
        yield "limit hit: time"
    if plan.binding:
        yield "bound by  " + "; ".join(plan.binding)
    kept = [s.model for s in problem.cluster.services if s.survive != "none"]
    if kept:
        yield f"not considered in budget mode: survive of {', '.join(kept)}"
    yield "Nothing was changed."
