"""Servers of a model that run and that Shoal did not start: what recommendations start from.

Owns when they are taken in. They are never changed: somebody else starts and stops them, and a
change of their number is adopted as what runs now.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.said import hold
from autoscaler.state import ModelState
from topics.decisions import Decision


def taken_in(state: ModelState, service: Service, seen: int | None) -> ModelState:
    """`state` with `seen` servers (None: not known) as the fleet of a model that is not Shoal's to
    change, where their number is news."""
    if not service.unmanaged or service.managed or seen is None or seen == state.unmanaged:
        return state
    fleet = ((service.unmanaged, seen),) if seen else ()
    return replace(state, unmanaged=seen, recommended=fleet)


def said(
    before: Mapping[str, ModelState], after: Mapping[str, ModelState], cluster: Cluster, now_ms: int
) -> Iterator[Decision]:
    """A decision for each number that is news."""
    for service in cluster.services:
        was, now = before.get(service.model), after[service.model].unmanaged
        earlier = was.unmanaged if was is not None else None
        if now is None or now == earlier:
            continue
        verb = "runs" if now == 1 else "run"
        then = "" if earlier is None else f" ({earlier} before)"
        start = f"{now} of {service.unmanaged} {verb} that Shoal did not start{then}"
        yield hold(service.model, f"{start}; recommendations start from them", now_ms)
