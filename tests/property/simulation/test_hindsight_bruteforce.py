"""The fleet over time against brute force: all counts of two combos over three spans.

Random prices, rates, demands and start-up times, on few nodes. The brute force tries every number
of ready combos in every span and counts the nodes by itself.
"""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.cluster import Cluster, Market, Policy, Pool, Service
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Phase, Slo
from autoscaler.optimizer.result import SolveOptions, Status
from autoscaler.optimizer.solve import solve
from autoscaler.performance import catalog
from autoscaler.simulation.hindsight.demand_spans import Market as Prices
from autoscaler.simulation.hindsight.demand_spans import Span, Steps
from autoscaler.simulation.hindsight.fleet_program import (
    FleetProgram,
    Kind,
    fleet_at_one_time,
    fleet_over_time,
)
from autoscaler.simulation.hindsight.instance_stays import stays_of
from autoscaler.simulation.hindsight.node_schedule import Stay, bill_usd

MINUTE_S = 60.0
EXACT = SolveOptions(gap=1e-9)
SPEC = catalog.model("meta-llama/Llama-3.1-8B-Instruct")


def pool(name: str, per_node: int, most: int, usd_per_h: float) -> Pool:
    return Pool("eu", name, catalog.gpu("L4"), per_node, most, Market.ON_DEMAND, usd_per_h)


def combo(model: str, where: Pool, gpus: int, rate: float, start_s: float) -> Combo:
    member = ComboMember(Phase.AGGREGATED, where.id, gpus, 1, rate)
    name = f"{model}:a{gpus}@{where.id}"
    return Combo(name, model, "eu", (member,), rate, 1.0, 1.0, 1.0, start_s)


def spans_for(pools: list[Pool], demands: list[dict[str, float]]) -> list[Span]:
    usd = {one.id: one.price_usd_per_h * MINUTE_S / 3600.0 for one in pools}
    most = {one.id: one.max_nodes for one in pools}
    return [
        Span(k * MINUTE_S, (k + 1) * MINUTE_S, asked, usd, most) for k, asked in enumerate(demands)
    ]


def constant(pools: list[Pool]) -> Prices:
    return Prices(
        {one.id: Steps((-math.inf,), (one.price_usd_per_h,)) for one in pools},
        {one.id: Steps((-math.inf,), (float(one.max_nodes),)) for one in pools},
    )


def by_brute_force(
    pools: list[Pool], combos: list[Combo], spans: list[Span], lead_s: float, most: int
) -> float:
    """The least cost of counts that serve every span; launches and stops are at span edges."""
    edges = [-lead_s, *(span.begin_s for span in spans)]
    hours = [lead_s / 3600.0, *(MINUTE_S / 3600.0 for _ in spans)]
    options = []
    for span in spans:
        fits = []
        for counts in itertools.product(range(most + 1), repeat=len(combos)):
            served: dict[str, float] = {}
            for one, n in zip(combos, counts, strict=True):
                served[one.model] = served.get(one.model, 0.0) + n * one.req_per_s
            if all(served.get(m, 0.0) >= d * (1 - 1e-9) for m, d in span.req_per_s.items()):
                fits.append(counts)
        options.append(fits)
    best = math.inf
    for course in itertools.product(*options):
        gpus = [dict.fromkeys((one.id for one in pools), 0) for _ in edges]
        before = (0,) * len(combos)
        for k, counts in enumerate(course):
            for c, (one, n) in enumerate(zip(combos, counts, strict=True)):
                where, size = one.members[0].pool, one.members[0].gpus
                gpus[k + 1][where] += size * n
                launch_s = max(-lead_s, spans[k].begin_s - one.start_s)
                started = max(0, n - before[c])
                for j in range(k + 1):
                    if edges[j + 1] > launch_s:
                        gpus[j][where] += size * started
            before = counts
        nodes = [[math.ceil(taken[one.id] / one.per_node) for one in pools] for taken in gpus]
        if all(n <= one.max_nodes for row in nodes for n, one in zip(row, pools, strict=True)):
            cost = sum(
                h * n * one.price_usd_per_h
                for h, row in zip(hours, nodes, strict=True)
                for n, one in zip(row, pools, strict=True)
            )
            best = min(best, cost)
    return best


