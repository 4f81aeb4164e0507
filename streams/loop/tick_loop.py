"""Control loop: once per domain second, observe, decide and apply the effects.

Keeps the state between ticks and passes effects to their ports. The clock is an argument. All I/O
is behind ports that return at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoscaler.decide import ControllerState, Effect, Observation, decide
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.node_names import NodeNames
from autoscaler.estimate.model_demand import observe_demand
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.explain.reason_texts import texts
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, PlanRequest, Urgency
from autoscaler.state.effects import (
    DeleteKey,
    PublishAssignment,
    PublishDecision,
    PublishLedger,
    PublishPlan,
    PublishRoutes,
    SolveRequested,
)
from streams.clock import Clock
from streams.invalid_records import PerMinute
from streams.loop.control_state import ControlState
from streams.loop.tick_schedule import TickPacing
from streams.ports.actuator import Actuator, Publisher
from streams.solver.solver_client import Solver
from topics.controls import ALL_MODELS, Control
from topics.records import Assignment, Routes
from topics.topic_table import ASSIGNMENTS, ROUTES, KeyDeletion

log = logging.getLogger(__name__)

_Publish = PublishAssignment | PublishRoutes | PublishDecision | PublishPlan | PublishLedger

REFRESH_MS = 300_000
_LOOK_S = 5.0
_SLOW_S = 0.5
_MOST_WARNINGS = 100


@dataclass(frozen=True, slots=True)
class Ports:
    """Destinations of effects. publisher: decisions, plans and dead letters."""

    desired: Actuator
    publisher: Publisher
    solver: Solver


@dataclass(slots=True)
class Ticks:
    """Tick counters since the start."""

    count: int = 0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class TickResult:
    """One tick: the states before and after the tick, its observation, its effects, and its CPU
    seconds."""

    before: ControllerState
    after: ControllerState
    observation: Observation
    cluster: Cluster
    now_ms: int
    effects: tuple[Effect, ...]
    cpu_s: float


Traced = Callable[[ControllerState, tuple[Effect, ...]], tuple[Effect, ...]]
"""Adds traces to effects before they are published; the first argument is the state before them."""

Watcher = Callable[[TickResult], None]
"""Called for every tick after its effects are passed to their ports; returns at once."""


@dataclass(slots=True)
class Loop:
    """Control loop of one controller. declared: the current declared cluster. leads: whether this
    controller may act; otherwise it only observes. pace: decides when to tick, and is notified of
    new telemetry. refresh_ms: domain ms after which desired state is published again. seated_s:
    monotonic time at which this controller last began to lead (0: never). late_s: lag of the topics
    that are read late, in real seconds.
    """

    state: ControllerState
    declared: Callable[[], Cluster]
    windows: TelemetryWindows
    latest: ControlState
    ports: Ports
    clock: Clock
    leads: Callable[[], bool]
    ticks: Ticks = field(default_factory=Ticks)
    watchers: tuple[Watcher, ...] = ()
    traced: Traced = lambda _before, effects: effects
    pace: TickPacing = field(init=False)
    refresh_ms: int = REFRESH_MS
    late_s: Callable[[], Mapping[str, float]] = dict
    seated_s: float = 0.0
    _said_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    _late: frozenset[str] = frozenset()
    _warnings: PerMinute = field(default_factory=lambda: PerMinute(_MOST_WARNINGS))

    def __post_init__(self) -> None:
        self.pace = TickPacing(self.clock)

    def tick(self, now_ms: int) -> tuple[Effect, ...]:
        """Decide at `now_ms`, pass every effect to its port, and return the effects."""
        started = time.process_time()
        cluster = self.declared()
        models = [service.model for service in cluster.services]
        models += [route.name for route in cluster.routes]
        answers = self.ports.solver.take()
        observation = Observation(
            demand=observe_demand(self.windows, models, cluster.policy, now_ms),
            statuses=dict(self.latest.statuses),
            availability=dict(self.latest.supply.nodes_obtainable),
            prices=dict(self.latest.supply.usd_per_node_h),
            answers=answers,
            alerts=self.latest.take_alerts(),
            engines=self.latest.take_engines(),
            controls=self._controls(models),
            unmanaged=dict(self.latest.unmanaged),
            lag_ms=self._lag_ms(),
        )
        before = self.state
        self.state, effects = decide(before, observation, cluster, now_ms)
        for answer in answers:
            _say_answer(answer)
        for effect in self.traced(before, effects):
            self._carry_out(effect, cluster)
        took = time.process_time() - started
        self.ticks.count += 1
        if took > _SLOW_S:
            log.warning("a tick took %.2f CPU seconds", took)
        done = TickResult(before, self.state, observation, cluster, now_ms, effects, took)
        for watcher in self.watchers:
            watcher(done)
        return effects

    def _controls(self, models: Iterable[str]) -> dict[str, Control]:
        """Operator controls for all models, for `models`, and for names with instances or controls
        in the state.

        Controls for other names are left out, because every tick would report them again.
        """
        state = self.state
        scopes = {
            ALL_MODELS,
            *models,
            *state.published.routes,
            *(group.model for group in state.groups),
        }
        scopes.update(name.rsplit("/", 1)[0] for name in state.declared.controls)
        return {key: one for key, one in self.latest.controls.items() if one.scope in scopes}

    def _lag_ms(self) -> dict[str, int]:
        """`late_s` in domain ms, rounded to whole seconds.

        A finer value would change in every entry of the decision log.
        """
        late_s = self.late_s()
        for name in late_s.keys() - self._late:
            log.warning("reading %s %.0f s late: nothing is removed meanwhile", name, late_s[name])
        for name in self._late - late_s.keys():
            log.warning("%s is read in time again", name)
        self._late = frozenset(late_s)
        speed = self.clock.time_base.speed
        return {name: int(seconds * speed) * 1000 for name, seconds in late_s.items()}

    def begin(self, state: ControllerState) -> None:
        """Continue from `state` when this controller begins to lead."""
        self.ports.solver.take()  # Discard answers to requests of an earlier term.
        self.state, self._said_ms = state, {}

    async def run(self, on_first: Callable[[], None]) -> None:
        """Tick at every whole domain second, on each planner answer, and soon after new telemetry,
        until cancelled. Missed seconds are skipped.

        Gateways also end their spans on whole seconds, so ticks at whole seconds alone would see
        each record one second late.
        """
        second = self.clock.now_ms() // 1000
        first = True
        while True:
            wait_s = self.clock.real_s_until((second + 1) * 1000)
            await self.pace.next(wait_s, self.ports.solver.news)
            now_ms = self.clock.now_ms()
            self.ticks.skipped += max(0, now_ms // 1000 - second - 1)
            second = max(second, now_ms // 1000)
            if not self.leads():
                self.windows.advance(now_ms)
                self.ports.solver.take()  # The new leader sends its own requests.
                continue
            began_s = self.clock.now_s()
            self.tick(now_ms)
            self.pace.tick_finished(began_s)
            if first:
                first = False
                on_first()

    async def refresh(self) -> None:
        """Publish the desired state again before its validity ends, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            if self.leads():
                self.say_again(self.clock.now_ms() - self.refresh_ms)

    def say_again(self, older_ms: int) -> None:
        """Publish again the desired state of each node and model whose last record is from
        `older_ms` or earlier. Readers treat the copy as a duplicate."""
        wanted: list[Assignment | Routes] = [*self.state.published.routes.values()]
        wanted += self.state.published.assignments.values()
        for record in wanted:
            if self._said_ms.get(_place(record), 0) <= older_ms:
                self.say(record)

    def say_ledger_again(self) -> None:
        """Publish the whole ledger with the next tick, except arrivals of hours that are over."""
        self.state = replace(self.state, term=replace(self.state.term, begun=False))

    def overwrite(self, record: Assignment | Routes) -> None:
        """Handle `record`, which was read back from its topic.

        If another controller wrote it, publish the desired state again, because compaction keeps
        only the last record of a key.
        """
        token = self.state.term.leader_token
        if record.leader_token != token and self.leads():
            self._warn("%s of %s was written with leader token %d, not %d: overwriting it",
                       *_place(record), record.leader_token, token)  # fmt: skip
            self._replace(record)

    def overwrite_forged(self, record: Assignment | Routes) -> None:
        """Overwrite `record`, which has no valid signature."""
        if self.leads():
            self._warn("%s of %s was written without a good signature: overwriting it",
                       *_place(record))  # fmt: skip
            self._replace(record)

    def _replace(self, record: Assignment | Routes) -> None:
        """Publish this leader's record of the same key. A declared name without one gets an empty
        record, so that an executor stops what `record` started. The sweep of keys (`key_sweep`)
        deletes the key of any other name."""
        published, token = self.state.published, self.state.term.leader_token
        ours: Assignment | Routes | None
        if isinstance(record, Routes):
            ours = published.routes.get(record.model)
            if ours is None and _declares(self.declared(), record.model):
                # Generation 0, because every later decision for this key has a higher one.
                ours = replace(
                    record,
                    generation=0,
                    leader_token=token,
                    groups=(),
                    types=(),
                    feeds=(),
                    split=None,
                    withdrawn=False,
                )
        else:
            ours = published.assignments.get(record.node)
            if ours is None and record.node in NodeNames(self.declared().pools):
                ours = replace(record, generation=0, leader_token=token, instances=())
        # A term begins by publishing all desired state under its own token, so records with
        # another token belong to an earlier term.
        if ours is not None and ours.leader_token == token:
            self.say(ours)

    def _warn(self, text: str, *values: object) -> None:
        if self._warnings.allows():
            log.warning(text, *values)

    def say(self, record: Any) -> None:
        """Publish a record of this leader."""
        if isinstance(record, (Assignment, Routes)):
            self._said_ms[_place(record)] = self.clock.now_ms()
            self.ports.desired.apply(record)
        else:
            self.ports.publisher.put(record)

    def _carry_out(self, effect: Effect, cluster: Cluster) -> None:
        if isinstance(effect, _Publish):
            self.say(effect.record)
        elif isinstance(effect, DeleteKey):
            topic, key = effect.place
            self._said_ms.pop((topic, key), None)
            self.ports.publisher.put(KeyDeletion(topic, key.encode()))
        elif isinstance(effect, SolveRequested):
            self.ports.solver.ask(effect.request, cluster)
            _say_request(effect.request, self.state)


def _declares(cluster: Cluster, name: str) -> bool:
    """Whether `name` is a model, or a service that routes to several models."""
    models = (service.model for service in cluster.services)
    return any(one == name for one in (*models, *(route.name for route in cluster.routes)))


def _place(record: Assignment | Routes) -> tuple[str, str]:
    """(short topic name, key) of `record`."""
    if isinstance(record, Routes):
        return ROUTES.name, record.model
    return ASSIGNMENTS.name, record.node


def _say_request(request: PlanRequest, state: ControllerState) -> None:
    """Log the reasons of a full plan request. Full plans are rare and often change nothing, so no
    decision record holds these reasons."""
    if request.urgency is Urgency.FULL:
        why = "; ".join(texts(state.pending[Urgency.FULL].reasons))
        log.info(f"full plan {request.number} of {', '.join(request.scope)}: {why}")


def _say_answer(answer: PlanAnswer) -> None:
    if answer.urgency is Urgency.FULL and answer.outcome is not Outcome.NONE:
        usd = f"{answer.now_usd_per_h:.2f} -> {answer.cost_usd_per_h:.2f} USD/h"
        log.info(f"full plan {answer.number} is {answer.outcome}: {usd}")
