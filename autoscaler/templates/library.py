"""Templates and template libraries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.templates.library_request import LibraryRequest


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage. nodes: configuration indices, ascending. layers: the number that each
    node holds."""

    nodes: tuple[int, ...]
    layers: int


@dataclass(frozen=True, slots=True)
class Template:
    """One way to serve a model: the number of nodes of each configuration, and the best placement
    on them.

    node_counts: per configuration of its library. uncertain: the estimate depends on a GPU that was
    never measured, or on a model whose estimates are known to be poor.
    """

    model: str
    phase: Phase
    node_counts: tuple[int, ...]
    stages: tuple[Stage, ...]
    throughput_req_per_s: float
    uncertain: bool


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """All templates of one request that no split into smaller templates dominates.

    node_counts: (n, C) int16, nodes per configuration. throughput_req_per_s: (n,) float64.
    uncertain: (n,) bool. The placements are stored packed; `template` unpacks one. nodes: (n, 6)
    int8, configuration of each node; -1: no node. members: (n, 6) int8, for each stage a bit mask
    over these nodes, 0 = no stage. layers: (n, 6) int16, layers of each stage. visited: number of
    multisets that the build visited.
    """

    request: LibraryRequest
    content_hash: str
    visited: int
    node_counts: npt.NDArray[np.int16]
    throughput_req_per_s: npt.NDArray[np.float64]
    uncertain: npt.NDArray[np.bool_]
    nodes: npt.NDArray[np.int8]
    members: npt.NDArray[np.int8]
    layers: npt.NDArray[np.int16]

    def __len__(self) -> int:
        return len(self.throughput_req_per_s)

    @property
    def configs(self) -> tuple[NodeSlice, ...]:
        """The configurations, in the order of the columns of `node_counts`."""
        return self.request.configs

    def template(self, index: int) -> Template:
        """The template at `index`, with its placement unpacked."""
        nodes = [int(c) for c in self.nodes[index] if c >= 0]
        stages = tuple(
            Stage(
                tuple(sorted(nodes[i] for i in range(len(nodes)) if int(mask) >> i & 1)),
                int(held),
            )
            for mask, held in zip(self.members[index], self.layers[index], strict=True)
            if mask
        )
        return Template(
            model=self.request.model.name,
            phase=self.request.phase,
            node_counts=tuple(int(n) for n in self.node_counts[index]),
            stages=stages,
            throughput_req_per_s=float(self.throughput_req_per_s[index]),
            uncertain=bool(self.uncertain[index]),
        )

    def templates(self) -> Iterator[Template]:
        """All templates, in order."""
        return (self.template(index) for index in range(len(self)))


def count_nodes(nodes: npt.NDArray[np.int8], configs: int) -> npt.NDArray[np.int16]:
    """Nodes per configuration, (n, C), for rows of configuration indices or -1, (n, 6)."""
    counts = np.zeros((len(nodes), configs + 1), np.int16)
    rows = np.arange(len(nodes))
    for column in nodes.T:
        counts[rows, column] += 1  # index -1 counts in an extra last column
    return counts[:, :configs]
