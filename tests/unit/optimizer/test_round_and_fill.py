"""Plans that are made without a search fit, and they use the available capacity."""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.round_and_fill import filled, rounded
from tests.property.optimizer.test_allocation_bruteforce import columns


def test_the_row_with_the_largest_shortfall_is_filled_first() -> None:
    offer = [(1.0, 9.0, {row: 1.0}, {0: 1.0}) for row in (0, 1)]
    problem = columns(offer, [4.0, 8.0], [6.0])
    got = filled(problem, np.array([2, 0]), np.array([0, 1]), np.ones(2))
    assert got.tolist() == [2, 4]


def test_the_column_that_serves_most_of_the_shortfall_for_its_cost_is_chosen() -> None:
    """The large column is the cheapest per request/s, but it serves far more
    than the missing unit.
    """
    large, small = (4.0, 9.0, {0: 5.0}, {0: 1.0}), (1.0, 9.0, {0: 1.0}, {0: 1.0})
    problem = columns([large, small], [6.0], [9.0])
    assert filled(problem, np.zeros(2, dtype=np.int64), np.array([0]), np.ones(1)).tolist() == [
        1,
        1,
    ]


def test_fractions_are_rounded_within_the_available_nodes() -> None:
    """The relaxation has 2.5 nodes of 4 GPUs, but only two nodes exist. The rounded plan uses only
    the GPUs of two nodes.
    """
    node, runs = (1.0, 9.0, {}, {0: -4.0, 1: 1.0}), (0.1, 99.0, {0: 1.0}, {0: 1.0})
    problem = columns([node, runs], [20.0], [0.0, 2.0])
    got = rounded(problem, np.array([2.5, 10.0]))
    assert (problem.used(got) <= problem.capacity).all()
    assert got[0] == 2 and got[1] >= 7
