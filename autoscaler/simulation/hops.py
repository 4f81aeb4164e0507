"""A request on its way through the stages of a model of components, in virtual time.

Owns what comes after a stage is done, as the real gateway's relay does it: the next hop is chosen
by the routes of that moment, and the last stage's answer is the client's. Knows no queue.
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.serving.paths import Way
from autoscaler.simulation.requests import Call
from autoscaler.simulation.stage import SimStage
from topics.routing import Endpoint


class Hops(Protocol):
    """Whoever leads requests from stage to stage."""

    def left_stage(self, call: Call, way: Way, hop: int, endpoint: Endpoint) -> None:
        """`endpoint` is done with hop number `hop`."""
        ...

    def lost_stage(self, call: Call, endpoint: Endpoint) -> None:
        """`endpoint` is gone with the request inside."""
        ...


class AtStage:
    """A request at one stage."""

    __slots__ = ("_call", "_endpoint", "_hop", "_hops", "_way")

    def __init__(self, hops: Hops, call: Call, way: Way, hop: int, endpoint: Endpoint) -> None:
        self._hops = hops
        self._call = call
        self._way = way
        self._hop = hop
        self._endpoint = endpoint

    def enter(self, stage: SimStage) -> None:
        """Queue it there."""
        stage.submit(self._way.hops[self._hop].runs, self)

    def finished(self, at_ms: float) -> None:
        self._hops.left_stage(self._call, self._way, self._hop, self._endpoint)

    def broken(self) -> None:
        self._hops.lost_stage(self._call, self._endpoint)
