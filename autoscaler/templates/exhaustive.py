"""Exact placement where T̂ may rise with the layers held: a dynamic program per set partition.

Owns the slow path of the placement search. The performance model promises tables that never
rise; measured tables of others need not. Then "a stage can hold up to J layers" no longer holds
and bisection would be wrong, so every layer count of every stage is tried.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.performance.compiled import compiled
from autoscaler.templates.partitions import MAX_NODES, PATTERNS
from autoscaler.templates.search import stage_rate

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@compiled
def search_any_shape(
    table: Floats,
    work: Floats,
    nodes: Ints,
    n: int,
    incumbent: float,
    only_chains: bool,
    first: Ints,
    count: Ints,
    kinds: Ints,
    members: Ints,
    needed_first: Ints,
    needed_count: Ints,
    needed: Ints,
    reach: Ints,
    out_members: Ints,
    out_layers: Ints,
) -> tuple[float, int]:
    """As `search.search_multiset`, for any finite non-negative table.

    best[i][l] = the largest slowest-stage rate of the first i + 1 stages holding l layers =
    max over j of min(rate(stage i, j), best[i - 1][l - j]). O(stages L²) per partition.
    """
    total_layers = table.shape[2]
    pattern = 0
    for i in range(n - 1):
        if nodes[i] == nodes[i + 1]:
            pattern |= 1 << i
    rates = np.empty(total_layers + 1, np.float64)
    value = np.empty((MAX_NODES, total_layers + 1), np.float64)
    choice = np.zeros((MAX_NODES, total_layers + 1), np.int64)
    best = incumbent
    found = 0
    for stages in range(1, min(n, table.shape[0], total_layers) + 1):
        if only_chains and stages != n:
            continue
        group = (n * PATTERNS + pattern) * (MAX_NODES + 1) + stages
        for p in range(count[group]):
            at = first[group] + p * stages
            for i in range(stages):
                for j in range(1, total_layers + 1):
                    rates[j] = stage_rate(table, stages - 1, nodes, n, kinds[at + i], j)
                for held in range(total_layers + 1):
                    value[i, held] = -1.0
                    if i == 0:
                        if held > 0:
                            value[0, held] = rates[held]
                            choice[0, held] = held
                        continue
                    for j in range(1, held):
                        slowest = min(rates[j], value[i - 1, held - j])
                        if slowest > value[i, held]:
                            value[i, held] = slowest
                            choice[i, held] = j
            if value[stages - 1, total_layers] > best:
                best = value[stages - 1, total_layers]
                found = stages
                left = total_layers
                for i in range(stages - 1, -1, -1):
                    out_members[i] = members[at + i]
                    out_layers[i] = choice[i, left]
                    left -= choice[i, left]
    return best, found
