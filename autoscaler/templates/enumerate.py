"""Visits all multisets of node slices and keeps the ones that no split into smaller multisets
dominates.

A multiset of n of C configurations is sorted: a_0 <= ... <= a_(n-1). Its rank among the multisets
of size n is the sum over i of binomial(a_i + i, i + 1) (the combinatorial number system).
`best_rate[n][rank]` is the highest rate of the multiset, as one template or split into several:
best_rate(M) = max(T(M), max over splits M = A + B of best_rate(A) + best_rate(B)).

A template is dominated iff T(M) <= the rate of the best split. A split may leave nodes unused. The
placement search must beat the rate of the best split, so a bound rejects nearly all multisets
without a search, and the sweep is fast.

Source: Coral sec. 4.2 (enumeration up to N_max nodes and rho times the model's memory).
"""

from __future__ import annotations

from math import comb

import numpy as np
import numpy.typing as npt

from autoscaler.performance.numba_decorators import compiled
from autoscaler.templates.partitions import MAX_NODES
from autoscaler.templates.placement_search import search_multiset

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Small = npt.NDArray[np.int8]
Layers = npt.NDArray[np.int16]

DOMINANCE_TOLERANCE = 1e-9
"""A template must beat the best split by this share, so that rounding errors keep no template."""


def binomials(configs: int) -> Ints:
    """Table [a][i] = binomial(a, i) for the ranks of multisets with up to MAX_NODES of `configs`
    configurations."""
    return np.array(
        [[comb(a, i) for i in range(MAX_NODES + 1)] for a in range(configs + MAX_NODES)], np.int64
    )


def size_offsets(configs: int) -> Ints:
    """The offset of the multisets of each size in one flat array; the last entry is the array's
    length."""
    sizes = [comb(configs + n - 1, n) if n else 0 for n in range(MAX_NODES + 1)]
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


@compiled
def best_split(nodes: Ints, n: int, best_rate: Floats, starts: Ints, choose: Ints) -> float:
    """The highest rate of the first `n` nodes if they are split into two parts, of which one may be
    unused."""
    best = 0.0
    # Each split is visited once, because node 0 is always in the first part.
    for mask in range(1, (1 << n) - 1, 2):
        rank_a, size_a, rank_b, size_b = 0, 0, 0, 0
        for i in range(n):
            if (mask >> i) & 1:
                rank_a += choose[nodes[i] + size_a, size_a + 1]
                size_a += 1
            else:
                rank_b += choose[nodes[i] + size_b, size_b + 1]
                size_b += 1
        total = best_rate[starts[size_a] + rank_a] + best_rate[starts[size_b] + rank_b]
        best = max(best, total)
    return best


@compiled
def sweep_size(
    table: Floats,
    work: Floats,
    memory: Floats,
    family: Ints,
    n: int,
    least_memory: float,
    most_memory: float,
    only_chains: bool,
    margin: float,
    best_rate: Floats,
    starts: Ints,
    choose: Ints,
    first: Ints,
    count: Ints,
    kinds: Ints,
    members: Ints,
    needed_first: Ints,
    needed_count: Ints,
    needed: Ints,
    out_nodes: Small,
    out_members: Small,
    out_layers: Layers,
    out_rate: Floats,
) -> tuple[int, int, int]:
    """Visit every multiset of exactly `n` nodes within the memory limits. The caller must have
    swept all smaller sizes before.

    memory (C,): ascending. family (C,): the nodes of one template must be of one family. best_rate,
    starts: see the module's docstring. The kept templates are written to the out arrays (rows: node
    configuration or -1, bit mask of a stage or 0, layers of a stage or 0). Returns the numbers
    (kept, visited, searched).
    """
    configs = table.shape[1]
    nodes = np.zeros(MAX_NODES, np.int64)
    reach = np.zeros(1 << MAX_NODES, np.int64)
    stage_members = np.zeros(MAX_NODES, np.int64)
    stage_layers = np.zeros(MAX_NODES, np.int64)
    kept, visited, searched = 0, 0, 0
    position = 0
    while True:
        memory_gb = 0.0
        for i in range(n):
            memory_gb += memory[nodes[i]]
        if memory_gb <= most_memory:
            position = n - 1
            if memory_gb >= least_memory:
                visited += 1
                split = best_split(nodes, n, best_rate, starts, choose)
                rank = 0
                allowed = True
                for i in range(n):
                    rank += choose[nodes[i] + i, i + 1]
                    if family[nodes[i]] != family[nodes[0]]:
                        allowed = False
                at = starts[n] + rank
                best_rate[at] = split
                if allowed:
                    rate, stages = search_multiset(
                        table,
                        work,
                        nodes,
                        n,
                        split * (1.0 + margin),
                        only_chains,
                        first,
                        count,
                        kinds,
                        members,
                        needed_first,
                        needed_count,
                        needed,
                        reach,
                        stage_members,
                        stage_layers,
                    )
                    searched += 1
                    if stages > 0:
                        best_rate[at] = rate
                        out_rate[kept] = rate
                        for i in range(MAX_NODES):
                            out_nodes[kept, i] = nodes[i] if i < n else -1
                            out_members[kept, i] = stage_members[i] if i < stages else 0
                            out_layers[kept, i] = stage_layers[i] if i < stages else 0
                        kept += 1
        else:
            # Configurations are in ascending order of memory, so larger indices exceed the limit
            # too.
            position -= 1
        while position >= 0 and nodes[position] + 1 >= configs:
            position -= 1
        if position < 0:
            return kept, visited, searched
        value = nodes[position] + 1
        for i in range(position, n):
            nodes[i] = value
