"""Mixtures of cells for a rate: Cornserve's Algorithm 2 and an exact algorithm.

Algorithm 2 fills a rate greedily. The paper calls it optimal, but it is not: it takes a cell that
exceeds the remaining rate only if no smaller cell fits. With cells of (1 GPU, 1 req/s), (2, 2.1)
and (4, 5), it needs five GPUs for 4.9 req/s, although one cell of four GPUs is enough.
`fewest_gpus` is exact and as fast.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.validation import InvalidValue, finite
from autoscaler.modes.components.component_cells import Cell

_ROUNDING = 1e-9


def greedy_mixture(cells: Sequence[Cell], req_per_s: float) -> dict[int, int]:
    """The number of cells by cell size in GPUs, by Algorithm 2.

    It repeatedly takes the largest cell that does not exceed the remaining rate, or the smallest
    cell if all exceed it.
    """
    _check(cells, req_per_s)
    mixture: dict[int, int] = {}
    left = req_per_s
    while left > _ROUNDING * req_per_s:
        fits = [c for c in cells if c.req_per_s <= left * (1.0 + _ROUNDING)]
        taken = max(fits or [min(cells, key=lambda c: c.gpus)], key=lambda c: c.gpus)
        mixture[taken.gpus] = mixture.get(taken.gpus, 0) + 1
        left -= taken.req_per_s
    return mixture


def fewest_gpus(cells: Sequence[Cell], req_per_s: float) -> dict[int, int]:
    """The mixture with the fewest GPUs that serves `req_per_s`. Among several, the one with the
    highest rate.

    An unbounded knapsack over small sizes: most[n] is the largest rate on n GPUs.
    """
    _check(cells, req_per_s)
    largest = max(cells, key=lambda c: c.req_per_s / c.gpus)
    enough = -int(-(req_per_s * (1.0 - _ROUNDING)) // largest.req_per_s) * largest.gpus
    most = [0.0]
    made: list[Cell | None] = [None]
    for gpus in range(1, enough + 1):
        best, cell = most[gpus - 1], None
        for one in cells:
            if one.gpus <= gpus and most[gpus - one.gpus] + one.req_per_s > best:
                best, cell = most[gpus - one.gpus] + one.req_per_s, one
        most.append(best)
        made.append(cell)
        if best >= req_per_s * (1.0 - _ROUNDING):
            break
    mixture: dict[int, int] = {}
    gpus = len(most) - 1
    while gpus > 0:
        cell = made[gpus]
        if cell is None:
            gpus -= 1
            continue
        mixture[cell.gpus] = mixture.get(cell.gpus, 0) + 1
        gpus -= cell.gpus
    return mixture


def _check(cells: Sequence[Cell], req_per_s: float) -> None:
    if not cells:
        raise InvalidValue("cells", [], "at least one")
    most = 1e6 * max(cell.req_per_s for cell in cells)
    finite("req_per_s", req_per_s, 0.0, most)
