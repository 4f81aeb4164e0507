"""A plan on a terminal, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.table import Table
from rich.text import Text

from autoscaler.domain.cluster import Market, Mode, Pool
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Phase
from autoscaler.explain.combo_labels import several
from autoscaler.explain.explanation import Explanation, Relief
from autoscaler.explain.text import text_with_subject, texts
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.performance.profile import Profile
from autoscaler.planning.capacity_provenance import capacities, measurements_in
from autoscaler.planning.cost_attribution import usd_per_h_by_model
from autoscaler.planning.links import assumed_links
from autoscaler.planning.plan import Plan, PlannedCount, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem
from streams.cli import text_layout
from streams.cli.measure import measure_command, measuring_words
from streams.files.model_source import facts_taken, facts_words, uncertain_facts

_MOST_LINES = 3


def show(
    problem: PlanningProblem,
    plan: Plan,
    reasons: Explanation | None,
    mode: Mode,
    profile: Profile,
) -> None:
    """Print the table of models, the total cost with the proof of optimality, and the notes."""
    text_layout.show([table(problem, plan)], lines(problem, plan, reasons, mode, profile))


def table(problem: PlanningProblem, plan: Plan) -> Table:
    """One row per model: demand, current and planned instances, load, share of the cost in
    USD/h."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    made.add_column("model", no_wrap=True)
    made.add_column("req/s", justify="right", no_wrap=True)
    made.add_column("now", overflow="fold")
    made.add_column("proposed", overflow="fold")
    made.add_column("load", justify="right", no_wrap=True)
    made.add_column("USD/h", justify="right", no_wrap=True)
    pools = problem.pools()
    before = _usd(problem, plan, now=True)
    after = _usd(problem, plan, now=False)
    for service in problem.cluster.services:
        targets = plan.targets_of(service.model)
        demand = problem.demands.get(service.model)
        now = [(target.combo, target.now) for target in targets if target.now]
        then = [(target.combo, target.count) for target in targets if target.count]
        usd = before.get(service.model, 0.0), after.get(service.model, 0.0)
        made.add_row(
            service.model,
            f"{demand.req_per_s:.3g}" if demand else "-",
            Text(_kinds(now, pools)),
            Text("unchanged" if now and _same(targets) else _kinds(then, pools)),
            _load(plan, service.model, demand.req_per_s) if demand else "-",
            f"{usd[1]:.2f}" if abs(usd[0] - usd[1]) < 0.005 else f"{usd[0]:.2f} -> {usd[1]:.2f}",
        )
    return made


def lines(
    problem: PlanningProblem,
    plan: Plan,
    reasons: Explanation | None,
    mode: Mode,
    profile: Profile,
) -> Iterator[str]:
    """The lines below the table."""
    yield _total(plan, reasons)
    yield from _nodes(problem, plan)
    for model, missing in plan.shortfall_req_per_s.items():
        demand = problem.demands[model].req_per_s
        yield f"{model}: {missing:.3g} of {demand:.3g} req/s cannot be served"
    least, share = _served(problem, plan), plan.served_fraction_bound
    if plan.status is PlanStatus.BEST_EFFORT and plan.gap >= 0.0 and least < 1.0 and share < 0.9995:
        yield f"proven: no plan serves more than {share:.1%} of the demand of every model"
    yield from (
        *map(text_with_subject, plan.notes),
        *(f"limit hit: {limit}" for limit in plan.limits_hit),
    )
    if plan.binding:
        yield "bound by  " + "; ".join(texts(plan.binding))
    if reasons is not None:
        yield from _reasons(reasons)
    yield from _networks(problem, plan)
    yield from _facts(problem)
    yield from _capacities(problem, plan, profile)
    yield from measured(problem, plan, profile)
    if reasons is not None:
        yield from _measuring(problem, reasons)
    uncertain = [r.model for r in reasons.models if r.uncertain] if reasons else []
    if uncertain:
        yield f"{', '.join(uncertain)}: capacity estimated, not measured on these GPUs"
    yield f"Nothing was changed: mode {mode}."


def _total(plan: Plan, reasons: Explanation | None) -> str:
    """USD/h of rented nodes now and planned, the parts of the difference, and the proof of
    optimality."""
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


def _capacities(problem: PlanningProblem, plan: Plan, profile: Profile) -> Iterator[str]:
    """The capacity of the plan in requests/s, with its 90% interval."""
    said = []
    for model, found in capacities(problem, plan, profile).items():
        one = f"{model} {found.predicted:.3g} req/s, {found.low:.3g}-{found.high:.3g}"
        cautious = found.planned < found.predicted * (1.0 - 1e-9)
        said.append(f"{one}, planned for {found.planned:.3g}" if cautious else one)
    if said:
        yield "capacity (90%)  " + "; ".join(said)


