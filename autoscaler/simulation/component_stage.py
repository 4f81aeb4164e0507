"""One stage of a model of components in virtual time: one request after another.

Owns the line of requests in front of it. Each takes as long as what it runs here takes by the
declared rates, as at the simulated stage that `shoal up` starts. Knows no gateway and no paths.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.components import ComponentGraph
from autoscaler.domain.validation import InvalidValue
from autoscaler.rollout.assignments import component_engine
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import Agenda
from topics.fleet import DesiredInstance


@dataclass(frozen=True, slots=True)
class StageSetup:
    """What one instance is. seconds: of a request, by the components that it runs here (sorted);
    startup_s: from launch to ready. Both in domain seconds."""

    seconds: Mapping[tuple[str, ...], float]
    startup_s: float


class StageJob(Protocol):
    """Whoever waits for a request at a stage."""

    def finished(self, at_ms: float) -> None:
        """The stage is done with it."""
        ...

    def broken(self) -> None:
        """The stage is gone."""
        ...


class SimStage:
    """A running stage. address: "host:port", unique among all engines of a simulation."""

    held_kv = 0

    def __init__(self, setup: StageSetup, agenda: Agenda, address: str) -> None:
        self.address = address
        self._seconds = setup.seconds
        self._agenda = agenda
        self._line: deque[tuple[float, StageJob]] = deque()
        self._alive = True

    @property
    def in_flight(self) -> int:
        """Requests in line or at work."""
        return len(self._line)

    def submit(self, runs: tuple[str, ...], job: StageJob) -> None:
        """Queue a request that needs `runs` of this stage."""
        self._line.append((1000.0 * self._seconds[runs], job))
        if len(self._line) == 1:
            self._begin()

    def die(self) -> None:
        """Break off everything inside."""
        self._alive = False
        jobs, self._line = [job for _, job in self._line], deque()
        for job in jobs:
            job.broken()

    def _begin(self) -> None:
        took_ms, _ = self._line[0]
        self._agenda.at(self._agenda.now_ms + took_ms, self._done)

    def _done(self) -> None:
        if not self._alive:
            return
        _, job = self._line.popleft()
        if self._line:
            self._begin()
        job.finished(self._agenda.now_ms)


AnyEngine = SimEngine | SimStage
AnySetup = EngineSetup | StageSetup


def stage_setup(
    graph: ComponentGraph, service: Service, pool: Pool, desired: DesiredInstance
) -> StageSetup:
    """What `desired` of a model of components is on a node of `pool`; InvalidValue where no
    deployment of it is declared as that."""
    seconds = graph.seconds(pool.gpu.name)
    for option in graph.deployments:
        if component_engine(service.model, option.name) == desired.engine:
            own = {tuple(sorted(role)): s for (name, role), s in seconds.items()
                   if name == option.name}  # fmt: skip
            return StageSetup(own, option.start_s)
    raise InvalidValue("engine", desired.engine, f"a deployment of {service.model}")


def engine_on(setup: AnySetup, agenda: Agenda, address: str) -> AnyEngine:
    """The engine that `setup` describes, running."""
    if isinstance(setup, StageSetup):
        return SimStage(setup, agenda, address)
    return SimEngine(setup, agenda, address)
