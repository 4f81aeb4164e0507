"""A plan on a terminal, at most 100 columns. Owns its words, shares them with nobody."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autoscaler.domain.cluster import Market, Mode
from autoscaler.domain.combo import Combo
from autoscaler.explain.alternatives import short_name
from autoscaler.explain.values import Explanation, Relief
from autoscaler.planning.plan import Plan, PlannedCount, PlanStatus
from autoscaler.planning.problem import PlanningProblem

_WIDTH = 100
_MOST_LINES = 3


def show(problem: PlanningProblem, plan: Plan, reasons: Explanation | None, mode: Mode) -> None:
    """Print the table of models, the total with its proof, and what there is to know."""
    console = Console(highlight=False)
    wide = console.width if console.is_terminal else _WIDTH
    console = Console(width=min(_WIDTH, wide), highlight=False)
    console.print(table(problem, plan))
    for line in lines(problem, plan, reasons, mode):
        console.print(Text(line))


def table(problem: PlanningProblem, plan: Plan) -> Table:
    """One row per model: demand, what runs, what is proposed, load and price of its GPUs."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    made.add_column("model", no_wrap=True)
    made.add_column("req/s", justify="right", no_wrap=True)
    made.add_column("now", overflow="fold")
    made.add_column("proposed", overflow="fold")
    made.add_column("load", justify="right", no_wrap=True)
    made.add_column("USD/h", justify="right", no_wrap=True)
    for service in problem.cluster.services:
        targets = plan.of(service.model)
        demand = problem.demands.get(service.model)
        now = [(target.combo, target.now) for target in targets if target.now]
        then = [(target.combo, target.count) for target in targets if target.count]
        before, after = _usd(now), _usd(then)
        made.add_row(
            service.model,
            f"{demand.req_per_s:.3g}" if demand else "-",
            Text(_kinds(now)),
            Text("unchanged" if now and _same(targets) else _kinds(then)),
            _load(plan, service.model, demand.req_per_s) if demand else "-",
            f"{after:.2f}" if abs(before - after) < 0.005 else f"{before:.2f} -> {after:.2f}",
        )
    return made


def lines(
    problem: PlanningProblem, plan: Plan, reasons: Explanation | None, mode: Mode
) -> Iterator[str]:
    """What stands under the table."""
    yield _total(plan, reasons)
    yield from _nodes(problem, plan)
    for model, missing in plan.shortfall_req_per_s.items():
        demand = problem.demands[model].req_per_s
        yield f"{model}: {missing:.3g} of {demand:.3g} req/s cannot be served"
    if plan.status is PlanStatus.BEST_EFFORT and plan.gap >= 0.0 and plan.shortfall_req_per_s:
        share = plan.served_fraction_bound
        yield f"no plan serves more than {share:.1%} of every model's demand"
    yield from (*plan.notes, *(f"limit hit: {limit}" for limit in plan.limits_hit))
    if plan.binding:
        yield "bound by  " + "; ".join(dict.fromkeys(b.detail for b in plan.binding))
    if reasons is not None:
        yield from _reasons(reasons)
    uncertain = [r.model for r in reasons.models if r.uncertain] if reasons else []
    if uncertain:
        yield f"{', '.join(uncertain)}: capacity estimated, not measured on these GPUs"
    below = [
        service.model
        for service in problem.cluster.services
        if any(t.count and not t.combo.meets_slo for t in plan.of(service.model))
    ]
    if below:
        yield f"{', '.join(below)}: nothing meets the SLO at this workload; best effort"
    yield f"Nothing was changed: mode {mode}."


def _total(plan: Plan, reasons: Explanation | None) -> str:
    """Billed nodes now and then, where the difference comes from, and the proof."""
    text = f"total {plan.now_usd_per_h:.2f} -> {plan.cost_usd_per_h:.2f} USD/h of billed nodes"
    if reasons is not None and reasons.savings and plan.now_usd_per_h > 0.0:
        parts = ", ".join(f"{part.what} {part.usd_per_h:+.2f}" for part in reasons.savings)
        text = f"{text} ({parts})"
    if plan.gap < 0.0:
        return f"{text} ({plan.strategy}, no bound)"
    starts = plan.objective_usd_per_h - plan.cost_usd_per_h
    bound = plan.lower_bound_usd_per_h
    if starts < 0.005:
        return f"{text}; lower bound {bound:.2f}, gap {plan.gap:.1%}"
    return (
        f"{text}; with starts {plan.objective_usd_per_h:.2f}, "
        f"lower bound {bound:.2f}, gap {plan.gap:.1%}"
    )


def _nodes(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    changes = []
    for node in plan.nodes:
        pool = problem.cluster.pool(node.pool)
        if pool.market is not Market.OWNED and node.count != node.now:
            name = f"{pool.region}/{pool.name} {pool.market}"
            changes.append(f"{name} {node.now} -> {node.count}")
    if changes:
        yield "nodes  " + "; ".join(changes)


def _reasons(reasons: Explanation) -> Iterator[str]:
    for model in reasons.models:
        if model.rejected:
            said = "; ".join(f"{r.what} ({r.why})" for r in model.rejected[:_MOST_LINES])
            yield f"{model.model}: bound by {', '.join(model.bound_by)}; rejected {said}"
    for model in reasons.models:
        for relief in model.relief[:1]:
            yield f"relief  {model.model} {relief.what} -> {_worth(relief)}"
    for relief in reasons.relief[:_MOST_LINES]:
        yield f"relief  {relief.what} -> {_worth(relief)}"
    if reasons.spot_loss:
        lost = ", ".join(f"{loss.model} {loss.served_fraction:.0%}" for loss in reasons.spot_loss)
        longest = max(loss.recovery_s for loss in reasons.spot_loss)
        yield f"if all spot is lost: {lost} of demand for ~{_duration(longest)}"


def _worth(relief: Relief) -> str:
    parts = []
    if relief.serves_req_per_s > 0.0:
        parts.append(f"{relief.serves_req_per_s:.3g} req/s more served")
    if abs(relief.saves_usd_per_h) >= 0.005:
        parts.append(f"{-relief.saves_usd_per_h:+.2f} USD/h")
    return ", ".join(parts)


def _load(plan: Plan, model: str, req_per_s: float) -> str:
    capacity = plan.capacity_req_per_s[model]
    return f"{req_per_s / capacity:.0%}" if capacity > 0.0 else "-"


def _kinds(parts: list[tuple[Combo, int]]) -> str:
    return ", ".join(f"{count} of {short_name(combo)}" for combo, count in parts) or "nothing"


def _same(targets: tuple[PlannedCount, ...]) -> bool:
    return all(target.now == target.count for target in targets)


def _usd(parts: list[tuple[Combo, int]]) -> float:
    return sum(combo.usd_per_h * count for combo, count in parts)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"
