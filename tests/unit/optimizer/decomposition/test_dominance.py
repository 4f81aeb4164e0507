"""Dominated columns: another column of the same row is as cheap and as fast and uses the same
resources.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.decomposition.dominance import dominated


def dominated_columns(
    rows: list[int], use: list[dict[int, float]], cost: list[float], rate: list[float]
) -> list[bool]:
    return dominated(
        np.array(rows),
        np.cumsum([0] + [len(one) for one in use]),
        np.array([r for one in use for r in one], dtype=np.int64),
        np.array([a for one in use for a in one.values()], dtype=np.float64),
        np.array(cost),
        np.array(rate),
        np.ones(len(rows), dtype=np.bool_),
    ).tolist()


def test_cheap_and_fast_columns_stay_among_those_with_equal_use() -> None:
    use = [{0: 1.0, 2: 2.0}] * 4
    assert dominated_columns([0] * 4, use, [1.0, 2.0, 3.0, 2.5], [1.0, 1.0, 2.0, 1.5]) == [
        False,
        True,
        False,
        False,
    ]


def test_one_of_several_identical_columns_stays() -> None:
    assert sum(dominated_columns([0] * 3, [{1: 1.0}] * 3, [1.0] * 3, [2.0] * 3)) == 2


def test_columns_of_other_rows_or_uses_do_not_dominate() -> None:
    """The expensive column of row 1 stays, and so does the column that uses
    less of the resource.
    """
    use = [{0: 2.0}, {0: 2.0}, {0: 1.0}]
    assert dominated_columns([0, 1, 0], use, [1.0, 9.0, 9.0], [5.0, 1.0, 1.0]) == [False] * 3


def test_the_order_of_resources_in_a_column_does_not_matter() -> None:
    use = [{0: 1.0, 1: 2.0}, {1: 2.0, 0: 1.0}]
    assert dominated_columns([0, 0], use, [1.0, 2.0], [1.0, 1.0]) == [False, True]


def test_columns_that_use_nothing_are_compared_too() -> None:
    assert dominated_columns([0, 0], [{}, {}], [2.0, 1.0], [1.0, 1.0]) == [True, False]


def test_only_dominated_columns_go_among_thousands_of_similar_ones() -> None:
    """The columns differ in one amount or one resource and are compared pair by pair."""
    rng = np.random.default_rng(1)
    use = [
        {int(r): float(rng.integers(1, 4)) for r in rng.choice(6, rng.integers(1, 4), False)}
        for _ in range(2000)
    ]
    rows = rng.integers(0, 3, len(use)).tolist()
    cost, rate = rng.integers(1, 9, len(use)).tolist(), rng.integers(1, 9, len(use)).tolist()
    out = dominated_columns(rows, use, [float(c) for c in cost], [float(r) for r in rate])
    same: dict[object, list[int]] = {}
    for n, one in enumerate(use):
        same.setdefault((rows[n], frozenset(one.items())), []).append(n)
    for members in same.values():
        pairs = {(cost[n], -rate[n]) for n in members}
        best = {
            p for p in pairs if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in pairs)
        }
        stays = [(cost[n], -rate[n]) for n in members if not out[n]]
        assert sorted(stays) == sorted(best)
