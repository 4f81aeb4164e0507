"""`shoal plan --budget`: the most work for a budget, on a terminal and as JSON.

The strategy `budget` makes the plan.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rich.table import Table

from autoscaler.domain.cluster import Cluster, Objective
from autoscaler.domain.validation import InvalidValue, finite
from autoscaler.domain.workload import Demand
from autoscaler.explain.combo_labels import several, short_name
from autoscaler.explain.reason_texts import text_with_subject, texts
from autoscaler.modes.budget.budget_strategy import BudgetStrategy
from autoscaler.performance.profile import Profile
from autoscaler.planning.plan import BudgetWork, Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions, make_problem
from autoscaler.planning.strategies.registry import strategy_for
from streams import text_layout
from streams.cli import plan_verify
from streams.cli.json_output import encoded
from streams.cli.plan_view import measured
from streams.solver.plan_verification import Comparison, RecordingWorkSolver, verify_work
from streams.terminal import show_json_bytes

REQUESTS = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of budget mode."""
    group = parser.add_argument_group(
        "budget mode", "the most work for a budget, instead of the least cost for a demand"
    )
    group.add_argument(
        "--budget",
        type=float,
        metavar="USD",
        help="USD per hour to spend at most "
        "(default: policy.budget, if policy.objective is not cost)",
    )
    group.add_argument(
        "--objective",
        choices=[Objective.THROUGHPUT.value, Objective.MAKESPAN.value],
        help="a sustained rate of the declared mix, or the time for a batch of it "
        "(policy.objective, else throughput)",
    )
    group.add_argument(
        "--requests",
        type=int,
        default=None,
        metavar="N",
        help=f"makespan: requests in the batch, split as the demand is ({REQUESTS})",
    )


def is_selected(args: argparse.Namespace, cluster: Cluster) -> bool:
    """Whether the options or the file select this mode."""
    return args.budget is not None or cluster.policy.spends_budget


def run(
    args: argparse.Namespace,
    cluster: Cluster,
    demands: Mapping[str, Demand],
    fleet: Mapping[str, int],
    profile: Profile,
) -> int:
    """Plan for the budget and print."""
    budget = cluster.policy.budget_usd_per_h if args.budget is None else args.budget
    finite("--budget", budget, 1e-6, 1e9)
    declared = cluster.policy.objective if cluster.policy.spends_budget else Objective.THROUGHPUT
    objective = Objective(args.objective) if args.objective else declared
    if not any(demand.req_per_s > 0.0 for demand in demands.values()):
        raise InvalidValue("demand", "0 req/s", "a rate above 0 for at least one model")
    if objective is Objective.MAKESPAN:
        requests = REQUESTS if args.requests is None else args.requests
        finite("--requests", requests, 1, 1e12)
        each = requests / sum(demand.req_per_s for demand in demands.values())
        demands = {m: replace(d, req_per_s=d.req_per_s * each) for m, d in demands.items()}
    policy = replace(cluster.policy, budget_usd_per_h=budget, objective=objective)
    cluster = replace(cluster, policy=policy)
    started_s = time.monotonic()
    options = PlanOptions(args.gap, args.time_limit, lambda: time.monotonic() - started_s)
    problem = make_problem(cluster, demands, profile, fleet=fleet, options=options)
    recorded = RecordingWorkSolver()
    made = (BudgetStrategy(recorded) if args.verify else strategy_for(policy)).solve(problem)
    wall_s = time.monotonic() - started_s
    if made.status is PlanStatus.FAILED and made.limits_hit:
        raise InvalidValue(
            "--time-limit", args.time_limit, f"more seconds: {text_with_subject(made.notes[-1])}"
        )
    if made.status is PlanStatus.FAILED or made.work is None:
        raise InvalidValue("budget", budget, f"a larger one: {text_with_subject(made.notes[-1])}")
    checks = verify_work(problem, made, made.work, recorded, args.time_limit) if args.verify else ()
    if args.json:
        show_json_bytes(encode(problem, made, made.work, wall_s, checks))
        return plan_verify.exit_code(checks)
    lines = [*_lines(problem, made, made.work), *measured(problem, made, profile)]
    lines.append("Nothing was changed.")
    text_layout.show([_fleet(problem, made), _routing(problem, made.work)], lines)
    plan_verify.show(checks)
    return plan_verify.exit_code(checks)


