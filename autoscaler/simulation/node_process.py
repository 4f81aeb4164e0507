"""A simulated executor: applies the assignment of one node in virtual time and reports its status.

It follows the rules of the real executor (`serving.lifecycle`, back-off after failed launches,
drain deadline) without processes: an engine answers `startup_s` after its launch and stops at once.
The ranks of a gang (a multi-node instance) start in parallel. Roles are switched by routing, as in
a vLLM that transfers KV in both directions: requests in flight finish, then the process serves the
new phase.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from autoscaler.domain.validation import InvalidValue
from autoscaler.serving.lifecycle import LifecycleEvent, after
from autoscaler.simulation.component_stage import AnyEngine, AnySetup
from autoscaler.simulation.event_queue import EventQueue
from autoscaler.simulation.simulated_instance import SimInstance
from autoscaler.simulation.status_copies import copy_with
from topics.fleet import Assignment, DesiredInstance, InstanceState, Status

HEARTBEAT_MS, IDLE_HEARTBEAT_MS = 2_000.0, 10_000.0
_DRAIN_CHECK_MS = 100.0
_DRAIN_TIMEOUT_MS = 120_000.0  # default of an assignment, as in a real executor
_FAIL_AFTER_MS = 5_000.0
_BACKOFF_MS = 5_000.0
_MAX_ATTEMPTS, _SWITCH_ATTEMPTS = 3, 2


class NodeEnvironment(Protocol):
    """Interface of a node to the simulation. Times in ms of the event queue."""

    events: EventQueue
    engines: dict[str, AnyEngine]  # running engines by address

    def epoch_ms(self, at_ms: float) -> int:
        """`at_ms` of the event queue, converted to domain ms since the epoch."""
        ...

    def engine_setup(self, node: SimNode, desired: DesiredInstance) -> AnySetup:
        """The setup of the engine for `desired`. Raises InvalidValue if it cannot run there."""
        ...

    def start_engine(self, setup: AnySetup, address: str) -> AnyEngine:
        """Start an engine process that answers at `address`."""
        ...

    def provision_s(self, node: SimNode) -> float:
        """Seconds from renting the node until it can start an engine."""
        ...

    def unavailable_reason(self, node: SimNode) -> str:
        """Why no node of the pool can be rented now; "" if a node can be rented."""
        ...

    def launch_fault(self, node: SimNode) -> str:
        """Why a process launched now will exit; "" if it will run."""
        ...

    def count_launch(self) -> None:
        """Count one started process."""
        ...

    def fail_gangs(self, gangs: frozenset[str]) -> None:
        """Report that a rank of each of these gangs is lost together with its node."""
        ...

    def report_status(self, status: Status) -> None:
        """Publish the status of a node."""
        ...

    def report_unchanged(self, status: Status, at_ms: int) -> None:
        """Publish the last `status` of a node without instances again; at_ms: now, in ms since the
        epoch."""
        ...


class SimNode:
    """One node of `pool` with `gpus` GPUs."""

    def __init__(self, name: str, pool: str, gpus: int, environment: NodeEnvironment) -> None:
        self.name = name
        self.pool = pool
        self.gpus = gpus
        self.up = True
        self._environment = environment
        self._assignment: Assignment | None = None
        self._instances: dict[str, SimInstance] = {}
        self._launches = 0
        self.due_ms = 0.0  # time of the next heartbeat
        self._drain_check_scheduled = False
        self._reclaim_ms = 0
        self._last_status: Status | None = None  # None after each change of the assignment
        # time at which the machine is up; None: not rented
        self._provisioned_ms: float | None = None

    def accept(self, assignment: Assignment) -> None:
        """Apply `assignment`, unless it is older than the current one or the node is lost."""
        current = self._assignment
        if not self.up or (current is not None and _version(assignment) <= _version(current)):
            return
        self._assignment, self._last_status = assignment, None
        self._reconcile(assignment)

    def lose(self) -> None:
        """Lose the machine and all instances on it."""
        self.up = False
        self._reclaim_ms = 0
        lost_instances, self._instances = list(self._instances.values()), {}
        self._provisioned_ms = None
        self._assignment = self._last_status = None
        engines = [item.engine for item in lost_instances if item.engine is not None]
        for engine in engines:
            self._environment.engines.pop(engine.address, None)
        for engine in engines:
            engine.die()
        gangs = (item.desired.gang for item in lost_instances if item.process)
        self._environment.fail_gangs(frozenset(gang.gang for gang in gangs if gang is not None))

    def fail_ranks(self, gangs: frozenset[str]) -> None:
        """Another rank of these gangs is lost. If this node holds rank 0, that rank fails at once
        (in reality it hangs until its liveness probe fails)."""
        for item in self._instances.values():
            gang = item.desired.gang
            if gang is not None and gang.leads and gang.gang in gangs and item.process:
                engine, item.engine = item.engine, None
                self._on_exit(item, item.process, "another rank is gone")
                if engine is not None:
                    del self._environment.engines[engine.address]
                    engine.die()

    def reclaim(self, at_ms: float) -> None:
        """Receive the notice that the machine will be taken away at `at_ms`."""
        self._reclaim_ms, self._last_status = self._environment.epoch_ms(at_ms), None
        if self.up:
            self._report()

    def restore(self) -> None:
        """Start the lost machine again, without instances."""
        self.up = True
        self._report()

    def heartbeat(self, at_ms: int) -> None:
        """Report the status. Must be called every two seconds from `due_ms` on. at_ms: now, since
        the epoch."""
        if self._last_status is not None and not self._instances:
            self.due_ms = self._environment.events.now_ms + IDLE_HEARTBEAT_MS - 1.0
            self._environment.report_unchanged(self._last_status, at_ms)
        elif self.up:
            self._report()

    # -- inside -------------------------------------------------------------------------------

    def _reconcile(self, assignment: Assignment) -> None:
        desired_by_name = {item.instance: item for item in assignment.instances}
        for name, item in list(self._instances.items()):
            self._apply_desired(item, desired_by_name.get(name))
            over = item.state in (InstanceState.STOPPED, InstanceState.FAILED)
            if over and name not in desired_by_name:
                del self._instances[name]
        if not self._instances:
            self._provisioned_ms = None
        for name, desired in desired_by_name.items():
            if name not in self._instances:
                state = InstanceState.STOPPED if desired.drain else InstanceState.STARTING
                now_ms = self._environment.events.now_ms
                self._instances[name] = SimInstance(desired, state, now_ms, desired.phase)
        self._launch_ready()
        self._report()

    def _apply_desired(self, item: SimInstance, desired: DesiredInstance | None) -> None:
        current, now_ms = item.desired, self._environment.events.now_ms
        same = desired is not None and current == replace(
            desired,
            group=current.group,
            drain=current.drain,
            phase=current.phase,
            gang=current.gang,
        )
        if desired is not None and desired.gang is not current.gang:
            same = same and current.gang is not None and current.gang.same_part(desired.gang)
        if desired is not None and same and not desired.drain:
            same = self._reach_phase(item, desired.phase)
        leaving = desired is None or desired.drain or not same
        if desired is not None and same:
            item.desired = desired
        if item.state is InstanceState.STOPPED:
            if desired is not None and not desired.drain:
                item.desired, item.phase = desired, desired.phase
                item.failures, item.retry_ms = 0, now_ms
                self._transition(item, LifecycleEvent.ASKED_AGAIN)
        elif leaving and item.state is not InstanceState.DRAINING:
            nothing_runs = item.state is InstanceState.FAILED
            self._transition(item, LifecycleEvent.DRAIN_ASKED, item.reason)
            item.drain_ms = now_ms
            broken = desired is not None and desired.gang is not None and desired.gang.broken
            if (item.engine is None or broken) and not nothing_runs:
                self._stop(item)  # stop at once: it has no requests, or cannot finish them
            self._schedule_drain_check()
        elif not leaving and item.state is InstanceState.DRAINING:
            self._transition(item, LifecycleEvent.DRAIN_REVOKED)
            self._environment.events.at(
                now_ms + _DRAIN_CHECK_MS, lambda: self._on_answer(item, item.process)
            )

    def _reach_phase(self, item: SimInstance, phase: str) -> bool:
        """Let `item` serve in `phase` without stopping it first. Returns whether that is possible,
        now or after a switch."""
        if phase == item.failed_phase:
            return True
        item.failed_phase = ""
        if item.state is InstanceState.READY and phase != item.phase:
            self._transition(item, LifecycleEvent.SWITCH_ASKED)
            item.drain_ms, item.failures = self._environment.events.now_ms, 0
            self._schedule_drain_check()
        elif item.state is InstanceState.SWITCHING and phase == item.phase and item.engine:
            self._transition(item, LifecycleEvent.ROLLED_BACK)  # the current phase is desired again
        elif item.state is InstanceState.STARTING and not item.process:
            item.phase = phase
        return item.state is InstanceState.SWITCHING or phase == item.phase

    def _launch_ready(self) -> None:
        """Launch the instances that are due and whose GPUs are free."""
        now_ms = self._environment.events.now_ms
        busy = {
            gpu for item in self._instances.values() if item.process for gpu in item.desired.gpus
        }
        for item in self._instances.values():
            launching = item.state in (InstanceState.STARTING, InstanceState.SWITCHING)
            if not launching or item.process or now_ms < item.retry_ms:
                continue
            if busy.intersection(item.desired.gpus):
                item.reason = item.reason or "waiting for its GPUs"
                continue
            busy.update(item.desired.gpus)
            self._start(item)

    def _start(self, item: SimInstance) -> None:
        events = self._environment.events
        missing = self._environment.unavailable_reason(self)
        fault = missing or self._environment.launch_fault(self)
        switches = item.state is InstanceState.SWITCHING
        self._launches += 1
        if not switches:
            self._environment.count_launch()
        item.process = process = self._launches
        back = item.desired.phase == item.failed_phase
        item.process_phase = item.phase if back else item.desired.phase
        # A machine that could not be rented is not on the bill.
        item.launched_ms = None if missing else events.now_ms
        item.reason = item.reason if item.failed_phase else ""
        item.address = f"{self.name}:{10_000 + self._launches}"
        try:
            setup = self._environment.engine_setup(
                self, replace(item.desired, phase=item.process_phase)
            )
        except InvalidValue as error:
            fault = str(error)
        if fault:
            events.at(events.now_ms + _FAIL_AFTER_MS, lambda: self._on_exit(item, process, fault))
        else:
            if self._provisioned_ms is None:
                self._provisioned_ms = events.now_ms + 1000.0 * self._environment.provision_s(self)
            wait_s = 0.0 if switches else setup.startup_s
            ready_ms = max(events.now_ms, self._provisioned_ms) + 1000.0 * wait_s
            events.at(ready_ms, lambda: self._on_answer(item, process, setup))

    def _on_answer(self, item: SimInstance, process: int, setup: AnySetup | None = None) -> None:
        """A process has started, or its drain was revoked: mark it as ready."""
        if item.process != process or self._instances.get(item.desired.instance) is not item:
            return
        if item.engine is None and setup is not None:
            item.engine = self._environment.start_engine(setup, item.address)
            self._environment.engines[item.address] = item.engine
        if item.engine is None:
            return
        if item.state is InstanceState.STARTING:
            self._transition(item, LifecycleEvent.ANSWERED)
        elif item.state is InstanceState.SWITCHING:
            back = item.process_phase == item.phase
            event = LifecycleEvent.ROLLED_BACK if back else LifecycleEvent.SWITCHED
            self._transition(item, event, item.reason)
            item.phase = item.process_phase
            self._apply_desired(item, item.desired)  # the desired phase may have changed
        else:
            return
        self._report()

    def _on_exit(self, item: SimInstance, process: int, why: str) -> None:
        if item.process != process or self._instances.get(item.desired.instance) is not item:
            return
        item.process, item.failures = 0, item.failures + 1
        gang = item.desired.gang
        if gang is not None or item.failures >= _MAX_ATTEMPTS:
            given_up = f"given up after {item.failures} attempts: {why}"
            text = f"{gang.place}: {why}" if gang else given_up
            self._transition(item, LifecycleEvent.GAVE_UP, text)
        else:
            pause_ms = _BACKOFF_MS * 2 ** (item.failures - 1)
            item.restarts += 1
            item.retry_ms = self._environment.events.now_ms + pause_ms
            if (
                item.state is InstanceState.SWITCHING
                and item.failures >= _SWITCH_ATTEMPTS
                and not item.failed_phase
            ):
                item.failed_phase, item.failures = item.process_phase, 0
                why = f"switch to {item.process_phase} failed: {why}"
            self._transition(item, LifecycleEvent.DIED, why)
            self._environment.events.at(item.retry_ms, self._retry_launch)
        self._launch_ready()
        self._report()

    def _retry_launch(self) -> None:
        if self.up:
            self._launch_ready()
            self._report()

    def _schedule_drain_check(self) -> None:
        if not self._drain_check_scheduled:
            self._drain_check_scheduled = True
            self._environment.events.at(
                self._environment.events.now_ms + _DRAIN_CHECK_MS, self._check_drains
            )

    def _check_drains(self) -> None:
        """Stop draining instances that are idle or past the drain timeout."""
        self._drain_check_scheduled = False
        now_ms = self._environment.events.now_ms
        named_ms = self._assignment.drain_timeout_ms if self._assignment else 0
        timeout_ms = named_ms or _DRAIN_TIMEOUT_MS
        ended = draining = False
        for item in list(self._instances.values()):
            leaves = item.state is InstanceState.SWITCHING and item.engine is not None
            if item.state is not InstanceState.DRAINING and not leaves:
                continue
            draining = True
            engine = item.engine
            idle = engine is None or not (engine.in_flight or engine.held_kv)
            if idle or now_ms - item.drain_ms >= timeout_ms:
                self._stop(item)
                ended = True
        if ended:
            self._launch_ready()
            self._report()
        if draining:
            self._schedule_drain_check()

    def _stop(self, item: SimInstance) -> None:
        engine, item.engine, item.process, item.address = item.engine, None, 0, ""
        if item.state is InstanceState.SWITCHING:
            self._transition(item, LifecycleEvent.DIED)
            item.retry_ms = self._environment.events.now_ms
        else:
            self._transition(item, LifecycleEvent.ENDED, "drained")
        if engine is not None:
            del self._environment.engines[engine.address]
            engine.die()

    def _transition(self, item: SimInstance, event: LifecycleEvent, reason: str = "") -> None:
        state = after(item.state, event)
        if state is not item.state:
            item.since_ms = self._environment.events.now_ms
        item.state, item.reason = state, reason

    def _report(self) -> None:
        environment = self._environment
        every_ms = HEARTBEAT_MS if self._instances else IDLE_HEARTBEAT_MS
        self.due_ms = environment.events.now_ms + every_ms - 1.0
        at_ms = environment.epoch_ms(environment.events.now_ms)
        instances = tuple(
            [item.observed(environment.epoch_ms) for item in self._instances.values()]
        )
        if self._last_status is not None:
            self._last_status = copy_with(self._last_status, at_ms=at_ms, instances=instances)
        else:
            self._last_status = Status(
                node=self.name,
                pool=self.pool,
                executor="simulated",
                observed_generation=self._assignment.generation if self._assignment else 0,
                at_ms=at_ms,
                instances=instances,
                reclaim_ms=self._reclaim_ms,
            )
        environment.report_status(self._last_status)


def _version(assignment: Assignment) -> tuple[int, int]:
    return assignment.leader_token, assignment.generation
