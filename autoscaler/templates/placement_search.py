"""The exact placement search, compiled: the best placement of one multiset of nodes.

Method. T̂ does not rise with the number of layers, so a stage of given nodes can hold at most
J(stage, t) layers at more than t requests/s; bisection finds J. A set partition beats the best
known rate t iff all J >= 1 and their sum reaches L. Only then is the optimum of that partition
computed: start with J layers per stage, and remove one layer at a time from the slowest stage until
L are left. Each removal is forced, so the last minimum is the optimum.

A number of stages is skipped if its area bound cannot beat the best known rate. A stage of j layers
at t requests/s does the work j t. Node k does at most W(k) = max_j j T̂(j, k), and all stages
together must do L t, so t <= sum of W over nodes / L.

Source: Coral sec. 4.2 (the problem; Coral solves one ILP per number of stages).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.performance.numba_decorators import compiled
from autoscaler.templates.partitions import MAX_NODES, PATTERNS

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@compiled
def check_table(table: Floats, work: Floats) -> int:
    """Fill `work` (S, C) with W = max over j of j T̂(j), and check the table (S, C, L).

    Returns 0 if no entry rises with the number of layers, 1 if some entry rises, 2 if some entry is
    negative or not finite.
    """
    rises = 0
    bad = 0
    layers = table.shape[2]
    for s in range(table.shape[0]):
        for c in range(table.shape[1]):
            # No branches in this loop, because a small build spends most of its time here.
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
    """Requests/s of a stage that consists of the nodes in bit mask `kind`, each with `layers`
    layers."""
    total = 0.0
    for i in range(n):
        if (kind >> i) & 1:
            total += table[s, nodes[i], layers - 1]
    return total


@compiled
def most_layers(
    table: Floats, s: int, nodes: Ints, n: int, kind: int, target: float, low: int, high: int
) -> int:
    """Largest j in [low, high] at which the stage rate exceeds `target`; `low` itself is not
    tested."""
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
def optimize_partition(
    table: Floats,
    s: int,
    nodes: Ints,
    n: int,
    kinds: Ints,
    at: int,
    stages: int,
    low: float,
    high: float,
    stage_layers: Ints,
) -> float:
    """The highest rate of the slowest stage of one partition.

    stage_layers: start values with a rate above `low` and a sum >= L; on return, the optimal
    layers. high: an upper bound of the rate. The search begins with a few bisections on the rate,
    because removing one layer at a time is slow if `low` is far below the optimum.
    """
    total_layers = table.shape[2]
    excess = -total_layers
    for i in range(stages):
        excess += stage_layers[i]
    trial = np.empty(MAX_NODES, np.int64)
    for _ in range(12):
        if excess <= 2 * stages:
            break
        middle = 0.5 * (low + high)
        total = 0
        for i in range(stages):
            trial[i] = most_layers(table, s, nodes, n, kinds[at + i], middle, 0, stage_layers[i])
            if trial[i] == 0:
                total = -1
                break
            total += trial[i]
        if total >= total_layers:
            low = middle
            excess = total - total_layers
            for i in range(stages):
                stage_layers[i] = trial[i]
        else:
            high = middle
    rates = np.empty(MAX_NODES, np.float64)
    for i in range(stages):
        rates[i] = stage_rate(table, s, nodes, n, kinds[at + i], stage_layers[i])
    while excess > 0:
        slowest = -1
        for i in range(stages):
            if stage_layers[i] > 1 and (slowest < 0 or rates[i] < rates[slowest]):
                slowest = i
        stage_layers[slowest] -= 1
        rates[slowest] = stage_rate(table, s, nodes, n, kinds[at + slowest], stage_layers[slowest])
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
    layer_cache: Ints,
    out_members: Ints,
    out_layers: Ints,
) -> tuple[float, int]:
    """The best placement of `nodes[:n]` (sorted configuration indices) with a rate above
    `incumbent`.

    table (S, C, L): does not rise with the number of layers. work (S, C): from `check_table`.
    only_chains: allow only one node per stage. layer_cache: scratch space of 64 entries. Fills
    out_members (bit masks) and out_layers and returns (requests/s, stages); returns (incumbent, 0)
    if no placement beats `incumbent`.
    """
    total_layers = table.shape[2]
    pattern = 0
    for i in range(n - 1):
        if nodes[i] == nodes[i + 1]:
            pattern |= 1 << i
    for i in range(1 << n):
        # A cache entry is stages * 1024 + layers. Entries for other numbers of stages are ignored.
        layer_cache[i] = 0
    best = incumbent
    found = 0
    stage_layers = np.empty(MAX_NODES, np.int64)
    for stages in range(1, min(n, table.shape[0], total_layers) + 1):
        if only_chains and stages != n:
            continue
        s = stages - 1
        bound = 0.0
        for i in range(n):
            bound += work[s, nodes[i]]
        # The relative margin allows for rounding in the bound.
        bound = bound / total_layers * (1.0 + 1e-12)
        if bound <= best:
            continue
        group = (n * PATTERNS + pattern) * (MAX_NODES + 1) + stages
        longest = total_layers - stages + 1
        for q in range(needed_first[group], needed_first[group] + needed_count[group]):
            kind = needed[q]
            # A stage can hold at least as many layers as without its last node.
            rest = kind & (kind - 1)
            low = 0
            if layer_cache[rest] >> 10 == stages:
                low = layer_cache[rest] & 1023
            reached = most_layers(table, s, nodes, n, kind, best, low, longest)
            layer_cache[kind] = (stages << 10) | reached
        at = first[group]
        for _ in range(count[group]):
            total = 0
            for i in range(stages):
                reached = layer_cache[kinds[at + i]] & 1023
                if reached == 0:
                    total = -1
                    break
                total += reached
            if total >= total_layers:
                # Update the entries of this partition, because they may be from a search with a
                # lower incumbent.
                total = 0
                for i in range(stages):
                    kind = kinds[at + i]
                    reached = layer_cache[kind] & 1023
                    if stage_rate(table, s, nodes, n, kind, reached) <= best:
                        reached = most_layers(table, s, nodes, n, kind, best, 0, reached - 1)
                        layer_cache[kind] = (stages << 10) | reached
                    if reached == 0:
                        total = -1
                        break
                    stage_layers[i] = reached
                    total += reached
                if total >= total_layers:
                    best = optimize_partition(
                        table, s, nodes, n, kinds, at, stages, best, bound, stage_layers
                    )
                    found = stages
                    for i in range(stages):
                        out_members[i] = members[at + i]
                        out_layers[i] = stage_layers[i]
            at += stages
    return best, found
