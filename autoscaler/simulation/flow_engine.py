"""An engine process of the rate simulator. It holds a load instead of single requests."""

from __future__ import annotations

import math

from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import EventQueue


class FlowEngine(SimEngine):
    """An engine without single requests: it knows only how many requests it has and when they
    end."""

    def __init__(self, setup: EngineSetup, events: EventQueue, address: str) -> None:
        self.setup = setup
        self.address = address
        self._events = events
        self._load = 0
        self._until_ms = math.inf
        self.finished = 0

    @property
    def in_flight(self) -> int:
        """Requests in the engine."""
        return self._load if self._events.now_ms < self._until_ms else 0

    @property
    def held_kv(self) -> int:
        """Always 0: KV transfers take no time here."""
        return 0

    def set_load(self, load: int) -> None:
        """Set the number of requests to `load`, until the next call."""
        self._load, self._until_ms = load, math.inf

    def end_load(self, at_ms: float) -> None:
        """Note that no further requests arrive, and that the present ones end by `at_ms`."""
        self._until_ms = at_ms

    def die(self) -> None:
        """End the process. Its load becomes 0."""
        self._until_ms = 0.0
