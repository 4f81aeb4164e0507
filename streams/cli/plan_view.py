"""A plan on a terminal: a block for each model, then cost, limits, risks and confidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from autoscaler.domain.cluster import Market, Mode
from autoscaler.domain.workload import Phase
from autoscaler.explain.combo_labels import several
from autoscaler.explain.explanation import Explanation, Measuring, ModelReasons, Relief
from autoscaler.explain.reason_texts import text_with_subject, texts
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.performance.profile import Profile
from autoscaler.planning.capacity_provenance import capacities, kv_caches, measurements_in
from autoscaler.planning.cost_attribution import usd_per_h_by_model
from autoscaler.planning.network import assumed_links
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem
from streams import text_layout
from streams.cli.measure import measure_command, measuring_words
from streams.files.model_source import facts_taken, facts_words, uncertain_facts
from streams.plain_text import quantity
from streams.text_layout import Line, columns, labelled, section, wrapped

_MOST_LINES = 3
_CENT = 0.005
MEASURED_AT_START = "measured at a start"


def show(
    problem: PlanningProblem,
    plan: Plan,
    reasons: Explanation | None,
    mode: Mode,
    profile: Profile,
    demand: str,
) -> None:
    """Print the plan. demand: where the planned demand comes from."""
    text_layout.show([], lines(problem, plan, reasons, mode, profile, demand))


def lines(
    problem: PlanningProblem,
    plan: Plan,
    reasons: Explanation | None,
    mode: Mode,
    profile: Profile,
    demand: str,
) -> Iterator[Line]:
    """All lines of the plan."""
    yield from wrapped(f"Plan for {demand}", indent="")
    for service in problem.cluster.services:
        own = reasons.of(service.model) if reasons else None
        yield from section(*_model(problem, plan, service.model, own))
    yield from section("Cost", _cost(plan, reasons))
    yield from section("Rented nodes", _nodes(problem, plan))
    yield from section("Demand that is not served", _shortfalls(problem, plan))
    limits = [*texts(plan.binding), *(f"search limit reached: {one}" for one in plan.limits_hit)]
    yield from section("What limits this plan", _wrapped(limits))
    if reasons is not None:
        yield from section("What would help", _reliefs(reasons))
        yield from section("If all spot nodes are lost", _spot_loss(reasons))
    yield from section(
        "Capacity in req/s, with its 90% interval", _capacities(problem, plan, profile)
    )
    yield from section("KV cache of an instance, in tokens", _kv_caches(problem, plan))
    yield from section("Notes", _wrapped(_notes(problem, plan, reasons, profile)))
    yield ""
    yield f"Nothing was changed (mode {mode})."


def measured(problem: PlanningProblem, plan: Plan, profile: Profile) -> Iterator[str]:
    """Models with user measurements on the chosen GPUs.

    For each: the day of the measurement and the error of the fit.
    """
    for model, found in measurements_in(problem, plan, profile):
        gpu = short_gpu_name(found.gpu)
        yield f"{model} on {gpu}: measured {found.day}, error {found.error:.0%}"


def usd_change(before: float, after: float) -> str:
    """A cost in USD/h, with the cost before if it differs."""
    if abs(before - after) < _CENT:
        return f"{after:.2f} USD/h"
    return f"{before:.2f} -> {after:.2f} USD/h"


def _model(
    problem: PlanningProblem, plan: Plan, model: str, reasons: ModelReasons | None
) -> tuple[str, Iterable[str]]:
    """Title and lines of one model's block."""
    pools = problem.pools()
    targets = plan.targets_of(model)
    now = [several(t.now, t.combo, pools) for t in targets if t.now]
    proposed = [several(t.count, t.combo, pools) for t in targets if t.count]
    same = bool(now) and all(target.now == target.count for target in targets)
    before, after = _usd(problem, plan, now=True), _usd(problem, plan, now=False)
    usd = usd_change(before.get(model, 0.0), after.get(model, 0.0))
    demand = problem.demands.get(model)
    load = _load(plan, model, demand.req_per_s) if demand else ""
    rate = f"{quantity(demand.req_per_s)} req/s{load}" if demand else "no demand"
    body = [
        *labelled("now", now or ["nothing"]),
        *labelled("proposed", ["unchanged"] if same else proposed or ["nothing"]),
    ]
    if reasons is not None:
        body += labelled("limited by", [", ".join(reasons.bound_by)] if reasons.bound_by else [])
        body += labelled("cached", [reasons.cached] if reasons.cached else [])
        body += labelled(
            "rejected", [f"{one.what}: {one.why}" for one in reasons.rejected[:_MOST_LINES]]
        )
    return f"{model}: {rate}, {usd}", body


def _cost(plan: Plan, reasons: Explanation | None) -> Iterator[str]:
    """The cost of rented nodes now and planned, and the proof of optimality."""
    rows = [("rented nodes", usd_change(plan.now_usd_per_h, plan.cost_usd_per_h))]
    if reasons is not None and plan.now_usd_per_h > 0.0:
        rows += [(f"  by {one.what}", f"{one.usd_per_h:+.2f} USD/h") for one in reasons.savings]
    if plan.gap < 0.0:
        rows.append(("proof", f"none: strategy {plan.strategy} has no lower bound"))
    else:
        objective, bound = plan.objective_usd_per_h, plan.lower_bound_usd_per_h
        if objective - plan.cost_usd_per_h >= _CENT:
            rows.append(("with start costs", f"{objective:.2f} USD/h"))
        rows.append(("lower bound", f"{bound:.2f} USD/h, gap {plan.gap:.1%}"))
    yield from columns(rows)


