"""Plans of component graphs, compared with an independent PuLP version of the paper's program."""

from __future__ import annotations

import numpy as np
import pulp
import pytest

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.component_graph import ComponentGraph, Deployment, RequestType
from autoscaler.domain.validation import InvalidValue
from autoscaler.modes.components.component_program import (
    cheapest_for_rate,
    component_problem,
    most_for_budget,
)
from autoscaler.performance import catalog

A100, L40S = catalog.gpu("A100"), catalog.gpu("L40S")


def pool(name: str, region: str = "us", **rest: object) -> Pool:
    gpu = A100 if name.startswith("a100") else L40S
    said = {"per_node": 1, "max_nodes": 30, "market": Market.ON_DEMAND, "price_usd_per_h": 1.0}
    return Pool(region, name, gpu, **(said | rest))  # type: ignore[arg-type]


def graph(seed: int, rate: float = 3.0, **rest: object) -> ComponentGraph:
    rng = np.random.default_rng(seed)
    parts = [("see",), ("think",), ("speak",), ("see", "think"), ("see", "think", "speak")]
    options = tuple(
        Deployment("+".join(part), frozenset(part), 1, {A100.name: float(b)})
        for part, b in zip(parts, rng.uniform(0.3, 3.0, len(parts)), strict=True)
    )
    shares = rng.dirichlet(np.ones(3))
    uses = (("think",), ("see", "think"), ("see", "think", "speak"))
    types = tuple(
        RequestType("+".join(use), float(share), frozenset(use))
        for use, share in zip(uses, shares, strict=True)
    )
    after = {"see": frozenset[str](), "think": frozenset({"see"}), "speak": frozenset({"think"})}
    return ComponentGraph("omni", after, types, options, rate, **rest)  # type: ignore[arg-type]


def papers_program(g: ComponentGraph, gpus: int | None, rate: float | None) -> float:
    """The program of App. B. It minimises GPUs for a rate, or maximises the rate for a number of
    GPUs.
    """
    problem = pulp.LpProblem("b", pulp.LpMinimize if gpus is None else pulp.LpMaximize)
    copies = {
        o.name: problem.add_variable(f"r_{i}", 0, None, cat="Integer")
        for i, o in enumerate(g.deployments)
    }
    total = problem.add_variable("R", 0)
    work = {name: [] for name in copies}
    seconds = g.seconds(A100.name)
    for t, kind in enumerate(g.types):
        flows = []
        for p, path in enumerate(g.paths(kind)):
            x = problem.add_variable(f"x_{t}_{p}", 0)
            flows.append(x)
            for hop in path:
                work[hop.deployment.name].append(seconds[hop.deployment.name, hop.role] * x)
        problem += pulp.lpSum(flows) == kind.share * total
    for name, terms in work.items():
        problem += pulp.lpSum(terms) <= copies[name]
    used = pulp.lpSum(o.gpus * copies[o.name] for o in g.deployments)
    if gpus is None:
        problem += total == rate
        problem.setObjective(used)
    else:
        problem += used <= gpus
        problem.setObjective(total)
    problem.solve(pulp.HiGHS(msg=False, gapRel=1e-9))
    return float(pulp.value(problem.objective))


@pytest.mark.parametrize("seed", range(12))
def test_both_objectives_equal_those_of_the_paper(seed: int) -> None:
    """With one GPU type at 1 USD/h: the fewest GPUs for a rate, and the largest
    rate for six GPUs.
    """
    g = graph(seed)
    least = cheapest_for_rate(component_problem((g,), (pool("a100"),)), gap=1e-9)
    assert least.usd_per_h == pytest.approx(papers_program(g, None, g.req_per_s))
    assert least.multiple >= 1.0 - 1e-6
    most = most_for_budget(component_problem((g,), (pool("a100"),), 6.0), gap=1e-9)
    assert most.multiple * g.req_per_s == pytest.approx(papers_program(g, 6, None), rel=1e-6)


def test_paths_stay_in_one_region_and_their_shares_sum_to_one() -> None:
    """Each of two regions is too small alone, and no request crosses between them."""
    g = graph(3)
    pools = (pool("a100", "us", max_nodes=3), pool("a100", "eu", max_nodes=9))
    plan = most_for_budget(component_problem((g,), pools, 12.0))
    for kind in g.types:
        routes = [route for route in plan.routes if route.type == kind]
        assert sum(route.fraction for route in routes) == pytest.approx(1.0)
        assert all(len({hop.pool.region for hop in route.hops}) == 1 for route in routes)
    assert {one.pool.region for one, _ in plan.instances} == {"us", "eu"}


def test_paths_on_spot_serve_at_most_the_spot_share() -> None:
    """A path depends on spot if one of its visits does."""
    pools = (pool("a100"), pool("a100s", market=Market.SPOT, price_usd_per_h=0.2))
    for share in (0.0, 0.4, 1.0):
        g = graph(5, spot_share=share)
        plan = cheapest_for_rate(component_problem((g,), pools))
        on_spot = sum(
            route.fraction * route.type.share
            for route in plan.routes
            if any(hop.pool.market is Market.SPOT for hop in route.hops)
        )
        assert on_spot <= share + 1e-6
        assert (on_spot > 0.0) == (share > 0.0)


def test_unserved_demand_is_stated_with_its_reason() -> None:
    """There are three reasons: no A100 is declared, too few are declared, or the budget pays for
    none.
    """
    g = graph(1)
    with pytest.raises(InvalidValue, match="components deployed on declared GPUs"):
        component_problem((g,), (pool("l40s"),))
    with pytest.raises(InvalidValue, match="what the pools can serve"):
        cheapest_for_rate(component_problem((g,), (pool("a100", max_nodes=1),)))
    with pytest.raises(InvalidValue, match="budget"):
        most_for_budget(component_problem((g,), (pool("a100"),), 0.5))
