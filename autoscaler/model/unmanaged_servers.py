"""What recommendations start from, for a model that is not Shoal's to change: its own groups, and
servers that run and that Shoal did not start.

Owns when they are taken in. They are never changed: somebody else starts and stops them, and a
change of their number is adopted as what runs now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.reason import Reason
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.controller_state import ModelState
from autoscaler.state.decision_record import notice
from topics.decisions import Decision
from topics.reason_codes import ReasonCode


def adopt_unmanaged(
    state: ModelState, service: Service, seen: int | None, own: Iterable[ServingGroup]
) -> ModelState:
    """`state` with what recommendations start from: `own` groups and `seen` servers (None: not
    known), at first and where the latter's number is news; nothing where Shoal manages the model.
    """
    if service.managed:
        # Nothing may be what was recommended.
        if not state.recommended and not state.recommended_ms and state.unmanaged is None:
            return state
        return replace(state, recommended=(), recommended_ms=0, unmanaged=None)
    theirs = state.unmanaged if seen is None else seen
    if not service.unmanaged:
        theirs = None
    if (state.recommended or state.recommended_ms) and theirs == state.unmanaged:
        return state
    fleet = Counter(group.combo_id for group in own if group.counts)
    if theirs:
        fleet[service.unmanaged] += theirs
    return replace(state, unmanaged=theirs, recommended=tuple(sorted(fleet.items())))


def unmanaged_notices(
    before: Mapping[str, ModelState], after: Mapping[str, ModelState], cluster: Cluster, now_ms: int
) -> Iterator[Decision]:
    """A decision for each number that is news."""
    for service in cluster.services:
        was, now = before.get(service.model), after[service.model].unmanaged
        earlier = was.unmanaged if was is not None else None
        if now is None or now == earlier:
            continue
        counts = (now,) if earlier is None else (now, earlier)
        why = Reason(ReasonCode.UNMANAGED, service.model, (service.unmanaged,), counts)
        yield notice(service.model, why, now_ms)
