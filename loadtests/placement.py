"""Exact placement of one model on one multiset of nodes, a case at a time.

Libraries are built by the same search without coming through here, and only from tables that never
rise in layers. A table given here may rise: then "a stage can hold up to J layers" no longer holds
and bisection would be wrong, so every layer count of every stage is tried. Knows nothing of models,
SLOs or prices: T̂ comes as numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.numba_decorators import compiled
from autoscaler.templates.library import Stage
from autoscaler.templates.partitions import MAX_NODES, PATTERNS, partition_tables
from autoscaler.templates.placement_search import inspect_table, search_multiset, stage_rate

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_RISES = 1
_NOT_FINITE = 2
_MAX_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class Placement:
    """The best placement found: the slowest stage's requests/s and the stages.

    No stages and 0 requests/s mean that the nodes cannot run the model.
    """

    req_per_s: float
    stages: tuple[Stage, ...]


class PlacementSearch:
    """Solves cases that share one throughput table.

    throughput: (S, C, L) requests/s, entry [s-1, c, j-1] = T̂ of a node of configuration c that
    holds j layers in a pipeline of s stages; 0 = impossible. L is the model's layer count. A
    table that never rises in j gets the fast search. One that does is solved as exactly, by a
    dynamic program per set partition, about a hundred times slower. Raises InvalidValue on a wrong
    shape and on entries that are negative or not finite.

    Source: Coral sec. 4.2: maximise the minimum over stages of the sum over the stage's nodes.
    """

    __slots__ = ("_layers", "_members", "_nodes", "_reach", "_rises", "_table", "_tables", "_work")

    def __init__(self, throughput: npt.ArrayLike) -> None:
        table = np.ascontiguousarray(throughput, dtype=np.float64)
        if table.ndim != 3 or 0 in table.shape or table.shape[2] > _MAX_LAYERS:
            raise InvalidValue(
                "throughput", table.shape, f"(stages, configurations, layers <= {_MAX_LAYERS})"
            )
        self._work = np.empty(table.shape[:2], np.float64)
        shape = inspect_table(table, self._work)
        if shape == _NOT_FINITE:
            raise _worst_entry(table)
        self._table = table
        self._rises = shape == _RISES
        found = partition_tables()
        self._tables = (
            found.first,
            found.count,
            found.kinds,
            found.members,
            found.needed_first,
            found.needed_count,
            found.needed,
        )
        self._nodes = np.zeros(MAX_NODES, np.int64)
        self._reach = np.zeros(1 << MAX_NODES, np.int64)
        self._members = np.zeros(MAX_NODES, np.int64)
        self._layers = np.zeros(MAX_NODES, np.int64)

    def best(self, nodes: Sequence[int], only_chains: bool = False) -> Placement:
        """The optimal placement on `nodes` (1 to 6 configuration indices, repeats allowed).

        only_chains: one node per stage, for engines without data parallelism inside a stage.
        """
        ordered = sorted(nodes)
        if not 1 <= len(ordered) <= MAX_NODES:
            raise InvalidValue("nodes", list(nodes), f"1 to {MAX_NODES} configuration indices")
        if ordered[0] < 0 or ordered[-1] >= self._table.shape[1]:
            raise InvalidValue(
                "nodes", list(nodes), f"indices from 0 to {self._table.shape[1] - 1}"
            )
        n = len(ordered)
        self._nodes[:n] = ordered
        kernel = _search_any_shape if self._rises else search_multiset
        rate, stages = kernel(
            self._table,
            self._work,
            self._nodes,
            n,
            0.0,
            only_chains,
            *self._tables,
            self._reach,
            self._members,
            self._layers,
        )
        return Placement(
            float(rate),
            tuple(
                Stage(
                    tuple(ordered[i] for i in range(n) if int(self._members[s]) >> i & 1),
                    int(self._layers[s]),
                )
                for s in range(stages)
            ),
        )


@compiled
def _search_any_shape(
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
    """As `search_multiset`, for any finite non-negative table.

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


def _worst_entry(table: Floats) -> InvalidValue:
    s, c, j = (int(i) for i in np.argwhere(~np.isfinite(table) | (table < 0))[0])
    return InvalidValue(
        f"throughput[stages {s + 1}][configuration {c}][layers {j + 1}]",
        float(table[s, c, j]),
        "a finite number of requests/s, 0 or more",
    )
