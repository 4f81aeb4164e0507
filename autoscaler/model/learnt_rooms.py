"""Learns the KV cache of a model's engines from their starts.

An executor reports the memory of each engine (`topics.engine_start`). The middle one of several
reports counts, so that a single wrong report changes nothing where others contradict it. What an
engine refused for lack of memory is not planned again until the model's settings change or another
engine starts on such a slice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.performance.measured_rooms import (
    is_near,
    lower_median,
    memory_digest,
    room_of,
    with_rooms,
)
from autoscaler.performance.memory import cache_of
from autoscaler.rollout.serving_group import FleetView, ServingGroup
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import LearntRooms, ModelState
from topics.decisions import Decision
from topics.fleet import InstanceState, ObservedInstance
from topics.reason_codes import ReasonCode

_SAME = 0.02
"""Starts differ by less than this share from one to the next. A new figure within it changes
nothing, because each change evaluates all combos of the model again."""
_NOTABLE = 0.05
"""Difference from a prediction from which a decision reports it."""

_Slice = tuple[str, int]


def update_rooms(
    state: ModelState, service: Service, groups: Collection[ServingGroup], fleet: FleetView,
    cluster: Cluster, now_ms: int,
) -> ModelState:  # fmt: skip
    """`state` with the rooms that the engines of `groups` report."""
    if service.graph is not None or service.architecture.pooling:
        return state
    known, arguments = state.learnt, _arguments(service)
    if known.arguments != arguments:
        # Reports of engines that started before the change hold for the earlier settings.
        known = LearntRooms(arguments, now_ms if known.arguments else 0)
    started, refused, ignored = _reports(service, groups, fleet, cluster, known.since_ms)
    gpus = {pool.gpu.name for pool in cluster.pools}
    rooms = {(one.gpu, one.gpus): one for one in known.rooms if one.gpu in gpus}
    for key, reports in started.items():
        middle = lower_median(reports)
        if key not in rooms or not is_near(rooms[key], middle, _SAME):
            rooms[key] = middle
    for key, room in refused.items():
        if key not in started and not _contradicts(rooms.get(key), room):
            rooms[key] = room
    learnt = replace(known, rooms=tuple(rooms[key] for key in sorted(rooms)), ignored=ignored)
    return state if learnt == state.learnt else replace(state, learnt=learnt)


def room_notices(
    service: Service, was: LearntRooms, now: LearntRooms, cluster: Cluster, now_ms: int
) -> Iterator[Decision]:
    """A decision for each newly learnt room of `service` that differs from its prediction, for each
    refused start, and for the first impossible report."""
    if was is now:
        return
    for room in now.rooms:
        if room not in was.rooms and (why := _difference(service, room, cluster)) is not None:
            yield notice(service.model, why, now_ms)
    if now.ignored and not was.ignored:
        why = Reason(ReasonCode.KV_IMPOSSIBLE, service.model, quoted=now.ignored)
        yield notice(service.model, why, now_ms)


def _arguments(service: Service) -> str:
    """Digest of the model's settings that determine memory. The name of the engine contains a hash
    of its image and arguments."""
    told = f"{memory_digest(service.architecture)} {service.engine}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _reports(
    service: Service, groups: Collection[ServingGroup], fleet: FleetView, cluster: Cluster,
    since_ms: int,
) -> tuple[dict[_Slice, list[MeasuredRoom]], dict[_Slice, MeasuredRoom], str]:  # fmt: skip
    """(rooms of engines that serve, rooms of engines that refused to start, an impossible report as
    text)."""
    pools = {pool.id: pool for pool in cluster.pools}
    started: dict[_Slice, list[MeasuredRoom]] = {}
    refused: dict[_Slice, MeasuredRoom] = {}
    ignored = ""
    for placed in (placed for group in groups for placed in group.placed):
        seen = fleet.instances.get(placed.instance)
        pool = pools.get(placed.pool)
        if seen is None or seen.start is None or pool is None or placed.gang is not None:
            continue
        if not _counts(seen, service) or seen.launched_ms < since_ms:
            continue
        try:
            room = room_of(
                seen.start, service.architecture, pool.gpu, len(placed.gpus),
                service.max_len_tokens,
            )  # fmt: skip
        except InvalidValue as error:
            ignored = ignored or f"{placed.instance}: {error}"
            continue
        if room is None:
            continue
        key = room.gpu, room.gpus
        if not room.refused_len:
            started.setdefault(key, []).append(room)
        elif key not in refused or room.refused_len < refused[key].refused_len:
            refused[key] = room
    return started, refused, ignored


def _counts(seen: ObservedInstance, service: Service) -> bool:
    """Whether the report of `seen` is about the present engine of `service`, and fits its state."""
    if seen.start is None or (seen.model, seen.engine) != (service.model, service.engine):
        return False
    state = InstanceState.FAILED if seen.start.refused else InstanceState.READY
    return seen.state is state


def _contradicts(known: MeasuredRoom | None, refused: MeasuredRoom) -> bool:
    """Whether an engine already started with requests that long, or refused shorter ones."""
    if known is None:
        return False
    if known.refused_len:
        return known.refused_len <= refused.refused_len
    return known.request_tokens >= refused.refused_len


def _difference(service: Service, room: MeasuredRoom, cluster: Cluster) -> Reason | None:
    gpu = next((pool.gpu for pool in cluster.pools if pool.gpu.name == room.gpu), None)
    if gpu is None:
        return None
    names = (f"{room.gpus}x{short_gpu_name(room.gpu)}",)
    if room.refused_len:
        tokens = (float(room.refused_len),)
        return Reason(ReasonCode.START_REFUSED, service.model, names, tokens)
    spec = service.architecture
    longest = min(service.max_len_tokens, spec.max_position)
    predicted = cache_of(spec, gpu, room.gpus).reported_tokens(longest)
    measured = cache_of(with_rooms(spec, (room,), longest), gpu, room.gpus).reported_tokens(longest)
    if abs(measured - predicted) <= _NOTABLE * predicted:
        return None
    return Reason(ReasonCode.KV_MEASURED, service.model, names, (measured, predicted))
