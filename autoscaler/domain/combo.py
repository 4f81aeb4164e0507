"""Combos: matched prefill and decode instances (or one aggregated instance), scaled as one unit.

Source: Cauchy sec. 3.3 ("GPU combos"). A single aggregated instance is also a combo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.token_times import TokenTimes
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.domain.workload import Phase
from topics.checks import MOST_REQ_PER_S, MOST_USD_PER_H


@dataclass(frozen=True, slots=True)
class ComboMember:
    """`count` equal slices of a combo. Each slice is `gpus` GPUs of one node of pool `pool`.

    stage: 0 if each slice is an instance of its own. With stage 1, 2, ... each slice holds `layers`
    layers of a pipeline; the other stages are further members of the same phase. req_per_s:
    capacity of one slice at the planned lengths, within the SLO; in a pipeline, the capacity of all
    stages together. deployment: in a cell of a model of components, the deployment of each slice.
    """

    phase: Phase
    pool: str
    gpus: int
    count: int
    req_per_s: float
    stage: int = 0
    layers: int = 0
    deployment: str = ""

    def __post_init__(self) -> None:
        if self.gpus not in SLICE_SIZES:
            raise InvalidValue("combo member: gpus", self.gpus, "1, 2, 4 or 8")
        whole("combo member: count", self.count, 1, 64)
        whole("combo member: stage", self.stage, 0, 64)
        whole("combo member: layers", self.layers, 1 if self.stage else 0, 1000)
        finite("combo member: req_per_s", self.req_per_s, 0.0, MOST_REQ_PER_S)


@dataclass(frozen=True, slots=True)
class CellHop:
    """One step of a path through a cell: the deployment, its pool, and the components that it runs
    for a request."""

    deployment: str
    pool: str
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CellPath:
    """A path of requests of one type through a cell, and the requests/s planned for it."""

    type: str
    req_per_s: float
    hops: tuple[CellHop, ...]


@dataclass(frozen=True, slots=True)
class Combo:
    """One unit of scaling of one model, in one region.

    id: stable descriptive name, e.g. "mini:a1@eu-west/l4/spot" or
    "chat:p4@us-east/h100/owned+2d4@us-east/h100/owned", or with a pipeline of 40 and 24 layers
    "code:p1.40@eu/l40s/spot>p1.24@eu/l4/spot+d4@eu/l40s/spot". The id contains the model and does
    not depend on demand. req_per_s: goodput of the whole combo (of its slower phase), before
    utilization. usd_per_h: price of its GPUs (their share of the nodes' prices; 0 for owned GPUs).
    ttft_ms, tpot_ms: predicted latencies. start_s: predicted time from launch to ready. uncertain:
    whether the throughput is estimated without measurements. meets_slo: False for a best-effort
    combo, which is a candidate only if no combo can meet the SLO at these lengths. output_tokens:
    mean output of the requests planned for the combo; 0 = the mean of the model. paths: paths of
    requests through a cell; a cell is the combo of a model of components (Cornserve sec. 4.3).
    token_times: None for pipelines and cells.
    """

    id: str
    model: str
    region: str
    members: tuple[ComboMember, ...]
    req_per_s: float
    usd_per_h: float
    ttft_ms: float
    tpot_ms: float
    start_s: float
    uncertain: bool = False
    meets_slo: bool = True
    output_tokens: float = 0.0
    paths: tuple[CellPath, ...] = ()
    token_times: TokenTimes | None = None

    def __post_init__(self) -> None:
        if not self.members:
            raise InvalidValue(f"combo {self.id}: members", self.members, "at least one")
        finite(f"combo {self.id}: req_per_s", self.req_per_s, 1e-9, MOST_REQ_PER_S)
        finite(f"combo {self.id}: usd_per_h", self.usd_per_h, 0.0, MOST_USD_PER_H)
        finite(f"combo {self.id}: start_s", self.start_s, 0.0, 86400.0)

    def scaled_to(self, req_per_s: float) -> Combo:
        """A copy of the combo with capacity `req_per_s`; the capacities of its members change in
        proportion."""
        times = req_per_s / self.req_per_s
        members = tuple(replace(m, req_per_s=m.req_per_s * times) for m in self.members)
        return replace(self, members=members, req_per_s=req_per_s)

    @property
    def can_switch_roles(self) -> bool:
        """Whether the combo's members differ only in pool, GPUs and role, so that they can switch
        roles. False for pipelines and models of components."""
        return not any(member.stage or member.deployment for member in self.members)

    def gpus_by_pool(self) -> dict[str, int]:
        """GPUs that one combo uses in each pool."""
        taken: dict[str, int] = {}
        for member in self.members:
            taken[member.pool] = taken.get(member.pool, 0) + member.gpus * member.count
        return taken
