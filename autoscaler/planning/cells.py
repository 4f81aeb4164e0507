"""Cells: plans of one model for 1, 2, 4, 8, ... GPUs, and mixtures of them for a rate.

Cornserve sec. 4.3. Algorithm 1 finds the cells. Its Algorithm 2 fills a rate greedily and is said
to be optimal; it is not, because it never takes a cell that overshoots what is left unless nothing
smaller fits: with cells of (1 GPU, 1 req/s), (2, 2.1) and (4, 5), 4.9 req/s cost it five GPUs where
one cell of four does. `fewest_gpus` is exact, and as fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaler.domain.checks import InvalidValue, finite

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Cell:
    """`gpus` GPUs that run a whole model and serve `req_per_s` of its mix."""

    gpus: int
    req_per_s: float


def efficient_cells(req_per_s: Mapping[int, float]) -> tuple[Cell, ...]:
    """Algorithm 1's filter: of the best plans by GPUs (1, 2, 4, ...), those that do more than as
    many of the largest cell before. Sizes that cannot hold the model (0 req/s) are left out."""
    kept: list[Cell] = []
    for gpus in sorted(req_per_s):
        rate = finite(f"cell of {gpus} GPUs: req_per_s", req_per_s[gpus], 0.0, 1e12)
        if rate <= 0.0:
            continue
        if not kept or rate > gpus // kept[-1].gpus * kept[-1].req_per_s * (1.0 + _ROUNDING):
            kept.append(Cell(gpus, rate))
    return tuple(kept)


def greedy_mixture(cells: Sequence[Cell], req_per_s: float) -> dict[int, int]:
    """Algorithm 2: GPUs of a cell -> how many. The largest cell that does not overshoot what is
    left, else the smallest."""
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
    """The mixture of fewest GPUs that serves `req_per_s`, and of these the one that serves most.

    most[n] = the largest rate on n GPUs, an unbounded knapsack over small sizes.
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


def difference(now: Mapping[int, int], then: Mapping[int, int]) -> dict[int, int]:
    """Cells to start (positive) and to stop (negative) to get from `now` to `then`."""
    sizes = sorted(set(now) | set(then))
    changes = {size: then.get(size, 0) - now.get(size, 0) for size in sizes}
    return {size: change for size, change in changes.items() if change}


def _check(cells: Sequence[Cell], req_per_s: float) -> None:
    if not cells:
        raise InvalidValue("cells", [], "at least one")
    most = 1e6 * max(cell.req_per_s for cell in cells)
    finite("req_per_s", req_per_s, 0.0, most)
