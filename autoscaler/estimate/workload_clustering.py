"""Cluster recorded requests into workload types: a grid over input and output lengths.

Demystifying (sec. 3) has nine types, three input lengths by three output lengths, because long
prompts need compute and long answers need memory bandwidth. This module computes the class borders
from the requests, by one-dimensional k-means on the logarithms of lengths; so distances between
lengths are ratios.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.validation import InvalidValue, whole
from autoscaler.domain.workload import Lengths, WorkloadType

_MAX_ROUNDS = 100
"""Rounds of the clustering, which usually converges much earlier."""
_MIN_SHARE = 0.005
"""Share of the requests below which a cell of lengths is merged into the nearest one."""


def workload_types(
    input_tokens: Sequence[int],
    output_tokens: Sequence[int],
    inputs: int = 3,
    outputs: int = 3,
) -> tuple[WorkloadType, ...]:
    """Workload types of the requests with these lengths (0 counts as 1 token), largest share first.

    inputs, outputs: number of classes of input and of output lengths. Types with less than
    _LEAST_SHARE of the requests are merged into the nearest other type. Raises InvalidValue if
    there are no requests, or if the two sequences differ in length.
    """
    whole("classes of input length", inputs, 1, 20)
    whole("classes of output length", outputs, 1, 20)
    if not len(input_tokens) or len(input_tokens) != len(output_tokens):
        raise InvalidValue("requests", len(input_tokens), "one or more, each with both lengths")
    tokens = np.maximum(1.0, np.array([input_tokens, output_tokens], dtype=float))
    logs = np.log(tokens)
    cell = _classes(logs[0], inputs) * outputs + _classes(logs[1], outputs)
    _join_small(cell, logs)
    found = []
    for one in np.unique(cell):
        mine = cell == one
        means = tokens[:, mine].mean(axis=1)
        name = f"{means[0]:.0f}-{means[1]:.0f}"
        lengths = Lengths(float(means[0]), float(means[1]))
        found.append(WorkloadType(name, float(mine.mean()), lengths))
    return tuple(sorted(found, key=lambda kind: (-kind.share, kind.name)))


def _classes(logs: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Class of each value, 0 = shortest: Lloyd's algorithm, started at the quantiles."""
    centres = np.quantile(logs, (np.arange(count) + 0.5) / count)
    for _ in range(_MAX_ROUNDS):
        borders = (centres[1:] + centres[:-1]) / 2.0
        classes = np.searchsorted(borders, logs, side="right")
        sums = np.bincount(classes, weights=logs, minlength=count)
        sizes = np.bincount(classes, minlength=count)
        moved = np.where(sizes > 0, sums / np.maximum(sizes, 1), centres)
        if np.allclose(moved, centres):
            break
        centres = moved
    return classes.astype(np.int64)


def _join_small(cell: NDArray[np.int64], logs: NDArray[np.float64]) -> None:
    """Move the requests of small cells to the nearest large cell, in place."""
    names, sizes = np.unique(cell, return_counts=True)
    large = names[sizes >= _MIN_SHARE * len(cell)]
    if not len(large):
        large = names[[int(np.argmax(sizes))]]
    centres = np.array([logs[:, cell == one].mean(axis=1) for one in large])
    for one in names:
        if one not in large:
            here = logs[:, cell == one].mean(axis=1)
            nearest = int(np.argmin(((centres - here) ** 2).sum(axis=1)))
            cell[cell == one] = large[nearest]
