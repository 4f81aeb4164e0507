"""Cornserve's network-aware program (App. A) on small cases, compared with the program of Shoal.

Shoal's program omits the network (sec. 4.3) and plans one fast domain at a time. The test states
the program with nodes and links independently. It binds each path to its nodes, because App. A does
not bind flows and replicas. It compares this program with a brute force and with Shoal's program.
"""

from __future__ import annotations

import itertools
import math

import pulp
import pytest

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.component_graph import ComponentGraph, Deployment, RequestType
from autoscaler.modes.components.component_program import component_problem, most_for_budget
from autoscaler.performance import catalog

GPU = catalog.gpu("A100")
EDGE_GB = 1.0  # Data that every visit except the first transfers
Placing = dict[tuple[str, int], int]


def _graph(image_share: float, llm: float) -> ComponentGraph:
    uses = {"text": frozenset({"llm"}), "photo": frozenset({"image", "llm"})}
    shares = {"text": 1.0 - image_share, "photo": image_share}
    rates = {"image": 5.0, "llm": llm}
    both = 1.0 / (1.3 * (1.0 / llm + image_share / 5.0))
    return ComponentGraph(
        "omni",
        {"image": frozenset(), "llm": frozenset({"image"})},
        tuple(RequestType(name, shares[name], uses[name]) for name in uses),
        (
            Deployment("image", frozenset({"image"}), 1, {GPU.name: rates["image"] / image_share}),
            Deployment("llm", frozenset({"llm"}), 1, {GPU.name: llm}),
            Deployment("both", frozenset({"image", "llm"}), 1, {GPU.name: both}),
        ),
        1.0,
    )


def _routed(
    graph: ComponentGraph,
    nodes: int,
    gpus: int,
    link_gb_s: float,
    fixed: Placing | None = None,
) -> float:
    """The most requests/s on `nodes` nodes of `gpus` GPUs, with a link of `link_gb_s` between each
    pair.

    fixed: the placement of replicas; None = free.
    """
    model = pulp.LpProblem("topology", pulp.LpMaximize)
    rate = pulp.LpVariable("R", 0)
    names = [option.name for option in graph.deployments]
    replicas: dict[tuple[str, int], object] = {}
    for name, h in itertools.product(names, range(nodes)):
        known = None if fixed is None else fixed.get((name, h), 0)
        most = gpus if known is None else known
        least = 0 if known is None else known
        replicas[name, h] = pulp.LpVariable(f"y_{name}_{h}", least, most, cat="Integer")
    seconds = graph.seconds(GPU.name)
    work: dict[tuple[str, int], list[object]] = {key: [] for key in replicas}
    links: dict[tuple[int, int], list[object]] = {}
    for kind in graph.types:
        flows = []
        for number, path in enumerate(graph.paths(kind)):
            for on in itertools.product(range(nodes), repeat=len(path)):
                flow = pulp.LpVariable(f"x_{kind.name}_{number}_{'_'.join(map(str, on))}", 0)
                flows.append(flow)
                for hop, h in zip(path, on, strict=True):
                    work[hop.deployment.name, h].append(
                        seconds[hop.deployment.name, hop.role] * flow
                    )
                for a, b in itertools.pairwise(on):
                    if a != b:
                        links.setdefault((a, b), []).append(EDGE_GB * flow)
        model += pulp.lpSum(flows) == kind.share * rate
    for key, terms in work.items():
        model += pulp.lpSum(terms) <= replicas[key]
    for terms in links.values():
        model += pulp.lpSum(terms) <= link_gb_s
    if fixed is None:
        for h in range(nodes):
            model += pulp.lpSum(replicas[name, h] for name in names) <= gpus
    model += rate
    model.solve(pulp.HiGHS(msg=False))
    return float(pulp.value(rate) or 0.0)


def _plain(graph: ComponentGraph, gpus: int) -> tuple[float, dict[str, int]]:
    pool = Pool("r", "a100", GPU, 1, gpus, Market.ON_DEMAND, 1.0)
    plan = most_for_budget(component_problem((graph,), (pool,), math.inf))
    return plan.multiple, {one.deployment.name: n for one, n in plan.instances}


def _spread(counts: dict[str, int], nodes: int, gpus: int) -> list[Placing]:
    """All ways to place these replicas on the nodes."""
    each = [
        [split for split in itertools.product(range(n + 1), repeat=nodes) if sum(split) == n]
        for n in counts.values()
    ]
    found = []
    for splits in itertools.product(*each):
        if all(sum(split[h] for split in splits) <= gpus for h in range(nodes)):
            placing = {
                (name, h): split[h]
                for name, split in zip(counts, splits, strict=True)
                for h in range(nodes)
            }
            found.append(placing)
    return found


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pulp")
CASES = [(0.5, 2.0), (0.9, 6.0), (0.3, 4.0)]


@pytest.mark.parametrize(("image_share", "llm"), CASES)
def test_both_programs_agree_on_a_network_without_limits(image_share: float, llm: float) -> None:
    graph = _graph(image_share, llm)
    plain, _ = _plain(graph, 4)
    assert _routed(graph, 2, 2, 1e6) == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(("image_share", "llm"), CASES)
@pytest.mark.parametrize("link_gb_s", [0.0, 0.4])
def test_the_network_aware_plan_is_at_least_as_good_as_a_placed_plain_plan(
    image_share: float, llm: float, link_gb_s: float
) -> None:
    """The plain plan without a network is an upper bound."""
    graph = _graph(image_share, llm)
    plain, counts = _plain(graph, 4)
    aware = _routed(graph, 2, 2, link_gb_s)
    placed = [_routed(graph, 2, 2, link_gb_s, where) for where in _spread(counts, 2, 2)]
    assert max(placed) <= aware * (1.0 + 1e-6)
    assert aware <= plain * (1.0 + 1e-6)


@pytest.mark.parametrize("link_gb_s", [0.0, 0.3, 2.0])
def test_the_program_with_a_network_equals_brute_force(link_gb_s: float) -> None:
    """The brute force tries every placement of up to four replicas on two nodes of two GPUs."""
    graph = _graph(0.6, 3.0)
    best = 0.0
    for split in itertools.product(range(3), repeat=6):
        if sum(split[:3]) <= 2 and sum(split[3:]) <= 2:
            names = [option.name for option in graph.deployments]
            where = {(name, h): split[3 * h + n] for h in range(2) for n, name in enumerate(names)}
            best = max(best, _routed(graph, 2, 2, link_gb_s, where))
    assert _routed(graph, 2, 2, link_gb_s) == pytest.approx(best, rel=1e-5)
