"""Chooses the instances for each LoRA adapter: instances that served it before, as long as load
allows. So the adapter stays in the GPU memory of few instances, and a batch holds few different
adapters. An instance has the adapters that were declared when it started, so callers report
instances that lack an adapter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from autoscaler.serving.round_robin import Lane
from topics.records import Endpoint

_MOST_ABOVE = 1.25
"""An instance is used up to this multiple of its share of all load (consistent hashing with bounded
loads, Mirrokni et al. 2018)."""
_MOST_HOMES = 64

_Option = tuple[Lane, Endpoint, float]


@dataclass(slots=True)
class AdapterAffinity:
    """The instances of one model by adapter. homes: by adapter, its instances in the order in which
    they first served it."""

    _homes: dict[str, list[Endpoint]] = field(default_factory=dict)
    _lacking: dict[str, set[Endpoint]] = field(default_factory=dict)

    def lacking(self, adapter: str) -> Collection[Endpoint]:
        """Instances that lack `adapter`."""
        return self._lacking.get(adapter, ())

    def note_lacking(self, adapter: str, endpoint: Endpoint) -> None:
        """Note that `endpoint` lacks `adapter`, until it leaves the routes."""
        self._lacking.setdefault(adapter, set()).add(endpoint)
        homes = self._homes.get(adapter, [])
        if endpoint in homes:
            homes.remove(endpoint)

    def note_served(self, adapter: str, endpoint: Endpoint) -> None:
        """Note that `endpoint` gets a request for `adapter`."""
        homes = self._homes.setdefault(adapter, [])
        if endpoint not in homes:
            homes.append(endpoint)
            del homes[:-_MOST_HOMES]

    def keep(self, live: Collection[Endpoint], adapters: Collection[str]) -> None:
        """Forget instances that are not in `live`, and adapters that are not in `adapters`."""
        self._homes = {
            name: [end for end in homes if end in live]
            for name, homes in self._homes.items()
            if name in adapters
        }
        self._lacking = {
            name: ends & set(live) for name, ends in self._lacking.items() if name in adapters
        }

    def home(
        self,
        adapter: str,
        lanes: Sequence[Lane],
        out: Collection[Endpoint],
        load: Callable[[Endpoint], float],
    ) -> tuple[Lane, Endpoint] | None:
        """The first instance in `lanes` that served `adapter` before and whose load is not far
        above its share; None if there is none. Instances that only prefill are not considered. out:
        instances without a free slot. An instance's share follows from the weights of the lanes.
        """
        homes = self._homes.get(adapter)
        if not homes:
            return None
        options = {end: (lane, weight) for lane, end, weight in _options(lanes, out)}
        total_load = 1.0 + sum(map(load, options))
        total_weight = sum(weight for _, weight in options.values())
        for end in homes:
            if end not in options:
                continue
            lane, weight = options[end]
            if load(end) + 1.0 <= math.ceil(_MOST_ABOVE * total_load * weight / total_weight):
                return lane, end
        return None


def _options(lanes: Sequence[Lane], out: Collection[Endpoint]) -> Iterator[_Option]:
    """Each instance that serves whole requests, with its share of its lane's weight."""
    weighted = any(lane.weight > 0.0 for lane in lanes)
    for lane in lanes:
        if lane.decode is None:
            weight = lane.weight if weighted else float(len(lane.first.endpoints))
            for end in lane.first.endpoints:
                if end not in out and weight > 0.0:
                    yield lane, end, weight / len(lane.first.endpoints)
