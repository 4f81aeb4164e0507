"""Exact placement of one model on one multiset of nodes, one case at a time.

It calls the search that builds template libraries. The input is a table of throughputs, without
models, SLOs or prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.domain.validation import InvalidValue
from autoscaler.templates.library import Stage
from autoscaler.templates.partitions import MAX_NODES, partition_tables
from autoscaler.templates.placement_search import check_table, search_multiset

Floats = npt.NDArray[np.float64]

_MAX_LAYERS = 1000


@dataclass(frozen=True, slots=True)
class Placement:
    """The best placement: its stages, and the requests/s of its slowest stage.

    No stages and 0 requests/s mean that the nodes cannot run the model.
    """

    req_per_s: float
    stages: tuple[Stage, ...]


class PlacementSearch:
    """Solves cases that share one throughput table.

    throughput: (S, C, L) requests/s. Entry [s-1, c, j-1] is for a node of configuration c with j
    layers in a pipeline of s stages; 0 = impossible. L is the model's layer count. InvalidValue:
    the shape is wrong, or an entry is negative, not finite, or rises with the layers. The search
    assumes that more layers are never faster.

    Source: Coral sec. 4.2: maximise the minimum over stages of the sum over the stage's nodes.
    """

    __slots__ = ("_layers", "_members", "_nodes", "_reach", "_table", "_tables", "_work")

    def __init__(self, throughput: npt.ArrayLike) -> None:
        table = np.ascontiguousarray(throughput, dtype=np.float64)
        if table.ndim != 3 or 0 in table.shape or table.shape[2] > _MAX_LAYERS:
            raise InvalidValue(
                "throughput", table.shape, f"(stages, configurations, layers <= {_MAX_LAYERS})"
            )
        self._work = np.empty(table.shape[:2], np.float64)
        if check_table(table, self._work):
            raise _first_bad_entry(table)
        self._table = table
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
        rate, stages = search_multiset(
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


def _first_bad_entry(table: Floats) -> InvalidValue:
    bad = ~np.isfinite(table) | (table < 0)
    bad[:, :, 1:] |= np.diff(table, axis=2) > 0
    s, c, j = (int(i) for i in np.argwhere(bad)[0])
    return InvalidValue(
        f"throughput[stages {s + 1}][configuration {c}][layers {j + 1}]",
        float(table[s, c, j]),
        "a finite number of requests/s, 0 or more, never more than with one layer less",
    )