def unserved(program: FleetProgram, counts: list[int]) -> bool:
    return any(n and key.kind is Kind.UNSERVED for key, n in zip(program.keys, counts, strict=True))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Pool], list[Combo], list[Span], float]:
    """Two pools, one or two models, and two combos of each at most."""
    price, part = st.floats(0.5, 4.0), st.floats(0.4, 1.0)
    pools = [
        pool("a", draw(st.sampled_from((1, 2))), draw(st.integers(1, 3)), draw(price)),
        pool("b", draw(st.sampled_from((1, 2, 4))), draw(st.integers(1, 2)), draw(price)),
    ]
    start = st.sampled_from((0.0, 45.0, 60.0, 100.0))
    models = draw(st.sampled_from((("m",), ("m", "n"))))
    combos = []
    for model in models:
        combos.append(combo(model, pools[0], 1, draw(part), draw(start)))
        if len(models) == 1 or model == "n":
            gpus = draw(st.sampled_from([g for g in (1, 2) if g <= pools[1].per_node]))
            combos.append(combo(model, pools[1], gpus, draw(part) * gpus, draw(start)))
    count = 3 if len(combos) == 2 else 2
    demands = [{model: draw(st.floats(0.1, 1.5)) for model in models} for _ in range(count)]
    return pools, combos, spans_for(pools, demands), draw(st.sampled_from((60.0, 120.0)))


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_the_program_costs_as_much_as_brute_force_and_bounds_and_bill_enclose_it(
    world: tuple[list[Pool], list[Combo], list[Span], float],
) -> None:
    """The bounds of the single spans add up to at most the cost of the program. The placed plan has
    the same ready instances on the nodes that it rents, and its bill is at least these bounds."""
    pools, combos, spans, lead_s = world
    services = tuple(Service(m, SPEC, Slo(1.0, 1.0), min_instances=0, utilization=1.0)
                     for m in spans[0].req_per_s)  # fmt: skip
    cluster = Cluster(tuple(pools), services, Policy())
    best = by_brute_force(pools, combos, spans, lead_s, most=4)
    program = fleet_over_time(cluster, combos, spans, lead_s)
    got = solve(program.problem, EXACT)
    assert got.status is not Status.FAILED
    if unserved(program, got.counts.tolist()):
        assert math.isinf(best)
        return
    assert got.cost_usd_per_h == pytest.approx(best, rel=1e-6)
    alone = [solve(fleet_at_one_time(cluster, combos, span).problem, EXACT) for span in spans]
    assert sum(one.lower_bound_usd_per_h for one in alone) <= best * (1 + 1e-9)
    stays = stays_of(program, got.counts, combos, spans, lead_s)
    usd = bill_usd(stays, pools, constant(pools))
    if usd is not None:
        assert usd >= sum(one.lower_bound_usd_per_h for one in alone) * (1 - 1e-9)
        assert_ready(program, got.counts.tolist(), stays, spans)


def assert_ready(
    program: FleetProgram, counts: list[int], stays: list[Stay], spans: list[Span]
) -> None:
    """Assert that every ready combo of the program has GPUs throughout its span."""
    for k, span in enumerate(spans):
        ready: dict[str, int] = {}
        for key, n in zip(program.keys, counts, strict=True):
            if key.kind is Kind.READY and key.span == k:
                where = key.subject.partition("@")[2]
                ready[where] = ready.get(where, 0) + n
        for where, n in ready.items():
            there = (
                stay.pool == where and stay.launch_s <= span.begin_s and span.end_s <= stay.stop_s
                for stay in stays
            )
            assert sum(there) >= n
