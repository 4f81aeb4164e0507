"""The instances at which the requests of a model begin, over all of its lanes: they serve requests
whole, or prefill them. Routing by prefix chooses among them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.serving.instance_load import InstanceLoads
from autoscaler.serving.round_robin import Lane
from topics.records import Endpoint


class Entry(NamedTuple):
    """One instance. share: of the requests, as a multiple of the mean share."""

    endpoint: Endpoint
    lane: Lane
    share: float


@dataclass(frozen=True, slots=True)
class EntryInstances:
    """All instances of the routes at which requests begin. separates: whether a lane separates
    prefill from decode."""

    every: tuple[Entry, ...] = ()
    separates: bool = False

    @classmethod
    def of(cls, lanes: Collection[Lane], equal: bool) -> EntryInstances:
        """The entries of `lanes`. equal: whether all lanes share the requests equally, whatever
        their weights."""
        equal = equal or not any(lane.weight for lane in lanes)
        found = [
            Entry(end, lane, 1.0 if equal else lane.weight / len(lane.first.endpoints))
            for lane in lanes
            for end in lane.first.endpoints
            if equal or lane.weight > 0.0
        ]
        mean = sum(one.share for one in found) / max(1, len(found))
        return cls(
            tuple(one._replace(share=one.share / mean) for one in found),
            any(lane.decode is not None for lane in lanes),
        )

    def usable(
        self, gone: Collection[Endpoint], out: Collection[Endpoint], single: bool
    ) -> Sequence[Entry]:
        """The entries outside `out` whose lane can decode outside `gone`. single: whether the
        request's KV can be handed over to another instance."""
        if not out and not self.separates:
            return self.every
        return [
            one
            for one in self.every
            if one.endpoint not in out
            and (one.lane.decode is None or (single and one.lane.can_decode(gone)))
        ]

    def relative_loads(self, entries: Iterable[Entry], loads: InstanceLoads) -> list[float]:
        """The load of each of `entries` in proportion to its share. An instance that prefills has
        an equal part of the requests that its lane decodes."""
        entries = list(entries)
        known = loads.loads([one.endpoint for one in entries])
        if self.separates:
            decoding: dict[int, float] = {}
            for one in entries:
                if one.lane.decode is not None and id(one.lane) not in decoding:
                    sent = sum(loads.loads(one.lane.decode.endpoints))
                    decoding[id(one.lane)] = sent / len(one.lane.first.endpoints)
            known = [
                load + decoding.get(id(one.lane), 0.0)
                for load, one in zip(known, entries, strict=True)
            ]
        return [load / one.share for load, one in zip(known, entries, strict=True)]
