"""A request at an engine, in virtual time: what is told to its gateway when something comes of it.

Owns one job per kind of stay: the engine that makes its tokens, a prefill, a stage of a model of
components. Decides nothing.
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.routing import Pick
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.simulated_request import Call
from topics.routing import Endpoint


class Told(Protocol):
    """The gateway that sent a request."""

    def answered(self, call: Call, endpoint: Endpoint) -> None:
        """It was answered in full."""
        ...

    def lost(self, call: Call, endpoint: Endpoint) -> None:
        """`endpoint` is gone with the request inside."""
        ...

    def hand_over(self, call: Call, pick: Pick, prefill: SimEngine) -> None:
        """The prefill is done: its KV goes to a decode instance of the same group."""
        ...

    def left_stage(self, call: Call, way: ComponentPath, hop: int, endpoint: Endpoint) -> None:
        """A stage is done with hop number `hop`."""
        ...


class Answer:
    """A request at the engine that makes its tokens."""

    __slots__ = ("_call", "_endpoint", "_engine", "_gateway")

    def __init__(self, gateway: Told, call: Call, endpoint: Endpoint, engine: SimEngine) -> None:
        self._gateway = gateway
        self._call = call
        self._endpoint = endpoint
        self._engine = engine

    def first_token(self, at_ms: float) -> None:
        self._call.first_ms = at_ms + self._engine.setup.times.first_token_ms

    def finished(self, at_ms: float) -> None:
        self._call.end_ms = at_ms + self._engine.setup.times.first_token_ms
        self._gateway.answered(self._call, self._endpoint)

    def broken(self) -> None:
        self._gateway.lost(self._call, self._endpoint)


class Prefill:
    """A request at a prefill instance."""

    __slots__ = ("_call", "_engine", "_gateway", "_pick")

    def __init__(self, gateway: Told, call: Call, pick: Pick, engine: SimEngine) -> None:
        self._gateway = gateway
        self._call = call
        self._pick = pick
        self._engine = engine

    def first_token(self, at_ms: float) -> None:
        """The client sees the decode instance's first token, not this one."""

    def finished(self, at_ms: float) -> None:
        self._gateway.hand_over(self._call, self._pick, self._engine)

    def broken(self) -> None:
        self._gateway.lost(self._call, self._pick.endpoint)


class AtStage:
    """A request at one stage of its path."""

    __slots__ = ("_call", "_endpoint", "_gateway", "_hop", "_way")

    def __init__(
        self, gateway: Told, call: Call, way: ComponentPath, hop: int, endpoint: Endpoint
    ) -> None:
        self._gateway = gateway
        self._call = call
        self._way = way
        self._hop = hop
        self._endpoint = endpoint

    def finished(self, at_ms: float) -> None:
        self._gateway.left_stage(self._call, self._way, self._hop, self._endpoint)

    def broken(self) -> None:
        self._gateway.lost(self._call, self._endpoint)
