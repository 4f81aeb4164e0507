"""Mixtures of cells: Cornserve's algorithms and the exact mixture, compared with brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.modes.components.component_cells import Cell, efficient_cells
from loadtests.experiments.cell_mixtures import fewest_gpus, greedy_mixture


def gpus(mixture: dict[int, int]) -> int:
    return sum(size * count for size, count in mixture.items())


def rate(cells: list[Cell], mixture: dict[int, int]) -> float:
    by_size = {cell.gpus: cell.req_per_s for cell in cells}
    return sum(by_size[size] * count for size, count in mixture.items())


def test_inefficient_cell_sizes_are_left_out() -> None:
    """These are a cell of four GPUs that serves no more than two cells of two, and a GPU that
    cannot hold the model.
    """
    found = efficient_cells({1: 0.0, 2: 2.0, 4: 4.0, 8: 9.0})
    assert found == (Cell(2, 2.0), Cell(8, 9.0))


def test_the_greedy_mixture_of_the_paper_is_not_optimal() -> None:
    """4.9 req/s from cells of 1, 2.1 and 5 req/s. Algorithm 2 uses five GPUs,
    but four are enough.
    """
    cells = [Cell(1, 1.0), Cell(2, 2.1), Cell(4, 5.0)]
    assert efficient_cells({cell.gpus: cell.req_per_s for cell in cells}) == tuple(cells)
    assert greedy_mixture(cells, 4.9) == {2: 2, 1: 1}
    assert fewest_gpus(cells, 4.9) == {4: 1}


@pytest.mark.parametrize("seed", range(60))
def test_the_exact_mixture_equals_that_of_brute_force(seed: int) -> None:
    """No mixture with fewer GPUs serves the rate, and the greedy mixture is never smaller."""
    rng = np.random.default_rng(seed)
    rates, last = {}, 0.0
    for size in (1, 2, 4, 8):
        last = max(2.0 * last, 0.1) * float(rng.uniform(1.0, 1.4))
        rates[size] = last if rng.random() > 0.2 else 0.0
    cells = list(efficient_cells(rates))
    if not cells:
        return
    wanted = float(rng.uniform(0.05, 2.5)) * cells[-1].req_per_s
    exact = fewest_gpus(cells, wanted)
    most = [int(np.ceil(wanted / cell.req_per_s)) + 1 for cell in cells]
    best = min(
        sum(cell.gpus * n for cell, n in zip(cells, counts, strict=True))
        for counts in product(*(range(m + 1) for m in most))
        if sum(c.req_per_s * n for c, n in zip(cells, counts, strict=True)) >= wanted * (1 - 1e-9)
    )
    assert gpus(exact) == best
    assert rate(cells, exact) >= wanted * (1 - 1e-9)
    greedy = greedy_mixture(cells, wanted)
    assert rate(cells, greedy) >= wanted * (1 - 1e-9)
    assert gpus(greedy) >= best


def test_a_rate_of_zero_needs_no_cell_and_invalid_input_is_refused() -> None:
    """Infinity is not a valid rate, and a mixture needs at least one kind of cell."""
    cells = [Cell(1, 1.0)]
    assert fewest_gpus(cells, 0.0) == greedy_mixture(cells, 0.0) == {}
    with pytest.raises(InvalidValue, match="req_per_s"):
        fewest_gpus(cells, float("inf"))
    with pytest.raises(InvalidValue, match="cells"):
        greedy_mixture([], 1.0)
