"""Servers of models that Shoal may not change: groups that Shoal started before, and servers that
it did not start.

Recommendations start from these servers. Shoal records changes of their number, but never changes
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.reason import Reason
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import ModelState
from topics.decisions import Decision
from topics.reason_codes import ReasonCode


def adopt_unmanaged(
    state: ModelState,
    service: Service,
    seen: Mapping[str, int] | None,
    own: Iterable[ServingGroup],
) -> ModelState:
    """`state` with the fleet from which recommendations start: `own` groups and `seen` servers by
    combo (None: unknown). This fleet is set at first and whenever the number of servers changes,
    and removed if the model is managed."""
    known = state.advisory
    is_set = bool(known.recommended or known.recommended_ms)  # a recommendation may be empty
    if service.managed:
        if not is_set and known.unmanaged is None:
            return state
        cleared = replace(known, recommended=(), recommended_ms=0, unmanaged=None)
        return replace(state, advisory=cleared)
    theirs = known.unmanaged if seen is None else tuple(sorted(seen.items()))
    if not service.unmanaged:
        theirs = None
    if is_set and theirs == known.unmanaged:
        return state
    fleet = Counter(group.combo_id for group in own if group.counts)
    fleet.update({combo_id: count for combo_id, count in theirs or () if count})
    counts = tuple(sorted(fleet.items()))
    return replace(state, advisory=replace(known, unmanaged=theirs, recommended=counts))


def unmanaged_counts(service: Service, state: ModelState) -> dict[str, int]:
    """Last known number of running servers of `service` that Shoal did not start, by combo."""
    return dict(state.advisory.unmanaged or ()) if service.unmanaged else {}


def is_uncounted(service: Service, state: ModelState) -> bool:
    """Whether the number of servers that Shoal did not start is still unknown, so that a
    recommendation would start from an unknown fleet."""
    return bool(service.unmanaged) and not service.managed and state.advisory.unmanaged is None


def unmanaged_notices(
    before: Mapping[str, ModelState], after: Mapping[str, ModelState], cluster: Cluster, now_ms: int
) -> Iterator[Decision]:
    """A decision for each combo whose number of unmanaged servers changed."""
    for service in cluster.services:
        was, now = before.get(service.model), after[service.model].advisory.unmanaged
        earlier = was.advisory.unmanaged if was is not None else None
        if now is None or now == earlier:
            continue
        counts, counts_before = dict(now), dict(earlier or ())
        for combo_id in sorted(counts.keys() | counts_before.keys()):
            count, count_before = counts.get(combo_id, 0), counts_before.get(combo_id, 0)
            if earlier is not None and count == count_before:
                continue
            quantities = (count,) if earlier is None else (count, count_before)
            why = Reason(ReasonCode.UNMANAGED, service.model, (combo_id,), quantities)
            yield notice(service.model, why, now_ms)