def encode(
    problem: PlanningProblem,
    plan: Plan,
    work: BudgetWork,
    wall_s: float,
    checks: Sequence[Comparison] = (),
) -> bytes:
    """One JSON object and a newline. Its keys are a stable interface. checks: the second opinion,
    if --verify requests it."""
    policy = problem.cluster.policy
    value = {
        "objective": policy.objective,
        "budget_usd_per_h": policy.budget_usd_per_h,
        "cost_usd_per_h": plan.cost_usd_per_h,
        "multiple": work.multiple,
        "multiple_upper_bound": work.bound,
        "gap": work.gap,
        "solved": plan.status is not PlanStatus.LIMIT,
        "req_per_s": _req_per_s(problem, work),
        "makespan_s": 1.0 / work.multiple if policy.objective is Objective.MAKESPAN else None,
        "combos": [
            {"combo": one.combo.id, "count": one.count, "usd_per_h": one.combo.usd_per_h}
            for one in plan.targets
            if one.count
        ],
        "nodes": {node.pool: node.count for node in plan.nodes if node.count},
        "assignment": [
            {
                "model": share.model,
                "type": share.type,
                "combo": share.combo,
                "fraction": share.fraction,
            }
            for share in work.shares
            if share.fraction > 0.0
        ],
        "unserved": [list(pair) for pair in work.unserved],
        "bound_by": texts(plan.binding),
        "planned_in_s": wall_s,
    }
    if checks:
        value["verification"] = plan_verify.as_json(checks)
    return encoded(value)


def _req_per_s(problem: PlanningProblem, work: BudgetWork) -> float:
    """Requests/s of all types together, or requests of the batch per second."""
    missing = set(work.unserved)
    return work.multiple * sum(
        typed.req_per_s for typed in problem.types if (typed.model, typed.type.name) not in missing
    )


def _fleet(problem: PlanningProblem, plan: Plan) -> Table:
    made = text_layout.plain_table("model", "instances", "USD/h", numbers=["USD/h"])
    for one in plan.targets:
        if one.count:
            words = several(one.count, one.combo, problem.pools())
            made.add_row(one.combo.model, words, f"{one.count * one.combo.usd_per_h:.2f}")
    return made


def _routing(problem: PlanningProblem, work: BudgetWork) -> Table:
    """For each type, the percentage of its requests that each combo serves."""
    pools = problem.pools()
    made = text_layout.plain_table(
        "requests", "input", "output", "goes to", numbers=["input", "output"]
    )
    for typed in problem.types:
        goes = ", ".join(
            f"{s.fraction:.0%} {short_name(typed.combos[s.combo], pools)}"
            for s in work.shares
            if (s.model, s.type) == (typed.model, typed.type.name) and s.fraction > 0.0
        )
        lengths = typed.type.lengths
        made.add_row(
            typed.name,
            f"{lengths.input_tokens:.0f}",
            f"{lengths.output_tokens:.0f}",
            goes or "nowhere",
        )
    return made


def how_far(gap: float | None) -> str:
    """Text on how far the plan may be from the best plan. gap: the largest possible improvement as
    a fraction; None: not proven."""
    if gap is None:
        return "no bound is proven"
    return "proven optimal" if gap < 1e-4 else f"the best plan does at most {gap:.1%} more"


def _lines(problem: PlanningProblem, plan: Plan, work: BudgetWork) -> Iterator[str]:
    policy = problem.cluster.policy
    spent = f"{plan.cost_usd_per_h:.2f} of {policy.budget_usd_per_h:.2f} USD/h"
    proof = how_far(work.gap)
    if policy.objective is Objective.MAKESPAN:
        batch = work.multiple and _req_per_s(problem, work) / work.multiple
        yield f"{batch:.0f} requests in {1.0 / work.multiple:.4g} s for {spent}; {proof}"
    else:
        yield (
            f"{_req_per_s(problem, work):.4g} req/s of the declared mix ({work.multiple:.2f}x) "
            f"for {spent}; {proof}"
        )
    if plan.status is PlanStatus.LIMIT:
        yield "limit hit: time"
    if plan.binding:
        yield "limited by  " + "; ".join(texts(plan.binding))
    yield from map(text_with_subject, plan.notes)
