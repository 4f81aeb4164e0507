"""Groups: combos that were placed on nodes, and where each is on its way in and out.

Owns the values, the table of lives and what statuses say about a group. Knows nothing of demand.

    ACTIVE    wanted; starting, or serving once it is ready
    RETIRING  still serving; goes when what replaces it is ready and capacity allows
    UNROUTED  left out of the routes; waits until gateways confirm that
    DRAINING  told to finish what it has and stop; dropped when it is gone
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Lengths, Phase
from topics.checks import MAX_RESTORED_COUNT
from topics.fleet import InstanceState, ObservedInstance, Status
from topics.instance_ranks import GangRank
from topics.reason_codes import ReasonCode

FORGOTTEN_MS = 600_000
"""A node not heard of for so long is given up."""

_BATCHES = 2.0
_SPARE_SLOTS = 4
_MOST_SLOTS = 1_000_000  # what the record takes


class Life(StrEnum):
    """Where a group is on its way in and out."""

    ACTIVE = "active"
    RETIRING = "retiring"
    UNROUTED = "unrouted"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Placed:
    """One instance of a group on GPUs `gpus` of `node`. gang: of which it is one rank, None for an
    instance of its own."""

    instance: str
    phase: Phase
    node: str
    pool: str
    gpus: tuple[int, ...]
    gang: GangRank | None = None

    @property
    def deployment(self) -> str:
        """What it runs of a model of components, which is part of its name; else empty."""
        return self.instance.partition("+")[2]


@dataclass(frozen=True, slots=True)
class Switch:
    """What a switching group was before. source: its name then. placed: its instances in their
    phases of then. asked: executors were told the new phases (see `transitions.switches`)."""

    source: str
    placed: tuple[Placed, ...]
    asked: bool = False


@dataclass(frozen=True, slots=True)
class ServingGroup:
    """One combo that was placed. name: "{combo id}:{serial}".

    created_ms: when it was first assigned. since_ms: when it entered its life. after: names of
    groups that must be ready before it may leave. unrouted_generation: of the first routes without
    it, 0 while they are not out. failed_ms: when it was found broken, 0 if it is not. yields: it
    leaves for the sake of others although its model is short. switch: it changes roles in place.
    stays: it could not, and is not asked again.
    """

    name: str
    model: str
    combo_id: str
    engine: str
    placed: tuple[Placed, ...]
    created_ms: int
    life: Life = Life.ACTIVE
    since_ms: int = 0
    after: tuple[str, ...] = ()
    unrouted_generation: int = 0
    failed_ms: int = 0
    yields: bool = False
    switch: Switch | None = None
    stays: bool = False

    @property
    def counts(self) -> bool:
        """Whether it is part of planned capacity: wanted and not broken."""
        return self.life is Life.ACTIVE and not self.failed_ms


def combo_id_of(group_name: str) -> str:
    """The combo's id in a group's name."""
    return group_name.rsplit(":", 1)[0]


def serial_of(group_name: str) -> int:
    """The serial in a group's name; 0 where there is none, or none that a leader may go on from."""
    tail = group_name.rsplit(":", 1)[-1]
    if len(tail) > len(str(MAX_RESTORED_COUNT)) or not (tail.isascii() and tail.isdigit()):
        return 0
    serial = int(tail)
    return serial if serial <= MAX_RESTORED_COUNT else 0


@dataclass(frozen=True, slots=True)
class FleetView:
    """What executors report, by instance and by node. running: of the nodes that run any."""

    instances: Mapping[str, ObservedInstance]
    statuses: Mapping[str, Status]
    running: tuple[Status, ...] = ()


def fleet_view(statuses: Mapping[str, Status]) -> FleetView:
    """Index `statuses` (latest per node) by instance."""
    running = tuple([status for status in statuses.values() if status.instances])
    found = {seen.instance: seen for status in running for seen in status.instances}
    return FleetView(found, statuses, running)


@dataclass(frozen=True, slots=True)
class GroupView:
    """What the fleet says of a group.

    ready: (instance placed, endpoint) of those that serve; of a gang rank 0, while every rank is
    up. all_ready: every one is. broken: why it will not come up, None if nothing says so. lost: a
    node of it has not been heard of lately.
    broken_node, broken_pool: where it broke.
    """

    ready: tuple[tuple[Placed, str], ...]
    all_ready: bool
    broken: Reason | None
    lost: bool
    broken_node: str = ""
    broken_pool: str = ""


