"""The tick: once per domain second an observation is made, decided upon, and carried out.

Owns the state between ticks and the way of effects to their ports. Reads no clock but the one it
is given; all I/O is behind ports that return at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autoscaler.decide import ControllerState, Effect, Observation, decide
from autoscaler.demand.observed import observe
from autoscaler.demand.windows import TelemetryWindows
from autoscaler.domain.cluster import Cluster
from autoscaler.effects import (
    PublishAssignment,
    PublishDecision,
    PublishPlan,
    PublishRoutes,
    SolveRequested,
)
from autoscaler.planning.request import Outcome, PlanAnswer, PlanRequest, Urgency
from streams.clock import Clock
from streams.controller.latest import Latest
from streams.controller.outbox import Publisher
from streams.ports.actuator import Actuator
from streams.ports.observed import ObservedInstances
from streams.ports.routes import RouteSink
from streams.solver.client import Solver

log = logging.getLogger(__name__)

REPUBLISH_S = 10.0
_SLOW_S = 0.5


@dataclass(frozen=True, slots=True)
class Ports:
    """Where effects go and instances are seen. publisher: decisions, plans and dead letters."""

    observed: ObservedInstances
    actuator: Actuator
    routes: RouteSink
    publisher: Publisher
    solver: Solver


@dataclass(slots=True)
class Ticks:
    """How ticking went. Counts since the start; seconds are CPU seconds of deciding."""

    count: int = 0
    skipped: int = 0
    cpu_s: float = 0.0
    slowest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TickDone:
    """One tick as it was: states around it, what it was told, what it led to, CPU seconds."""

    before: ControllerState
    after: ControllerState
    observation: Observation
    cluster: Cluster
    now_ms: int
    effects: tuple[Effect, ...]
    cpu_s: float


Watcher = Callable[[TickDone], None]
"""Told of every tick after its effects are on their way; returns at once."""


@dataclass(slots=True)
class Loop:
    """One controller. declared: the cluster as declared now. leads: whether it may act; a
    controller that may not, watches."""

    state: ControllerState
    declared: Callable[[], Cluster]
    windows: TelemetryWindows
    latest: Latest
    ports: Ports
    clock: Clock
    leads: Callable[[], bool]
    ticks: Ticks = field(default_factory=Ticks)
    watchers: tuple[Watcher, ...] = ()

    def tick(self, now_ms: int) -> tuple[Effect, ...]:
        """Decide at `now_ms` and hand every effect to its port; the effects."""
        started = time.process_time()
        cluster = self.declared()
        models = [service.model for service in cluster.services]
        answers = self.ports.solver.take()
        observation = Observation(
            demand=observe(self.windows, models, cluster.policy, now_ms),
            statuses=self.ports.observed.statuses(),
            availability=dict(self.latest.nodes_obtainable),
            prices=dict(self.latest.usd_per_node_h),
            answers=answers,
            alerts=self.latest.take_alerts(),
            controls=dict(self.latest.controls),
        )
        before = self.state
        self.state, effects = decide(before, observation, cluster, now_ms)
        for answer in answers:
            _say_answer(answer)
        for effect in effects:
            self._carry_out(effect, cluster)
        took = time.process_time() - started
        self.ticks.count += 1
        self.ticks.cpu_s += took
        self.ticks.slowest_s = max(self.ticks.slowest_s, took)
        if took > _SLOW_S:
            log.warning("a tick took %.2f CPU seconds", took)
        done = TickDone(before, self.state, observation, cluster, now_ms, effects, took)
        for watcher in self.watchers:
            watcher(done)
        return effects

    async def run(self, on_first: Callable[[], None]) -> None:
        """Tick at every whole domain second, and when the planner has answered; seconds that were
        missed are skipped."""
        second = self.clock.now_ms() // 1000
        while True:
            wait_s = self.clock.real_s_until((second + 1) * 1000)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ports.solver.news.wait(), max(0.0, wait_s))
            now_ms = self.clock.now_ms()
            self.ticks.skipped += max(0, now_ms // 1000 - second - 1)
            second = max(second, now_ms // 1000)
            if not self.leads():
                self.ports.solver.take()  # whoever leads now asks anew
                continue
            self.tick(now_ms)
            if self.ticks.count == 1:
                on_first()

    async def republish(self) -> None:
        """Say again what is wanted, every 10 real seconds, until cancelled.

        The embedded broker forgets old records, and a foreign record may hide ours: the last one
        of a key is what counts.
        """
        while True:
            await asyncio.sleep(REPUBLISH_S)
            self.republish_now()

    def republish_now(self) -> None:
        """Say again what is wanted of every node and model; a reader takes it as a copy."""
        for routes in self.state.routes.values():
            self.ports.routes.apply(routes)
        for assignment in self.state.assignments.values():
            self.ports.actuator.apply(assignment)

    def _carry_out(self, effect: Effect, cluster: Cluster) -> None:
        if isinstance(effect, PublishAssignment):
            self.ports.actuator.apply(effect.record)
        elif isinstance(effect, PublishRoutes):
            self.ports.routes.apply(effect.record)
        elif isinstance(effect, (PublishDecision, PublishPlan)):
            self.ports.publisher.put(effect.record)
        elif isinstance(effect, SolveRequested):
            self.ports.solver.ask(effect.request, cluster)
            _say_request(effect.request, self.state)


def _say_request(request: PlanRequest, state: ControllerState) -> None:
    """Full plans are few and often change nothing, so their reasons stand nowhere else."""
    if request.urgency is Urgency.FULL:
        why = "; ".join(dict.fromkeys(words for _, words in state.pending[Urgency.FULL].reasons))
        log.info(f"full plan {request.number} of {', '.join(request.scope)}: {why}")


def _say_answer(answer: PlanAnswer) -> None:
    if answer.urgency is Urgency.FULL and answer.outcome is not Outcome.NONE:
        usd = f"{answer.now_usd_per_h:.2f} -> {answer.cost_usd_per_h:.2f} USD/h"
        log.info(f"full plan {answer.number} is {answer.outcome}: {usd}")
