"""Jobs of requests at engines: they report each request's progress to its gateway.

There is one class for each place of a request: the engine that produces the tokens, a prefill
instance, a stage of a model of components.
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.request_router import Pick
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.simulated_request import Call
from topics.routing import Endpoint


class SendingGateway(Protocol):
    """Interface of the gateway that sent a request."""

    def on_answered(self, call: Call, endpoint: Endpoint) -> None:
        """`endpoint` has answered the whole request."""
        ...

    def on_engine_lost(self, call: Call, endpoint: Endpoint) -> None:
        """`endpoint` was lost while it held the request."""
        ...

    def hand_over_kv(self, call: Call, pick: Pick, prefill: SimEngine) -> None:
        """The prefill has finished: transfer its KV cache to a decode instance of its group."""
        ...

    def on_stage_finished(
        self, call: Call, path: ComponentPath, hop: int, endpoint: Endpoint
    ) -> None:
        """Hop number `hop` of the path has finished."""
        ...


class Answer:
    """A request at the engine that produces its tokens."""

    __slots__ = ("_call", "_endpoint", "_engine", "_gateway")

    def __init__(
        self, gateway: SendingGateway, call: Call, endpoint: Endpoint, engine: SimEngine
    ) -> None:
        self._gateway = gateway
        self._call = call
        self._endpoint = endpoint
        self._engine = engine

    def first_token(self, at_ms: float, cached_tokens: int) -> None:
        self._call.first_ms = at_ms + self._engine.setup.times.first_token_ms
        self._call.cached_tokens = max(self._call.cached_tokens, cached_tokens)

    def finished(self, at_ms: float) -> None:
        self._call.end_ms = at_ms + self._engine.setup.times.first_token_ms
        self._gateway.on_answered(self._call, self._endpoint)

    def broken(self) -> None:
        self._gateway.on_engine_lost(self._call, self._endpoint)


class Prefill:
    """A request at a prefill instance."""

    __slots__ = ("_call", "_engine", "_gateway", "_pick")

    def __init__(self, gateway: SendingGateway, call: Call, pick: Pick, engine: SimEngine) -> None:
        self._gateway = gateway
        self._call = call
        self._pick = pick
        self._engine = engine

    def first_token(self, at_ms: float, cached_tokens: int) -> None:
        """The client gets the first token of the decode instance."""
        self._call.cached_tokens = cached_tokens

    def finished(self, at_ms: float) -> None:
        self._gateway.hand_over_kv(self._call, self._pick, self._engine)

    def broken(self) -> None:
        self._gateway.on_engine_lost(self._call, self._pick.endpoint)


class AtStage:
    """A request at one stage of its path."""

    __slots__ = ("_call", "_endpoint", "_gateway", "_hop", "_path")

    def __init__(
        self, gateway: SendingGateway, call: Call, path: ComponentPath, hop: int, endpoint: Endpoint
    ) -> None:
        self._gateway = gateway
        self._call = call
        self._path = path
        self._hop = hop
        self._endpoint = endpoint

    def finished(self, at_ms: float) -> None:
        self._gateway.on_stage_finished(self._call, self._path, self._hop, self._endpoint)

    def broken(self) -> None:
        self._gateway.on_engine_lost(self._call, self._endpoint)
