"""One stage of a model of components in virtual time: it serves one request at a time.

The time of a request follows from the declared rates of the components that it needs, as in the
simulated stage of `shoal up`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.domain.validation import InvalidValue
from autoscaler.rollout.assignments import component_engine
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import EventQueue
from topics.fleet import DesiredInstance


@dataclass(frozen=True, slots=True)
class StageSetup:
    """Speed of one stage instance.

    seconds: domain seconds per request, by the components that run here for the request (sorted).
    startup_s: domain seconds from launch to ready.
    """

    seconds: Mapping[tuple[str, ...], float]
    startup_s: float


class StageJob(Protocol):
    """Receives the progress of one request at a stage."""

    def finished(self, at_ms: float) -> None:
        """The stage has finished the request."""
        ...

    def broken(self) -> None:
        """The stage was lost."""
        ...


class SimStage:
    """A running stage. address: "host:port", unique among all engines of a simulation. finished:
    number of requests that it has finished."""

    held_kv = 0

    def __init__(self, setup: StageSetup, events: EventQueue, address: str) -> None:
        self.address = address
        self._seconds = setup.seconds
        self._events = events
        self._queue: deque[tuple[float, StageJob]] = deque()
        self._alive = True
        self.finished = 0

    @property
    def in_flight(self) -> int:
        """Requests waiting or being served."""
        return len(self._queue)

    def submit(self, runs: tuple[str, ...], job: StageJob) -> None:
        """Queue a request that needs `runs` of this stage."""
        self._queue.append((1000.0 * self._seconds[runs], job))
        if len(self._queue) == 1:
            self._start_next()

    def die(self) -> None:
        """End the stage. All of its requests break."""
        self._alive = False
        jobs, self._queue = [job for _, job in self._queue], deque()
        for job in jobs:
            job.broken()

    def _start_next(self) -> None:
        took_ms, _ = self._queue[0]
        self._events.at(self._events.now_ms + took_ms, self._finish)

    def _finish(self) -> None:
        if not self._alive:
            return
        _, job = self._queue.popleft()
        self.finished += 1
        if self._queue:
            self._start_next()
        job.finished(self._events.now_ms)


AnyEngine = SimEngine | SimStage
AnySetup = EngineSetup | StageSetup


def stage_setup(
    graph: ComponentGraph, service: Service, pool: Pool, desired: DesiredInstance
) -> StageSetup:
    """The setup of `desired`, an instance of a model of components on a node of `pool`.

    Raises InvalidValue if the model declares no such deployment.
    """
    seconds = graph.seconds(pool.gpu.name)
    for option in graph.deployments:
        if component_engine(service.model, option.name) == desired.engine:
            own = {tuple(sorted(role)): s for (name, role), s in seconds.items()
                   if name == option.name}  # fmt: skip
            return StageSetup(own, option.start_s)
    raise InvalidValue("engine", desired.engine, f"a deployment of {service.model}")


def engine_on(setup: AnySetup, events: EventQueue, address: str) -> AnyEngine:
    """Start the engine that `setup` describes, a stage or an LLM engine."""
    if isinstance(setup, StageSetup):
        return SimStage(setup, events, address)
    return SimEngine(setup, events, address)
