"""The exact placement search, compiled: one multiset of nodes, all stage counts.

Owns the numeric kernels. Knows nothing of models, files or libraries: arrays in, arrays out.

Method. With T̂ non-increasing in the layers held, a stage of given nodes can hold more than t
requests/s with up to J(stage, t) layers, found by bisection. A set partition beats the incumbent
t iff all J >= 1 and their sum reaches L. Only then is its own optimum computed: start from those
J layers and take layers, one at a time, from the slowest stage until L are left; each removal is
forced, so the last minimum is the optimum. A whole stage count is skipped when its area bound
cannot beat the incumbent: a stage of j layers at t requests/s does j t work, node k at most
W(k) = max_j j T̂(j, k), and all stages together must do L t, so t <= sum of W over nodes / L.

Source: Coral sec. 4.2 (the problem, there an ILP per stage count).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.performance.numba_decorators import compiled
from autoscaler.templates.partitions import MAX_NODES, PATTERNS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@compiled
def inspect_table(table: Floats, work: Floats) -> int:
    """Fill `work` (S, C) with max_j j T̂; say what the table (S, C, L) is.

    Returns 0 when it is non-increasing in layers, 1 when some entry rises, 2 when some entry is
    negative or not finite.
    """
    rises = 0
    bad = 0
    layers = table.shape[2]
    for s in range(table.shape[0]):
        for c in range(table.shape[1]):
            # No branches: most of the time of a small solve is spent here.
            most = table[s, c, 0]
            bad |= not 0.0 <= most < np.inf
            for j in range(1, layers):
                value = table[s, c, j]
                bad |= not 0.0 <= value < np.inf
                rises |= value > table[s, c, j - 1]
                most = max(most, value * (j + 1))
            work[s, c] = most
    if bad:
        return 2
    return rises


@compiled
def stage_rate(table: Floats, s: int, nodes: Ints, n: int, kind: int, layers: int) -> float:
    """Requests/s of a stage made of the nodes in bit mask `kind`, each holding `layers` layers."""
    total = 0.0
    for i in range(n):
        if (kind >> i) & 1:
            total += table[s, nodes[i], layers - 1]
    return total


@compiled
def most_layers(
    table: Floats, s: int, nodes: Ints, n: int, kind: int, target: float, low: int, high: int
) -> int:
    """Largest j in [low, high] whose stage rate exceeds `target`; `low` itself is not tested."""
    if high <= low:
        return low
    if stage_rate(table, s, nodes, n, kind, low + 1) <= target:
        return low
    low += 1
    while low < high:
        middle = (low + high + 1) >> 1
        if stage_rate(table, s, nodes, n, kind, middle) > target:
            low = middle
        else:
            high = middle - 1
    return low


@compiled
def raise_partition(
    table: Floats,
    s: int,
    nodes: Ints,
    n: int,
    kinds: Ints,
    at: int,
    stages: int,
    low: float,
    high: float,
    held: Ints,
) -> float:
    """The best slowest-stage rate of one partition whose layers `held` beat `low` and sum to >= L.

    `high` is an upper bound. A few bisections on the rate come first, because from a low incumbent
    the walk that removes one layer at a time would be long. `held` ends with the optimal layers.
    """
    total_layers = table.shape[2]
    excess = -total_layers
    for i in range(stages):
        excess += held[i]
    trial = np.empty(MAX_NODES, np.int64)
    for _ in range(12):
        if excess <= 2 * stages:
            break
        middle = 0.5 * (low + high)
        total = 0
        for i in range(stages):
            trial[i] = most_layers(table, s, nodes, n, kinds[at + i], middle, 0, held[i])
            if trial[i] == 0:
                total = -1
                break
            total += trial[i]
        if total >= total_layers:
            low = middle
            excess = total - total_layers
            for i in range(stages):
                held[i] = trial[i]
        else:
            high = middle
    rates = np.empty(MAX_NODES, np.float64)
    for i in range(stages):
        rates[i] = stage_rate(table, s, nodes, n, kinds[at + i], held[i])
    while excess > 0:
        slowest = -1
        for i in range(stages):
            if held[i] > 1 and (slowest < 0 or rates[i] < rates[slowest]):
                slowest = i
        held[slowest] -= 1
        rates[slowest] = stage_rate(table, s, nodes, n, kinds[at + slowest], held[slowest])
        excess -= 1
    best: float = rates[0]
    for i in range(1, stages):
        best = min(best, rates[i])
    return best


@compiled
def search_multiset(
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
    """Best placement of `nodes[:n]` (sorted configuration indices) that beats `incumbent`.

    table (S, C, L) non-increasing in layers, work (S, C) from `inspect_table`. only_chains allows
    one node per stage and nothing else. reach is scratch of 64. Returns (requests/s, stages) and
    fills out_members (bit masks) and out_layers; (incumbent, 0) when nothing beats it.
    """
    total_layers = table.shape[2]
    pattern = 0
    for i in range(n - 1):
        if nodes[i] == nodes[i + 1]:
            pattern |= 1 << i
    for i in range(1 << n):
        reach[i] = 0  # an entry is stages * 1024 + layers, so one of another stage count is seen
    best = incumbent
    found = 0
    held = np.empty(MAX_NODES, np.int64)
    for stages in range(1, min(n, table.shape[0], total_layers) + 1):
        if only_chains and stages != n:
            continue
        s = stages - 1
        bound = 0.0
        for i in range(n):
            bound += work[s, nodes[i]]
        # The relative margin covers the rounding of the bound itself.
        bound = bound / total_layers * (1.0 + 1e-12)
        if bound <= best:
            continue
        group = (n * PATTERNS + pattern) * (MAX_NODES + 1) + stages
        longest = total_layers - stages + 1
        for q in range(needed_first[group], needed_first[group] + needed_count[group]):
            kind = needed[q]
            # A stage holds at least what it holds without its last node.
            rest = kind & (kind - 1)
            low = 0
            if reach[rest] >> 10 == stages:
                low = reach[rest] & 1023
            reached = most_layers(table, s, nodes, n, kind, best, low, longest)
            reach[kind] = (stages << 10) | reached
        at = first[group]
        for _ in range(count[group]):
            total = 0
            for i in range(stages):
                reached = reach[kinds[at + i]] & 1023
                if reached == 0:
                    total = -1
                    break
                total += reached
            if total >= total_layers:
                # `reach` may stem from a lower incumbent: bring this partition up to date.
                total = 0
                for i in range(stages):
                    kind = kinds[at + i]
                    reached = reach[kind] & 1023
                    if stage_rate(table, s, nodes, n, kind, reached) <= best:
                        reached = most_layers(table, s, nodes, n, kind, best, 0, reached - 1)
                        reach[kind] = (stages << 10) | reached
                    if reached == 0:
                        total = -1
                        break
                    held[i] = reached
                    total += reached
                if total >= total_layers:
                    best = raise_partition(table, s, nodes, n, kinds, at, stages, best, bound, held)
                    found = stages
                    for i in range(stages):
                        out_members[i] = members[at + i]
                        out_layers[i] = held[i]
            at += stages
    return best, found
