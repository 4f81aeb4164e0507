"""`shoal plan` for models of several components, on a terminal and as JSON.

`autoscaler.modes.components.component_program` makes the plan.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence

from rich.table import Table

from autoscaler.domain.cluster import Pool
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.validation import finite
from autoscaler.modes.components.component_program import (
    ComponentPlan,
    ComponentProblem,
    PlacedDeployment,
    cheapest_for_rate,
    component_problem,
    most_for_budget,
)
from autoscaler.optimizer.activity_lp import rate_program, work_program
from streams import text_layout
from streams.cli import plan_verify
from streams.cli.json_output import encoded
from streams.cli.plan_budget import how_far
from streams.solver.plan_verification import Comparison, Quantity, compared
from streams.solver.second_solver import solved_again
from streams.terminal import show_json_bytes


def run(
    args: argparse.Namespace, graphs: tuple[ComponentGraph, ...], pools: tuple[Pool, ...]
) -> int:
    """Plan and print: the least cost for the declared rates or, with --budget, the most
    requests/s."""
    started_s = time.monotonic()
    budget = math.inf if args.budget is None else finite("--budget", args.budget, 0.0, 1e9)
    problem = component_problem(graphs, pools, budget)
    solve = cheapest_for_rate if args.budget is None else most_for_budget
    made = solve(problem, args.time_limit, args.gap)
    wall_s = time.monotonic() - started_s
    checks = (_verified(problem, made, args),) if args.verify else ()
    if args.json:
        show_json_bytes(encode(graphs, made, args.budget, wall_s, checks))
        return plan_verify.exit_code(checks)
    text_layout.show([_fleet(made), _paths(made)], _lines(graphs, made, args.budget))
    plan_verify.show(checks)
    return plan_verify.exit_code(checks)


def _verified(
    problem: ComponentProblem, plan: ComponentPlan, args: argparse.Namespace
) -> Comparison:
    if args.budget is None:
        again = solved_again(rate_program(problem.mix), args.time_limit)
        return compared(Quantity.OBJECTIVE, plan.usd_per_h, plan.bound, again)
    again = solved_again(work_program(problem.mix), args.time_limit)
    return compared(Quantity.MULTIPLE, plan.multiple, plan.bound, again)


def encode(
    graphs: tuple[ComponentGraph, ...],
    plan: ComponentPlan,
    budget: float | None,
    wall_s: float,
    checks: Sequence[Comparison] = (),
) -> bytes:
    """One JSON object and a newline. Its keys are a stable interface. checks: the second opinion,
    if --verify requests it."""
    value = {
        "budget_usd_per_h": budget,
        "cost_usd_per_h": plan.usd_per_h,
        "multiple": plan.multiple,
        "req_per_s": {graph.model: graph.req_per_s * plan.multiple for graph in graphs},
        "bound": plan.bound,
        "solved": plan.solved,
        "instances": [
            {
                "model": one.model,
                "deployment": one.deployment.name,
                "pool": one.pool.id,
                "gpus": one.deployment.gpus,
                "count": count,
            }
            for one, count in plan.instances
        ],
        "nodes": dict(plan.nodes),
        "paths": [
            {
                "model": route.model,
                "type": route.type.name,
                "hops": [{"deployment": h.deployment.name, "pool": h.pool.id} for h in route.hops],
                "fraction": route.fraction,
            }
            for route in plan.routes
        ],
        "planned_in_s": wall_s,
    }
    if checks:
        value["verification"] = plan_verify.as_json(checks)
    return encoded(value)


def _fleet(plan: ComponentPlan) -> Table:
    made = text_layout.plain_table("model", "deployment", "instances")
    for one, count in plan.instances:
        gpu = f"{one.deployment.gpus}x{one.pool.name}"
        where = f"{one.pool.region} ({one.pool.market})"
        made.add_row(one.model, one.deployment.name, f"{count} on {gpu} {where}")
    return made


def _paths(plan: ComponentPlan) -> Table:
    made = text_layout.plain_table("requests", "path", "share", numbers=["share"])
    for route in sorted(plan.routes, key=lambda r: (r.model, r.type.name, -r.fraction)):
        path = " > ".join(_hop(hop) for hop in route.hops)
        made.add_row(f"{route.model}/{route.type.name}", path, f"{route.fraction:.1%}")
    return made


def _hop(hop: PlacedDeployment) -> str:
    return f"{hop.deployment.name} @{hop.pool.name}"


def _lines(
    graphs: tuple[ComponentGraph, ...], plan: ComponentPlan, budget: float | None
) -> Iterator[str]:
    served = ", ".join(f"{g.model} {g.req_per_s * plan.multiple:.3g} req/s" for g in graphs)
    nodes = ", ".join(f"{count} {pool}" for pool, count in plan.nodes.items())
    if budget is None:
        lower = f"lower bound {plan.bound:.2f}"
        yield f"{served} at most, for {plan.usd_per_h:.2f} USD/h; {lower}"
    else:
        gap = None if plan.bound is None else plan.bound / plan.multiple - 1.0
        yield f"{served} for {plan.usd_per_h:.2f} of {budget:.2f} USD/h; {how_far(gap)}"
    yield f"nodes  {nodes}"
    if not plan.solved:
        yield "limit hit: time"
    yield "Nothing was changed."
