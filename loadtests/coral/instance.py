"""The paper's own form: whole-node templates, regions, everything newly started (Coral 4.3).

Owns that form, its validation and its lowering to groups whose items may be placed in any region.
It never expands templates times regions into columns, so a hundred models fit into memory. Knows
nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.problem import check_numbers
from loadtests.coral.groups import (
    Decomposed,
    Group,
    fitting,
    units_of,
)


@dataclass(frozen=True, slots=True)
class TemplateInstance:
    """`price_usd_per_h` and `available_nodes` (R, C), `demand_req_per_s` (G,), per group k `nodes`
    (templates, C) node counts and `throughput_req_per_s` (templates,); `start_penalty` is K, the
    share of an interval that a start costs. Cost of an instance = its nodes x price x (1 + K).
    """

    price_usd_per_h: Floats
    available_nodes: Ints
    demand_req_per_s: Floats
    nodes: tuple[Ints, ...]
    throughput_req_per_s: tuple[Floats, ...]
    start_penalty: float

    def __post_init__(self) -> None:
        if self.price_usd_per_h.ndim != 2:
            raise InvalidValue("price_usd_per_h", self.price_usd_per_h.shape, "regions x configs")
        shape = self.price_usd_per_h.shape
        check_numbers("price_usd_per_h", self.price_usd_per_h, shape, low=0.0)
        check_numbers("available_nodes", self.available_nodes, shape, low=0.0)
        groups = len(self.demand_req_per_s)
        check_numbers("demand_req_per_s", self.demand_req_per_s, (groups,), low=0.0, strict=True)
        check_numbers("K", np.asarray(self.start_penalty, dtype=np.float64), (), low=0.0)
        if len(self.nodes) != groups or len(self.throughput_req_per_s) != groups:
            raise InvalidValue("nodes", len(self.nodes), f"one array for each of {groups} groups")
        for k, (nodes, rate) in enumerate(zip(self.nodes, self.throughput_req_per_s, strict=True)):
            check_numbers(f"nodes_{k}", nodes, (len(nodes), shape[1]), low=0.0)
            check_numbers(f"throughput_{k}", rate, (len(nodes),), low=0.0, strict=True)


def lower(instance: TemplateInstance) -> Decomposed:
    """Groups with money = price x (1 + K) by configuration and region, and node capacities."""
    demand = instance.demand_req_per_s
    regions, _ = instance.price_usd_per_h.shape
    capacity = instance.available_nodes.astype(np.float64).ravel()
    money = np.ascontiguousarray(instance.price_usd_per_h.T * (1.0 + instance.start_penalty))
    groups = []
    for k, nodes in enumerate(instance.nodes):
        row, config = np.nonzero(nodes)
        count = len(nodes)
        indptr = np.zeros(count + 1, dtype=np.int64)
        np.cumsum(np.bincount(row, minlength=count), out=indptr[1:])
        rate = np.ascontiguousarray(instance.throughput_req_per_s[k], dtype=np.float64)
        group = Group(
            indptr=indptr,
            feature=config.astype(np.int32),
            amount=nodes[row, config].astype(np.float64),
            base=np.zeros(count),
            throughput=rate,
            units=units_of(rate, float(demand[k])),
            allowed=np.ones((count, regions), dtype=np.bool_),
            ids=np.arange(count, dtype=np.int64),
            demand=float(demand[k]),
        )
        groups.append(fitting(group, capacity))
    return Decomposed(tuple(groups), money, capacity)