def _nodes(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    rows = []
    for node in plan.nodes:
        pool = problem.cluster.pool(node.pool)
        if pool.market is not Market.OWNED and node.count != node.now:
            name = f"{pool.region}/{pool.name} {pool.market}"
            rows.append((name, f"{node.now} -> {node.count}"))
    yield from columns(rows)


def _shortfalls(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """Unserved demand, and whether another plan could serve more."""
    for model, missing in plan.shortfall_req_per_s.items():
        demand = problem.demands[model].req_per_s
        yield from wrapped(
            f"{model}: {quantity(missing)} of {quantity(demand)} req/s cannot be served"
        )
    least, share = _served(problem, plan), plan.served_fraction_bound
    if plan.status is PlanStatus.BEST_EFFORT and plan.gap >= 0.0 and least < 1.0 and share < 0.9995:
        proven = f"proven: no plan serves more than {share:.1%} of the demand of every model"
        yield from wrapped(proven)


def _reliefs(reasons: Explanation) -> Iterator[str]:
    rows = [
        (f"{model.model}: {relief.what}", _relief_text(relief))
        for model in reasons.models
        for relief in model.relief[:1]
    ]
    rows += [(relief.what, _relief_text(relief)) for relief in reasons.relief[:_MOST_LINES]]
    for what, benefit in rows:
        yield from wrapped(f"{what}: {benefit}")
    for measuring, name in _measurings(reasons)[:_MOST_LINES]:
        yield from wrapped(f"measuring {name} on {measuring_words(measuring)}")


def _measurings(reasons: Explanation) -> list[tuple[Measuring, str]]:
    """Measurements with their models, the largest saving first."""
    every = [(one, model.model) for model in reasons.models for one in model.measuring]
    return sorted(every, key=lambda one: -one[0].saves_usd_per_h)


def _spot_loss(reasons: Explanation) -> Iterator[str]:
    yield from columns(
        (
            loss.model,
            f"{loss.served_fraction:.0%} of demand served",
            f"for about {_duration(loss.recovery_s)}",
        )
        for loss in reasons.spot_loss
    )


def _capacities(problem: PlanningProblem, plan: Plan, profile: Profile) -> Iterator[str]:
    """The capacity of the plan, with its interval and the rate that the plan counts on."""
    rows = [
        (
            model,
            quantity(one.predicted),
            quantity(one.low),
            quantity(one.high),
            quantity(one.planned),
        )
        for model, one in capacities(problem, plan, profile).items()
    ]
    if rows:
        yield from columns([("model", "predicted", "low", "high", "planned"), *rows], 4)


def _kv_caches(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """The KV cache of each planned slice, and whether an engine stated it at a start."""
    rows = [
        (
            one.model,
            f"{one.gpus}x{short_gpu_name(one.gpu)}",
            f"{one.tokens:,}",
            MEASURED_AT_START if one.is_measured else "predicted",
        )
        for one in kv_caches(problem, plan)
    ]
    if rows:
        yield from columns(rows)


def _notes(
    problem: PlanningProblem, plan: Plan, reasons: Explanation | None, profile: Profile
) -> Iterator[str]:
    yield from map(text_with_subject, plan.notes)
    yield from _networks(problem, plan)
    unsure = tuple(uncertain_facts(problem.cluster))
    for model, name, entry in unsure:
        yield f"{model}: {facts_words(name, entry)}"
    for model, _, entry in facts_taken(problem.cluster):
        if model not in {one[0] for one in unsure}:
            yield f"{model}: planned with the facts of {entry}"
    yield from measured(problem, plan, profile)
    if reasons is None:
        return
    for one, name in _measurings(reasons)[:_MOST_LINES]:
        spec = problem.cluster.service(name).architecture
        yield f"to measure {name}: {measure_command(spec, one.gpu)}"
    uncertain = [r.model for r in reasons.models if r.uncertain]
    if uncertain:
        yield f"{', '.join(uncertain)}: capacity is estimated, not measured on these GPUs"


def _networks(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """Pools that separate prefill and decode over a network of assumed speed."""
    pools = problem.pools()
    names = [
        name
        for target in plan.targets
        if target.count and any(m.phase is not Phase.AGGREGATED for m in target.combo.members)
        for name in assumed_links(pools[pool_id] for pool_id in target.combo.gpus_by_pool())
    ]
    if names:
        where = ", ".join(dict.fromkeys(names))
        yield f"{where}: no network declared; separate prefill and decode assume 200 Gbit/s"


def _relief_text(relief: Relief) -> str:
    parts = []
    if relief.serves_req_per_s > 0.0:
        parts.append(f"serves {quantity(relief.serves_req_per_s)} req/s more")
    if abs(relief.saves_usd_per_h) >= _CENT:
        parts.append(f"{-relief.saves_usd_per_h:+.2f} USD/h")
    return ", ".join(parts)


def _served(problem: PlanningProblem, plan: Plan) -> float:
    """The smallest served share of demand, among models that the fleet can serve at all."""
    shares = [
        1.0 - missing / problem.demands[model].req_per_s
        for model, missing in plan.shortfall_req_per_s.items()
        if problem.can_be_served(model) and model not in problem.unattainable_slos
    ]
    return min(shares, default=1.0)


def _load(plan: Plan, model: str, req_per_s: float) -> str:
    capacity = plan.capacity_req_per_s[model]
    return f" at {req_per_s / capacity:.0%} load" if capacity > 1e-3 * req_per_s else ""


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


def _wrapped(texts: Iterable[str]) -> Iterator[str]:
    for one in texts:
        yield from wrapped(one)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120.0 else f"{seconds / 60.0:.0f} min"
