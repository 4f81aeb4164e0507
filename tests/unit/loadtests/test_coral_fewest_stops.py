"""What the gap allows to cost more is spent on keeping what runs, and no more than that."""

from __future__ import annotations

import numpy as np
import pytest

from loadtests.coral.decomposition import solve_decomposed
from loadtests.coral.fewest_stops import fewest_stops
from loadtests.coral.instance import TemplateInstance, lower
from loadtests.coral.limits import SearchOptions
from loadtests.coral.warm import with_running


@pytest.mark.parametrize(("most_usd_per_h", "kept"), [(1.95, 1), (2.01, 2), (1.88, 0)])
def test_as_many_stay_as_the_cost_allows(most_usd_per_h: float, kept: int) -> None:
    """Two run at 1 USD/h each; another kind, started anew, would serve for 0.935 USD/h each."""
    instance = TemplateInstance(
        price_usd_per_h=np.array([[1.0, 0.85]]),
        available_nodes=np.array([[4, 4]], dtype=np.int32),
        demand_req_per_s=np.array([2.0]),
        nodes=(np.array([[1, 0], [0, 1]], dtype=np.uint8),),
        throughput_req_per_s=(np.array([1.0, 1.0]),),
        start_penalty=0.1,
    )
    running = np.array([[0, 0, 0, 2]], dtype=np.int64)
    near = with_running(instance, lower(instance), running, 0.0)
    options = SearchOptions()
    cheapest = solve_decomposed(near, options, None)
    assert cheapest.plan is not None
    assert cheapest.plan.money(near) == pytest.approx(1.87)
    tokens = np.array([False, False, True])
    found, _ = fewest_stops(near, cheapest, tokens, most_usd_per_h, options)
    assert found is not None
    assert int(found.use.sum(axis=0)[2]) == kept
    assert found.money(near) <= most_usd_per_h
