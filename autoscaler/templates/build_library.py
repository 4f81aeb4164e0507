"""Builds one template library from its throughput table."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
import numpy.typing as npt

from autoscaler.domain.validation import InvalidValue
from autoscaler.templates.enumerate import DOMINANCE_TOLERANCE, binomials, size_offsets, sweep_size
from autoscaler.templates.library import Library, count_nodes
from autoscaler.templates.library_request import LibraryRequest, content_hash
from autoscaler.templates.partitions import MAX_NODES, partition_tables
from autoscaler.templates.placement_search import check_table

Progress = Callable[[int, int], None]
"""Callback with (processed multisets, all multisets), called after each size of multisets."""


def build_library(
    request: LibraryRequest,
    table: npt.NDArray[np.float64],
    uncertain: npt.NDArray[np.bool_] | None = None,
    progress: Progress | None = None,
) -> Library:
    """All templates of `request` that the engine can run and that no split dominates.

    table: (S, C, L) from `throughput_table`. uncertain: (C,), whether the estimates of a
    configuration are uncertain; None: all are certain. Raises InvalidValue for a wrong shape, for
    entries that are negative or not finite, and for a table that rises with the number of layers
    (dominance and the search both require that it does not). Templates are ordered by node count,
    then by the rank of the multiset, so the same input gives the same bytes.
    """
    configs = len(request.configs)
    table, work = _validated(request, table)
    memory = np.array([node.mem_gb for node in request.configs])
    order = np.argsort(memory, kind="stable")
    # The sweep stops at a memory limit, so it needs the configurations in ascending order of
    # memory.
    table, work = np.ascontiguousarray(table[:, order]), np.ascontiguousarray(work[:, order])
    family = np.array(request.engine.families(request.configs), np.int64)[order]
    model_gb = request.model.weight_bytes / 1e9
    most_nodes = 1 if request.engine.single_node else request.max_nodes
    starts, choose = size_offsets(configs), binomials(configs)
    best_rate = np.zeros(starts[most_nodes + 1])
    parts = partition_tables()
    kept_nodes, kept_members, kept_layers, kept_rates = [], [], [], []
    visited = 0
    for n in range(1, most_nodes + 1):
        room = comb(configs + n - 1, n)
        # Large arrays are cheap here: pages of rows that are never written take no memory.
        nodes = np.empty((room, MAX_NODES), np.int8)
        members = np.empty((room, MAX_NODES), np.int8)
        layers = np.empty((room, MAX_NODES), np.int16)
        rates = np.empty(room, np.float64)
        kept_count, newly_visited, _ = sweep_size(
            table,
            work,
            memory[order],
            family,
            n,
            model_gb,
            model_gb * request.max_memory_ratio,
            not request.engine.data_parallel_stages,
            DOMINANCE_TOLERANCE,
            best_rate,
            starts,
            choose,
            parts.first,
            parts.count,
            parts.kinds,
            parts.members,
            parts.needed_first,
            parts.needed_count,
            parts.needed,
            nodes,
            members,
            layers,
            rates,
        )
        visited += newly_visited
        kept_nodes.append(nodes[:kept_count].copy())
        kept_members.append(members[:kept_count].copy())
        kept_layers.append(layers[:kept_count].copy())
        kept_rates.append(rates[:kept_count].copy())
        if progress is not None:
            progress(int(starts[n + 1]), int(starts[most_nodes + 1]))
    back = np.append(order, -1).astype(np.int8)  # index -1 (no node) stays -1
    all_nodes = back[np.concatenate(kept_nodes)]
    counts = count_nodes(all_nodes, configs)
    marks = np.zeros(configs, np.bool_) if uncertain is None else uncertain
    return Library(
        request=request,
        content_hash=content_hash(request, table[:, np.argsort(order)]),
        visited=visited,
        node_counts=counts,
        throughput_req_per_s=np.concatenate(kept_rates),
        uncertain=np.asarray((counts[:, marks] > 0).any(axis=1)),
        nodes=all_nodes,
        members=np.concatenate(kept_members),
        layers=np.concatenate(kept_layers),
    )


def _validated(
    request: LibraryRequest, table: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The table as contiguous floats, and W(k) of each configuration (see `placement_search`);
    Raises InvalidValue as `build_library` does."""
    expected = (len(request.configs), request.model.layers)
    checked = np.ascontiguousarray(table, dtype=np.float64)
    if checked.ndim != 3 or checked.shape[0] < 1 or checked.shape[1:] != expected:
        raise InvalidValue(
            "throughput table", checked.shape, f"(stages, {expected[0]}, {expected[1]})"
        )
    work = np.empty(checked.shape[:2])
    if check_table(checked, work):
        bad = ~(np.isfinite(checked) & (checked >= 0))
        bad[:, :, 1:] |= np.diff(checked, axis=2) > 0
        s, c, j = (int(i) for i in np.argwhere(bad)[0])
        raise InvalidValue(
            f"throughput table[stages {s + 1}][{request.configs[c].name}][layers {j + 1}]",
            float(checked[s, c, j]),
            "finite, 0 or more, never more than with one layer less",
        )
    return checked, work
