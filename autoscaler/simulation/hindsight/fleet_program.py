"""The fleet over time as one allocation problem: combos that are ready, start and switch in each
span, and the nodes that they need.

    ready      at most the combos ready in the span before, plus starts and switches to the combo,
               less switches to other combos (a stop costs nothing)
    start      occupies its GPUs in the spans that its start-up overlaps
    nodes      whole nodes of each rented pool, at the price of the span
    unserved   a twentieth of a model's demand in a span, far dearer than any node; `broken` is the
               same for a floor or a spot limit

Rows of each span: demand and spot limit of each model, its floor and ceiling, the GPUs of each
pool, limits on nodes that pools share, and the budget. `survive` is not planned for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.cluster import Cluster, Market, Service
from autoscaler.domain.combo import Combo
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.planning.combo_usage import is_spot, slices_of
from autoscaler.planning.problem_builder import ArrayBuilder
from autoscaler.simulation.hindsight.demand_spans import Span

UNSERVED_PARTS = 20
"""Number of equal parts of a demand; each part may stay unserved."""
_LEAST_USD = 0.01
_UNSERVED_USD = 100.0
"""Price of unserved demand, as a multiple of the most expensive nodes that it could need."""


class Kind(StrEnum):
    """The kind of thing that a column counts."""

    READY = "ready"
    START = "start"
    SWITCH = "switch"
    NODES = "nodes"
    UNSERVED = "unserved"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Key:
    """A column: its kind, the span, and the combo, pool or model that it counts. source: the combo
    that switches."""

    kind: Kind
    span: int
    subject: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class FleetProgram:
    """`problem` with the meaning of its columns."""

    problem: AllocationProblem
    keys: tuple[Key, ...]


SwitchClass = tuple[str, frozenset[tuple[tuple[str, int], int]]]
"""(model, slices of a combo); for a combo that cannot switch, its id instead of the slices."""


def switch_class(combo: Combo) -> SwitchClass:
    """Combos with equal classes can switch roles in place."""
    if len(combo.members) < 2 or not combo.can_switch_roles:
        return combo.id, frozenset()
    return combo.model, frozenset(slices_of(combo).items())


def fleet_at_one_time(cluster: Cluster, combos: Sequence[Combo], span: Span) -> FleetProgram:
    """The cheapest fleet for the demand of `span`, without start-up."""
    return _program(cluster, combos, [span], 0.0, moves=False)


def fleet_over_time(
    cluster: Cluster, combos: Sequence[Combo], spans: Sequence[Span], lead_s: float
) -> FleetProgram:
    """The cheapest fleet over `spans`, which begin at 0 and follow each other. No instance is ready
    before 0. The cost includes start-ups before 0, but at most the last `lead_s` seconds."""
    return _program(cluster, combos, spans, lead_s, moves=True)


def _program(
    cluster: Cluster, combos: Sequence[Combo], spans: Sequence[Span], lead_s: float, moves: bool
) -> FleetProgram:
    builder: ArrayBuilder[Key] = ArrayBuilder()
    of = {s.model: [c for c in combos if c.model == s.model] for s in cluster.services}
    services = [s for s in cluster.services if of[s.model]]
    gpu_rows = [_add_nodes(builder, cluster, k, span) for k, span in enumerate(spans)]
    if moves:
        lead = _lead_span(spans[0], lead_s)
        gpu_rows = [_add_nodes(builder, cluster, -1, lead), *gpu_rows]
    balance: list[dict[str, int]] = [
        {c.id: builder.resource("balance", c.id, 0.0) for c in combos} if moves else {}
        for _ in spans
    ]
    for k, span in enumerate(spans):
        gpus = gpu_rows[k + 1] if moves else gpu_rows[k]
        for service in services:
            _add_ready(builder, service, of[service.model], k, span, gpus, balance, moves)
    if moves:
        begins = [-lead_s, *(span.begin_s for span in spans)]
        for k, span in enumerate(spans):
            for combo in combos:
                launch_s = max(-lead_s, span.begin_s - combo.start_s)
                early = [gpu_rows[j] for j in range(k + 1) if begins[j + 1] > launch_s]
                use = {balance[k][combo.id]: -1.0}
                for pool, gpus_taken in combo.gpus_by_pool().items():
                    use |= {rows[pool]: float(gpus_taken) for rows in early}
                builder.column(Key(Kind.START, k, combo.id), 0.0, math.inf, {}, use)
            for service in services:
                _add_switches(builder, of[service.model], k, balance[k])
    return FleetProgram(builder.build(), tuple(builder.keys))


def _lead_span(first: Span, lead_s: float) -> Span:
    share = lead_s / (first.end_s - first.begin_s)
    usd = {pool: share * price for pool, price in first.usd_per_node.items()}
    return Span(-lead_s, 0.0, {}, usd, first.most_nodes)


def _add_nodes(builder: ArrayBuilder[Key], cluster: Cluster, k: int, span: Span) -> dict[str, int]:
    """Add the GPU rows of all pools and the columns of rented nodes; return the rows by pool."""
    rows: dict[str, int] = {}
    shared: dict[str, int] = {}
    for (region, name), members in cluster.pools_by_shared_limit().items():
        row = builder.resource("nodes", f"{region}/{name}", float(members[0].max_of_both))
        shared |= {pool.id: row for pool in members}
    budget = cluster.policy.budget_usd_per_h
    hours = (span.end_s - span.begin_s) / 3600.0
    spent = builder.resource("budget", "*", budget * hours) if budget > 0.0 else None
    for pool in cluster.pools:
        most, owned = span.most_nodes[pool.id], pool.market is Market.OWNED
        rows[pool.id] = builder.resource("GPUs", pool.id, float(owned * most * pool.per_node))
        if not owned and most > 0:
            use = {rows[pool.id]: -float(pool.per_node)}
            if pool.id in shared:
                use[shared[pool.id]] = 1.0
            price = span.usd_per_node[pool.id]
            if spent is not None:
                use[spent] = price
            builder.column(Key(Kind.NODES, k, pool.id), price, float(most), {}, use)
    return rows


def _add_ready(
    builder: ArrayBuilder[Key],
    service: Service,
    combos: Sequence[Combo],
    k: int,
    span: Span,
    gpus: Mapping[str, int],
    balance: Sequence[Mapping[str, int]],
    moves: bool,
) -> None:
    model, asked = service.model, span.req_per_s.get(service.model, 0.0)
    demand = builder.demand("demand", model, asked, 0) if asked > 0.0 else None
    spot = [is_spot(combo) for combo in combos]
    firm = None
    if asked > 0.0 and service.spot_share < 1.0 and any(spot) and not all(spot):
        firm = builder.demand("off spot", model, (1.0 - service.spot_share) * asked, 0)
    floor = service.min_instances
    least = builder.demand("floor", model, float(floor), 0) if floor else None
    ceiling = service.max_instances
    most = builder.resource("ceiling", model, float(ceiling)) if ceiling else None
    for combo in combos:
        serve, use = {}, {gpus[p]: float(n) for p, n in combo.gpus_by_pool().items()}
        if demand is not None:
            serve[demand] = combo.req_per_s
        if firm is not None and not is_spot(combo):
            serve[firm] = combo.req_per_s
        if least is not None:
            serve[least] = 1.0
        if most is not None:
            use[most] = 1.0
        if moves:
            use[balance[k][combo.id]] = 1.0
            if k + 1 < len(balance):
                use[balance[k + 1][combo.id]] = -1.0
        builder.column(Key(Kind.READY, k, combo.id), 0.0, math.inf, serve, use)
    if moves:
        nodes = max(1.0, asked / (UNSERVED_PARTS * min(combo.req_per_s for combo in combos)))
        for kind, row, amount in (
            (Kind.UNSERVED, demand, asked),
            (Kind.BROKEN, firm, (1.0 - service.spot_share) * asked),
            (Kind.BROKEN, least, float(floor)),
        ):
            if row is not None:
                usd = _UNSERVED_USD * nodes * max(_LEAST_USD, *span.usd_per_node.values())
                key = Key(kind, k, model)
                builder.column(key, usd, float(UNSERVED_PARTS), {row: amount / UNSERVED_PARTS}, {})


def _add_switches(
    builder: ArrayBuilder[Key], combos: Sequence[Combo], k: int, balance: Mapping[str, int]
) -> None:
    for one in combos:
        for other in combos:
            if one.id != other.id and switch_class(one) == switch_class(other):
                use = {balance[one.id]: 1.0, balance[other.id]: -1.0}
                key = Key(Kind.SWITCH, k, other.id, one.id)
                builder.column(key, 0.0, math.inf, {}, use)