def look(
    group: ServingGroup, fleet: FleetView, now_ms: int, start_timeout_ms: int, lost_ms: int
) -> GroupView:
    """How `group` is doing. Times in ms; `lost_ms`: silence after which a node counts as lost."""
    up: list[tuple[Placed, str]] = []
    broken: Reason | None = None
    broken_node = broken_pool = ""
    lost = False
    for placed in group.placed:
        status = fleet.statuses.get(placed.node)
        # On a node that was given up something new is started only once it is there again.
        if status is not None and group.created_ms - status.at_ms <= FORGOTTEN_MS:
            lost = lost or now_ms - status.at_ms > lost_ms
        seen = fleet.instances.get(placed.instance)
        if seen is not None and _is_up(placed, seen):
            up.append((placed, seen.endpoint))
            continue
        if seen is not None and seen.state is InstanceState.FAILED:
            broken = Reason(ReasonCode.START_FAILED, placed.instance, quoted=seen.reason)
            broken_node, broken_pool = placed.node, placed.pool
            continue
        waiting_since = group.created_ms if group.switch is None else group.since_ms
        if seen is not None:
            waiting_since = max(waiting_since, seen.since_ms)
        if broken is None and now_ms - waiting_since > start_timeout_ms:
            timeout_s = start_timeout_ms / 1000
            broken = Reason(ReasonCode.NOT_READY, placed.instance, quantities=(timeout_s,))
            broken_node, broken_pool = placed.node, placed.pool
    all_ready = len(up) == len(group.placed)
    ready = tuple(up) if all(placed.gang is None for placed, _ in up) else _leading(up)
    return GroupView(ready, all_ready, broken, lost, broken_node, broken_pool)


def view_again(group: ServingGroup, fleet: FleetView, before: GroupView) -> GroupView:
    """What is known of a group that was another one until now, seen as `before`; no gang is."""
    known = ((placed, fleet.instances.get(placed.instance)) for placed in group.placed)
    up = tuple((p, seen.endpoint) for p, seen in known if seen is not None and _is_up(p, seen))
    return GroupView(up, len(up) == len(group.placed), None, before.lost)


def _leading(up: list[tuple[Placed, str]]) -> tuple[tuple[Placed, str], ...]:
    """Of `up` what requests can go to: of a gang rank 0, if every rank is up."""
    ranks = Counter(placed.gang.gang for placed, _ in up if placed.gang is not None)
    return tuple(
        (placed, endpoint)
        for placed, endpoint in up
        if placed.gang is None
        or (placed.gang.leads and ranks[placed.gang.gang] == placed.gang.size)
    )


def _is_up(placed: Placed, seen: ObservedInstance) -> bool:
    """Whether it serves as it should; who cannot be reached serves nobody, but as a rank."""
    follows = placed.gang is not None and not placed.gang.leads
    serves = seen.state is InstanceState.READY and (bool(seen.endpoint) or follows)
    return serves and seen.phase == placed.phase


def ready_req_per_s(combo: Combo, view: GroupView) -> float:
    """Goodput in requests/s of the part of a combo that is ready: its slowest phase, or the part
    of a cell that its least ready deployment allows."""
    if combo.paths:
        up = Counter((placed.deployment, placed.pool) for placed, _ in view.ready)
        parts = [up[m.deployment, m.pool] / m.count for m in combo.members]
        return combo.req_per_s * min(parts)
    rates = {(m.phase, m.pool, m.gpus): m.req_per_s for m in combo.members}
    by_phase = {member.phase: 0.0 for member in combo.members}
    for placed, _ in view.ready:
        by_phase[placed.phase] = by_phase.get(placed.phase, 0.0) + rates.get(
            (placed.phase, placed.pool, len(placed.gpus)), 0.0
        )
    return min([combo.req_per_s, *by_phase.values()])


def slots(combo: Combo, placed: Placed, lengths: Lengths) -> int:
    """Most requests that a gateway may have in flight on one instance of `combo`; 0 = no bound.

    By Little's law an instance at capacity has L = req_per_s x (TTFT + TPOT x R_out) requests in
    it; a prefill instance has them for the TTFT only. Twice that: one batch computes, one waits, so
    it never runs dry between two decisions of a gateway; a few more for instances that hold less
    than one. E.g. 1.1 req/s x (1 s + 211 x 50 ms) = 12.7, so 30. More would only wait, in a queue
    that no later instance can help with. A decode instance must take what was prefilled for it: of
    it these are the requests that it decodes at capacity, beyond which it is busy.
    """
    if combo.paths:
        return 0  # paths through cells ask no queue
    key = (placed.phase, placed.pool, len(placed.gpus))
    rates = [m.req_per_s for m in combo.members if (m.phase, m.pool, m.gpus) == key]
    if not rates:
        return 0
    output_tokens = combo.output_tokens or lengths.output_tokens
    if placed.phase is Phase.DECODE:
        return min(_MOST_SLOTS, math.ceil(max(rates) * combo.tpot_ms * output_tokens / 1000.0))
    tokens = output_tokens if placed.phase is Phase.AGGREGATED else 0.0
    in_flight = max(rates) * (combo.ttft_ms + combo.tpot_ms * tokens) / 1000.0
    return min(_MOST_SLOTS, math.ceil(_BATCHES * in_flight) + _SPARE_SLOTS)
