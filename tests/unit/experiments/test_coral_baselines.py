"""Coral's baselines, compared with plans that were worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.optimizer.array_types import Ints
from autoscaler.performance.packaged_profile import default_profile
from loadtests.allocation_account import account
from loadtests.experiments.coral_baselines import cauchy, combos, homo, replicas
from loadtests.experiments.coral_scarce import most, scarce
from loadtests.experiments.coral_setup import SETUPS, instance, libraries
from loadtests.template_problem import TemplateProblem


def small(demand: float = 4.0, nodes: int = 10) -> TemplateProblem:
    """A problem with one model and two node types, of 1 and 3 USD/h.

    Prefill serves 1 and 2 req/s on one node of either type, and 5 on one node of each. Decode
    serves 1 and 4 req/s.
    """
    pure = np.array([[1, 0], [0, 1]], dtype=np.uint8)
    return TemplateProblem(
        price_usd_per_h=np.array([[1.0, 3.0]]),
        available_nodes=np.array([[nodes, nodes]], dtype=np.int32),
        demand_req_per_s=np.array([demand, demand]),
        nodes=(np.vstack([pure, [[1, 1]]]).astype(np.uint8), pure),
        throughput_req_per_s=(np.array([1.0, 2.0, 5.0]), np.array([1.0, 4.0])),
        start_penalty=0.0,
    )


def test_baselines_use_only_homogeneous_replicas() -> None:
    """A template of both node types would be the cheapest, but neither baseline may use it."""
    made = small()
    assert [(one.config, one.req_per_s) for one in replicas(made, 0)] == [(0, 1.0), (1, 2.0)]
    for rows in (homo(made), cauchy(made, [(0, 1)])):
        assert not any(group == 0 and template == 2 for group, _, template, _ in rows)


def counted(made: TemplateProblem, rows: Ints) -> tuple[float, float]:
    """(USD/h, smallest served share of demand among the groups) of the plan `rows`."""
    usd_per_h, served, excess = account(made, rows)
    assert not excess
    return usd_per_h, float((served / made.demand_req_per_s).min())


def test_homo_takes_the_most_goodput_per_dollar() -> None:
    """Prefill uses four nodes of 1 USD/h. Decode uses one node of 3 USD/h for 4 req/s."""
    assert sorted(map(tuple, homo(small()).tolist())) == [(0, 0, 0, 4), (1, 0, 1, 1)]
    assert counted(small(), homo(small())) == (7.0, 1.0)


def test_homo_uses_the_next_node_type_if_nodes_run_out() -> None:
    """Prefill uses three nodes of 1 USD/h and one of 3 USD/h. Decode uses one of 3 USD/h."""
    assert counted(small(nodes=3), homo(small(nodes=3))) == (9.0, 1.0)


def test_cauchy_matches_prefill_and_decode_and_serves_the_demand() -> None:
    usd_per_h, share = counted(small(), cauchy(small(), [(0, 1)]))
    assert share >= 1.0
    assert usd_per_h >= 7.0


def test_cauchy_serves_as_much_as_possible_if_demand_cannot_be_met() -> None:
    made = small(demand=100.0, nodes=2)
    assert 0.0 < counted(made, cauchy(made, [(0, 1)]))[1] < 1.0


def test_demand_is_lowered_until_a_method_serves_every_model() -> None:
    """The nodes left for prefill serve 20 of 30 req/s."""
    made = small(demand=30.0, nodes=10)
    found = most(made, lambda problem: homo(problem, 1))
    assert found.goodput == 0.66
    assert most(small(), lambda problem: homo(problem, 1)).goodput == 1.0


def test_a_seed_always_gives_the_same_few_scarce_nodes() -> None:
    setup = SETUPS["core"]
    phi = replace(setup, models=setup.models[:1])
    plenty = instance(phi, libraries(phi, default_profile()), "balanced", 1000)
    one, again, other = (scarce(phi, plenty, seed) for seed in (1, 1, 2))
    assert 1 <= one.available_nodes.sum() <= 20
    assert (one.available_nodes == again.available_nodes).all()
    assert (one.available_nodes != other.available_nodes).any()


def test_every_pair_of_replicas_has_a_combo_with_a_single_prefill_replica() -> None:
    """A combo with two prefill replicas costs less per request, but both nodes may not be
    available.
    """
    found = combos(small(), [(0, 1)])
    every = {(one.prefill.config, one.decode.config) for one in found}
    single = {(one.prefill.config, one.decode.config) for one in found if one.p == 1}
    assert single == every
    assert any(one.p == 2 for one in found)