def measured(problem: PlanningProblem, plan: Plan, profile: Profile) -> Iterator[str]:
    """Models with user measurements on the chosen GPUs: the day of the measurement and the error of
    the fit."""
    for model, found in measurements_in(problem, plan, profile):
        gpu = short_gpu_name(found.gpu)
        yield f"{model} on {gpu}: measured {found.day}, error {found.error:.0%}"


def _measuring(problem: PlanningProblem, reasons: Explanation) -> Iterator[str]:
    """How much measurements could save, each with the command that measures."""
    found = [(one, model.model) for model in reasons.models for one in model.measuring]
    for one, model in sorted(found, key=lambda f: -f[0].saves_usd_per_h)[:_MOST_LINES]:
        spec = problem.cluster.service(model).architecture
        yield f"measuring {model} on {measuring_words(one)}: {measure_command(spec, one.gpu)}"


def _facts(problem: PlanningProblem) -> Iterator[str]:
    """Models whose facts come from a catalogue entry of another name."""
    unsure = tuple(uncertain_facts(problem.cluster))
    for model, name, entry in unsure:
        yield f"{model}: {facts_words(name, entry)}"
    sure = [one for one in facts_taken(problem.cluster) if one not in unsure]
    if sure:
        yield "model facts: " + ", ".join(f"{model} as {entry}" for model, _, entry in sure)


def _networks(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """Pools in which prefill and decode are separate instances on a network of assumed speed."""
    pools = problem.pools()
    names = [
        name
        for target in plan.targets
        if target.count and any(m.phase is not Phase.AGGREGATED for m in target.combo.members)
        for name in assumed_links(pools[pool_id] for pool_id in target.combo.gpus_by_pool())
    ]
    if names:
        where = ", ".join(dict.fromkeys(names))
        yield f"{where}: no network declared; prefill and decode stand apart on 200 Gbit/s assumed"


def _reasons(reasons: Explanation) -> Iterator[str]:
    for model in reasons.models:
        if model.rejected:
            said = "; ".join(f"{r.what} ({r.why})" for r in model.rejected[:_MOST_LINES])
            yield f"{model.model}: bound by {', '.join(model.bound_by)}; rejected {said}"
    for model in reasons.models:
        for relief in model.relief[:1]:
            yield f"relief  {model.model} {relief.what} -> {_relief_text(relief)}"
    for relief in reasons.relief[:_MOST_LINES]:
        yield f"relief  {relief.what} -> {_relief_text(relief)}"
    if reasons.spot_loss:
        lost = ", ".join(f"{loss.model} {loss.served_fraction:.0%}" for loss in reasons.spot_loss)
        longest = max(loss.recovery_s for loss in reasons.spot_loss)
        yield f"if all spot is lost: {lost} of demand for ~{_duration(longest)}"


def _relief_text(relief: Relief) -> str:
    parts = []
    if relief.serves_req_per_s > 0.0:
        parts.append(f"{relief.serves_req_per_s:.3g} req/s more served")
    if abs(relief.saves_usd_per_h) >= 0.005:
        parts.append(f"{-relief.saves_usd_per_h:+.2f} USD/h")
    return ", ".join(parts)


def _served(problem: PlanningProblem, plan: Plan) -> float:
    """The smallest served fraction of demand, among models that the fleet can serve at all."""
    shares = [
        1.0 - missing / problem.demands[model].req_per_s
        for model, missing in plan.shortfall_req_per_s.items()
        if problem.can_be_served(model) and model not in problem.unattainable_slos
    ]
    return min(shares, default=1.0)


def _load(plan: Plan, model: str, req_per_s: float) -> str:
    capacity = plan.capacity_req_per_s[model]
    return f"{req_per_s / capacity:.0%}" if capacity > 1e-3 * req_per_s else "-"


def _kinds(parts: list[tuple[Combo, int]], pools: Mapping[str, Pool]) -> str:
    return ", ".join(several(count, combo, pools) for combo, count in parts) or "nothing"


def _same(targets: tuple[PlannedCount, ...]) -> bool:
    return all(target.now == target.count for target in targets)


def _usd(problem: PlanningProblem, plan: Plan, now: bool) -> dict[str, float]:
    """Each model's share of the cost of rented nodes in USD/h, now or planned."""
    counted = [(t.combo, t.now if now else t.count) for t in plan.targets]
    bill = {
        pool.id: problem.rented_nodes.get(pool.id, 0) * pool.price_usd_per_h
        for pool in problem.cluster.pools
    }
    if not now:
        bill = {node.pool: node.usd_per_h for node in plan.nodes}
    return usd_per_h_by_model(counted, bill, problem.taken_gpus)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"
