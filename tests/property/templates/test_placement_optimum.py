"""The compiled placement search, compared with two independent methods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.validation import InvalidValue
from loadtests.placement import Placement, PlacementSearch
from tests.property.templates.placement_oracle import (
    Floats,
    best_placement_by_dp,
    best_placement_by_ilp,
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, list[int]]:
    """The nodes of one case, and a table of whole numbers, so that sums are exact."""
    configs = draw(st.integers(1, 4))
    layers = draw(st.integers(1, 9))
    stages = draw(st.integers(1, 6))
    nodes = draw(st.lists(st.integers(0, configs - 1), min_size=1, max_size=6))
    size = stages * configs * layers
    values = draw(st.lists(st.integers(0, 40), min_size=size, max_size=size))
    table = np.array(values, dtype=np.float64).reshape(stages, configs, layers)
    return -np.sort(-table, axis=2), nodes


def assert_is_placement(found: Placement, table: Floats, nodes: list[int]) -> None:
    """Assert that this is a placement with the stated rate.

    The stages split the nodes, and their layers add up to the model's.
    """
    if not found.stages:
        assert found.req_per_s == 0.0
        return
    assert sorted(c for stage in found.stages for c in stage.nodes) == sorted(nodes)
    assert sum(stage.layers for stage in found.stages) == table.shape[2]
    s = len(found.stages) - 1
    slowest = min(sum(table[s, c, stage.layers - 1] for c in stage.nodes) for stage in found.stages)
    assert found.req_per_s == pytest.approx(slowest, rel=1e-12)


@settings(max_examples=300, deadline=None)
@given(cases())
def test_search_equals_a_dynamic_program(
    case: tuple[Floats, list[int]],
) -> None:
    """Every value is a sum of whole numbers, so equality is exact."""
    table, nodes = case
    found = PlacementSearch(table).best(nodes)
    assert found.req_per_s == best_placement_by_dp(table, nodes)
    assert_is_placement(found, table, nodes)


def test_a_table_that_rises_in_layers_is_refused() -> None:
    """The search assumes that a stage with more layers is never faster."""
    with pytest.raises(InvalidValue, match=r"layers 2\]: 2.0"):
        PlacementSearch(np.array([[[1.0, 2.0]]]))


@settings(max_examples=150, deadline=None)
@given(cases())
def test_chains_put_one_node_in_each_stage(case: tuple[Floats, list[int]]) -> None:
    """An engine without data parallelism inside a stage can run such placements."""
    table, nodes = case
    found = PlacementSearch(table).best(nodes, only_chains=True)
    assert found.req_per_s == best_placement_by_dp(table, nodes, chains=True)
    assert all(len(stage.nodes) == 1 for stage in found.stages)


def roofline_like(seed: int, configs: int, stages: int, layers: int) -> Floats:
    """Realistic tables: speed / layers, up to the limit of memory or of the
    stage's latency budget.
    """
    rng = np.random.default_rng(seed)
    speed = rng.uniform(5.0, 500.0, configs)
    fits = rng.integers(1, layers + 1, configs)
    budget = rng.uniform(0.3, 3.0, configs)
    table = np.zeros((stages, configs, layers))
    for s in range(1, stages + 1):
        for c in range(configs):
            for j in range(1, layers + 1):
                if j <= fits[c] and j * s <= budget[c] * layers:
                    table[s - 1, c, j - 1] = speed[c] / j * (1 - 0.1 * (j * s / layers) / budget[c])
    return table


@pytest.mark.parametrize("seed", range(18))
def test_search_equals_the_ilp_of_the_paper(seed: int) -> None:
    """The ILP is that of Coral, linearised. HiGHS solves it for every stage count."""
    rng = np.random.default_rng(1000 + seed)
    size = 1 + seed % 6
    layers = int(rng.integers(max(2, size), 9))
    table = roofline_like(seed, 3, size, layers)
    nodes = [int(c) for c in rng.integers(0, 3, size)]
    found = PlacementSearch(table).best(nodes)
    assert found.req_per_s == pytest.approx(best_placement_by_ilp(table, nodes), rel=1e-6, abs=1e-6)
    assert_is_placement(found, table, nodes)


@pytest.mark.parametrize("seed", range(40))
def test_search_is_exact_at_the_depth_of_real_models(seed: int) -> None:
    """Cases of up to 94 layers and six nodes are compared with the dynamic program."""
    rng = np.random.default_rng(seed)
    layers = int(rng.choice([24, 36, 64, 80, 94]))
    table = roofline_like(seed, 4, 6, layers)
    nodes = [int(c) for c in rng.integers(0, 4, int(rng.integers(2, 5)))]
    found = PlacementSearch(table).best(nodes)
    assert found.req_per_s == pytest.approx(best_placement_by_dp(table, nodes), rel=1e-12)
