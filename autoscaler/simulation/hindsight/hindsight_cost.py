"""The cost of serving a trace that is known beforehand: a bound for any policy, and a plan.

The bound is a sum over the spans of the trace. Each term is the proven lower bound of the cost of
nodes that serve the mean demand of the span. Start-ups, floors and headroom are left out. The bound
holds for every policy that uses the planner's candidate combos and whose ready instances can serve
the mean demand of each minute. The performance model decides this, at the trace's lengths and peak
rates.

The plan changes the fleet at the edges of spans. It respects whole instances that stay on their
GPUs, start-up times, role switches, floors, spot limits and node limits, and places every instance
on a node. Its own bound holds for every plan that respects the same and changes only at these
edges. Draining and bursts within a minute cost nothing here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand
from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.result import SolveOptions, Status
from autoscaler.optimizer.solve import solve
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.planning_problem import make_problem
from autoscaler.simulation.hindsight.demand_spans import (
    Market,
    Span,
    market_of,
    merged,
    minutes_of,
    spans_of,
)
from autoscaler.simulation.hindsight.fleet_program import (
    UNSERVED_PARTS,
    FleetProgram,
    Kind,
    fleet_at_one_time,
    fleet_over_time,
)
from autoscaler.simulation.hindsight.instance_stays import stays_of
from autoscaler.simulation.hindsight.node_schedule import bill_usd
from autoscaler.simulation.policies.policy import PolicyContext

NAME, BOUND_NAME = "hindsight", "oracle"
ABOUT = "the cheapest fleet over time that could have been run, planned beforehand, not simulated"
BOUND_ABOUT = (
    "lower bound of any policy: the cheapest nodes for each minute's demand, not simulated"
)

_BOUND_SPANS, _PLAN_SPANS = 480, 120
_EXACT_COLUMNS = 4000
"""Up to this number of columns, the plan is over all candidates, and the MIP proves its bound."""
_ROUNDING = 1e-6
_STATIC = SolveOptions(gap=1e-3, mip_nodes=200)
_OVER_TIME = SolveOptions(gap=5e-3, mip_nodes=100)
"""The limits are only on work, not on time, so that equal traces give equal results."""


@dataclass(frozen=True, slots=True)
class Hindsight:
    """Costs in USD of serving one trace that is known beforehand. bound_usd: lower bound for any
    policy. plan_usd: cost of the plan; None: no plan was found that fits the nodes. plan_bound_usd:
    no plan with all launches and changes at the edges of minutes costs less. served: share of the
    demand that the plan serves. attainment: the declared percentiles, weighted by requests."""

    bound_usd: float
    plan_usd: float | None
    plan_bound_usd: float
    served: float
    attainment: float

    @property
    def gap(self) -> float | None:
        """Proven relative gap of the plan; None without a plan."""
        if self.plan_usd is None:
            return None
        return max(0.0, 1.0 - self.plan_bound_usd / self.plan_usd) if self.plan_usd > 0.0 else 0.0


def mean_of(found: Sequence[Hindsight]) -> Hindsight:
    """The means over the results of several traces. If one trace has no plan, the mean has none."""
    plans = [one.plan_usd for one in found if one.plan_usd is not None]
    return Hindsight(
        bound_usd=fmean(one.bound_usd for one in found),
        plan_usd=fmean(plans) if len(plans) == len(found) else None,
        plan_bound_usd=fmean(one.plan_bound_usd for one in found),
        served=fmean(one.served for one in found),
        attainment=fmean(one.attainment for one in found),
    )


def hindsight(context: PolicyContext) -> Hindsight:
    """The bound and the plan for the trace of `context`. Idle time before the first request is
    free, except for the start-up of the first instances."""
    scenario = context.scenario
    cluster = _bare(scenario.cluster)
    models = tuple(s.model for s in cluster.services)
    rates = minutes_of(scenario, models)
    combos = _candidates(cluster, context, rates)
    market = market_of(scenario, cluster.pools)
    served = {combo.model for combo in combos}
    able = tuple(model for model in models if model in served)
    rates = rates[:, [models.index(model) for model in able]]
    free = replace(cluster, services=tuple(_without_floor(s) for s in cluster.services))
    worth = np.array([_usd_per_request(combos, m) for m in able])
    edges = merged(rates, worth, _BOUND_SPANS)
    lowest = spans_of(scenario, able, rates, edges, market, lowest=True)
    alone = [_cheapest_at(free, combos, span) for span in lowest]
    bound = sum(one.usd for one in alone)
    edges = merged(rates, worth, _PLAN_SPANS)
    spans = spans_of(scenario, able, rates, edges, market, lowest=False)
    firm = [_cheapest_at(cluster, combos, span) for span in spans]
    used = frozenset().union(*(one.used for one in (*alone, *firm)))
    within = [_within_reach(span, one) for span, one in zip(spans, firm, strict=True)]
    plan_usd, proven, share = _plan(cluster, combos, used, within, market, scenario.lead_s)
    asked = _requests(spans)
    share *= _requests(within) / asked if asked > 0.0 else 1.0
    proven = max(proven if len(edges) == len(rates) else 0.0, bound)
    proven = proven if plan_usd is None else min(proven, plan_usd)
    return Hindsight(bound, plan_usd, proven, share, _attainment(context))


def _bare(cluster: Cluster) -> Cluster:
    """The cluster without headroom, with the declared floors and limits."""
    services = tuple(
        replace(s, utilization=1.0, survive="none", req_per_s=0.0) for s in cluster.services
    )
    return replace(cluster, services=services)


def _without_floor(service: Service) -> Service:
    return replace(service, min_instances=0)


def _candidates(cluster: Cluster, context: PolicyContext, rates: Floats) -> tuple[Combo, ...]:
    """The planner's candidates at the trace's lengths and at the largest rate of any minute."""
    demands = {
        s.model: Demand(s.model, float(rate), context.lengths_of(s))
        for s, rate in zip(cluster.services, rates.max(axis=0), strict=True)
        if rate > 0.0
    }
    problem = make_problem(cluster, demands, cluster_profile(cluster))
    return tuple(combo for model in demands for combo in problem.candidates[model])


def _usd_per_request(combos: Sequence[Combo], model: str) -> float:
    mine = [combo.usd_per_h / combo.req_per_s for combo in combos if combo.model == model]
    return min((usd for usd in mine if usd > 0.0), default=1e-6)


@dataclass(frozen=True, slots=True)
class _AtOneTime:
    """The cheapest fleet for one span. usd: proven least cost of its nodes. used: combos of the
    plan. served: the demand that it serves, by model."""

    usd: float
    used: frozenset[str]
    served: Mapping[str, float]


def _cheapest_at(cluster: Cluster, combos: Sequence[Combo], span: Span) -> _AtOneTime:
    """The cheapest fleet for `span`. If not all demand can be served, it is the cheapest fleet for
    the part that can."""
    program = fleet_at_one_time(cluster, combos, span)
    if not len(program.problem.demand_req_per_s):
        return _AtOneTime(0.0, frozenset(), {})
    got = solve(program.problem, _STATIC)
    rates = {combo.id: (combo.model, combo.req_per_s) for combo in combos}
    ready = {
        key.subject: int(count)
        for key, count in zip(program.keys, got.counts, strict=True)
        if count and key.kind is Kind.READY
    }
    capacity = dict.fromkeys(span.req_per_s, 0.0)
    for combo_id, count in ready.items():
        model, rate = rates[combo_id]
        capacity[model] = capacity.get(model, 0.0) + count * rate
    served = {
        model: min(1.0, (1.0 + 1e-6) * capacity[model] / asked)
        for model, asked in span.req_per_s.items()
        if asked > 0.0
    }
    return _AtOneTime(got.lower_bound_usd_per_h, frozenset(ready), served)


def _within_reach(span: Span, found: _AtOneTime) -> Span:
    """`span` with the demand that can be served."""
    asked = {
        model: rate * found.served.get(model, 1.0) * (1.0 - _ROUNDING)
        if found.served.get(model, 1.0) < 1.0
        else rate
        for model, rate in span.req_per_s.items()
    }
    return replace(span, req_per_s=asked)


def _plan(
    cluster: Cluster,
    combos: Sequence[Combo],
    used: frozenset[str],
    spans: Sequence[Span],
    market: Market,
    lead_s: float,
) -> tuple[float | None, float, float]:
    """The bill of the plan over time (None: no plan that fits), the bound of its cost (0: unknown),
    and the share of the demand that it serves. used: the combos of the plan if all combos are too
    many."""
    program = fleet_over_time(cluster, combos, spans, lead_s)
    whole = program.problem.columns <= _EXACT_COLUMNS
    if not whole:
        chosen = [combo for combo in combos if combo.id in used]
        program = fleet_over_time(cluster, chosen, spans, lead_s)
    if not len(program.problem.demand_req_per_s):
        return 0.0, 0.0, 1.0
    got = solve(program.problem, replace(_OVER_TIME, gap=_STATIC.gap) if whole else _OVER_TIME)
    if got.status is Status.FAILED:
        return None, 0.0, 0.0
    share = _served(program, got.counts, spans)
    stays = stays_of(program, got.counts, combos, spans, lead_s)
    usd = bill_usd(stays, cluster.pools, market)
    bound = got.lower_bound_usd_per_h if whole and share >= 1.0 else 0.0
    return usd, bound, share


def _requests(spans: Sequence[Span]) -> float:
    """The number of requests of all models in `spans`."""
    return sum((span.end_s - span.begin_s) * sum(span.req_per_s.values()) for span in spans)


def _served(program: FleetProgram, counts: Ints, spans: Sequence[Span]) -> float:
    """The share of the requests of all spans that the ready combos can serve."""
    asked, missing = _requests(spans), 0.0
    for key, count in zip(program.keys, counts, strict=True):
        if key.kind is Kind.UNSERVED and count:
            span = spans[key.span]
            part = min(1.0, count / UNSERVED_PARTS)
            missing += (span.end_s - span.begin_s) * part * span.req_per_s.get(key.subject, 0.0)
    return 1.0 if asked <= 0.0 else max(0.0, 1.0 - missing / asked)


def _attainment(context: PolicyContext) -> float:
    services: Mapping[str, float] = {
        s.model: s.percentile for s in context.scenario.cluster.services
    }
    counts = Counter(arrival.model for arrival in context.scenario.arrivals)
    asked = {m: context.scenario.weight_of(m) * counts[m] for m in services}
    total = sum(asked.values())
    return sum(services[m] * asked[m] for m in services) / total if total else 1.0
