"""Dominated columns: same row, same use, no cheaper, no faster."""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.decomposition.dominance import dominated


def found(
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


def test_of_equal_uses_the_cheap_and_the_fast_columns_stay() -> None:
    use = [{0: 1.0, 2: 2.0}] * 4
    assert found([0] * 4, use, [1.0, 2.0, 3.0, 2.5], [1.0, 1.0, 2.0, 1.5]) == [
        False,
        True,
        False,
        False,
    ]


def test_of_identical_columns_one_stays() -> None:
    assert sum(found([0] * 3, [{1: 1.0}] * 3, [1.0] * 3, [2.0] * 3)) == 2


def test_other_rows_and_other_uses_are_no_reason() -> None:
    """The dear column of row 1 and the one that uses less of the resource both stay."""
    use = [{0: 2.0}, {0: 2.0}, {0: 1.0}]
    assert found([0, 1, 0], use, [1.0, 9.0, 9.0], [5.0, 1.0, 1.0]) == [False] * 3


def test_the_order_of_resources_in_a_column_does_not_matter() -> None:
    use = [{0: 1.0, 1: 2.0}, {1: 2.0, 0: 1.0}]
    assert found([0, 0], use, [1.0, 2.0], [1.0, 1.0]) == [False, True]


def test_columns_that_use_nothing_are_compared_too() -> None:
    assert found([0, 0], [{}, {}], [2.0, 1.0], [1.0, 1.0]) == [True, False]
