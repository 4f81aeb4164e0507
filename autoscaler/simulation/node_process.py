"""A simulated executor: carries out the assignment of one node in virtual time.

Owns starting, draining, stopping and role switches of its engines and the status that it tells. It
follows the real executor's rules (`serving.lifecycle`, back-off after failed launches, drain
deadline) without processes: an engine answers `startup_s` after its launch and ends at once when
told to. The ranks of a gang start side by side. Roles are switched by routing, as with a vLLM that
hands KV over both ways: what is in flight finishes, then the same process serves the new phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from autoscaler.domain.validation import InvalidValue
from autoscaler.serving.lifecycle import LifecycleEvent, after
from autoscaler.simulation.component_stage import AnyEngine, AnySetup
from autoscaler.simulation.event_queue import Agenda
from autoscaler.simulation.status_copies import like
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status

HEARTBEAT_MS, IDLE_HEARTBEAT_MS = 2_000.0, 10_000.0
_PROBE_MS = 100.0
_DRAIN_TIMEOUT_MS = 120_000.0  # where the assignment names none, as a real executor
_FAIL_AFTER_MS = 5_000.0
_BACKOFF_MS = 5_000.0
_MAX_ATTEMPTS, _SWITCH_ATTEMPTS = 3, 2


class Ground(Protocol):
    """What a node stands on. Times in ms of the agenda; `epoch_ms` makes them domain time."""

    agenda: Agenda
    engines: dict[str, AnyEngine]  # that answer, by address

    def epoch_ms(self, at_ms: float) -> int:
        """Domain ms since the epoch."""
        ...

    def setup(self, node: SimNode, desired: DesiredInstance) -> AnySetup:
        """The engine for `desired`; InvalidValue where it cannot run there."""
        ...

    def engine(self, setup: AnySetup, address: str) -> AnyEngine:
        """A process that answers."""
        ...

    def provision_s(self, node: SimNode) -> float:
        """Seconds until a machine that is asked for is there."""
        ...

    def no_node(self, node: SimNode) -> str:
        """Why the machine cannot be had now, "" if it can."""
        ...

    def launch_fault(self, node: SimNode) -> str:
        """Why a process that is launched now will end, "" if it will not."""
        ...

    def launched(self) -> None:
        """A process was started."""
        ...

    def lost(self, gangs: frozenset[str]) -> None:
        """A rank of each of these gangs is gone with its node."""
        ...

    def tell(self, status: Status) -> None:
        """A node says how it is."""
        ...

    def still(self, status: Status, at_ms: int) -> None:
        """A node says at `at_ms` since the epoch that it is as in its last `status`: nothing runs
        there."""
        ...


@dataclass(slots=True, eq=False)
class _Held:
    """One instance. process: launched and not ended; engine: of a process that answers. phase:
    that it serves; coming: of its process; refused: a switch to it failed, and is not tried again
    before another one is wanted. drain_ms: since when it waits to be idle, for its end or for a
    switch."""

    desired: DesiredInstance
    state: InstanceState
    since_ms: float
    phase: str
    coming: str = ""
    refused: str = ""
    process: int = 0  # number of its launch, 0 = none
    engine: AnyEngine | None = None
    address: str = ""
    launched_ms: float | None = None
    restarts: int = 0
    failures: int = 0
    retry_ms: float = 0.0
    drain_ms: float = 0.0
    reason: str = ""
    told_of: tuple[object, ...] = ()  # what was `told` of it last is made of, but for its load
    told: ObservedInstance | None = None


class SimNode:
    """One node of `pool` with `gpus` GPUs."""

    def __init__(self, name: str, pool: str, gpus: int, ground: Ground) -> None:
        self.name = name
        self.pool = pool
        self.gpus = gpus
        self.up = True
        self._ground = ground
        self._assignment: Assignment | None = None
        self._held: dict[str, _Held] = {}
        self._launches = 0
        self.due_ms = 0.0  # when its next heartbeat is
        self._polling = False
        self._reclaim_ms = 0
        self._told: Status | None = None  # last, of the assignment that it has
        self._there_ms: float | None = None  # when the machine is there; None: nothing is wanted

    def accept(self, assignment: Assignment) -> None:
        """Desired state, unless it is older than what is known or the node is lost."""
        known = self._assignment
        if not self.up or (known is not None and _rank(assignment) <= _rank(known)):
            return
        self._assignment, self._told = assignment, None
        self._reconcile(assignment)

    def lose(self) -> None:
        """The machine is gone."""
        self.up = False
        self._reclaim_ms = 0
        held, self._held = list(self._held.values()), {}
        self._there_ms = None
        self._assignment = self._told = None
        engines = [item.engine for item in held if item.engine is not None]
        for engine in engines:
            self._ground.engines.pop(engine.address, None)
        for engine in engines:
            engine.die()
        gangs = (item.desired.gang for item in held if item.process)
        self._ground.lost(frozenset(gang.gang for gang in gangs if gang is not None))

    def lose_gangs(self, gangs: frozenset[str]) -> None:
        """Ranks of these gangs are gone elsewhere: rank 0, if it is here, fails (at once; a real
        one hangs until its liveness probe is missed)."""
        for item in self._held.values():
            gang = item.desired.gang
            if gang is not None and gang.leads and gang.gang in gangs and item.process:
                engine, item.engine = item.engine, None
                self._died(item, item.process, "another rank is gone")
                if engine is not None:
                    del self._ground.engines[engine.address]
                    engine.die()

    def reclaim(self, at_ms: float) -> None:
        """The machine will be taken away at `at_ms`, and its owner was told so."""
        self._reclaim_ms, self._told = self._ground.epoch_ms(at_ms), None
        if self.up:
            self._tell()

    def come_back(self) -> None:
        """The machine is there again, with nothing on it."""
        self.up = True
        self._tell()

    def heartbeat(self, at_ms: int) -> None:
        """Ask every two seconds, from `due_ms` on. at_ms: this moment, since the epoch."""
        if self._told is not None and not self._held:
            self.due_ms = self._ground.agenda.now_ms + IDLE_HEARTBEAT_MS - 1.0
            self._ground.still(self._told, at_ms)
        elif self.up:
            self._tell()

    # -- inside -------------------------------------------------------------------------------

    def _reconcile(self, assignment: Assignment) -> None:
        wanted = {item.instance: item for item in assignment.instances}
        for name, item in list(self._held.items()):
            self._wish(item, wanted.get(name))
            over = item.state in (InstanceState.STOPPED, InstanceState.FAILED)
            if over and name not in wanted:
                del self._held[name]
        if not self._held:
            self._there_ms = None
        for name, desired in wanted.items():
            if name not in self._held:
                state = InstanceState.STOPPED if desired.drain else InstanceState.STARTING
                now_ms = self._ground.agenda.now_ms
                self._held[name] = _Held(desired, state, now_ms, desired.phase)
        self._launch()
        self._tell()

    def _wish(self, item: _Held, wish: DesiredInstance | None) -> None:
        known, now_ms = item.desired, self._ground.agenda.now_ms
        same = wish is not None and known == replace(
            wish, group=known.group, drain=known.drain, phase=known.phase, gang=known.gang
        )
        if wish is not None and wish.gang is not known.gang:
            same = same and known.gang is not None and known.gang.same_part(wish.gang)
        if wish is not None and same and not wish.drain:
            same = self._may_be(item, wish.phase)
        going = wish is None or wish.drain or not same
        if wish is not None and same:
            item.desired = wish
        if item.state is InstanceState.STOPPED:
            if wish is not None and not wish.drain:
                item.desired, item.phase = wish, wish.phase
                item.failures, item.retry_ms = 0, now_ms
                self._happens(item, LifecycleEvent.ASKED_AGAIN)
        elif going and item.state is not InstanceState.DRAINING:
            nothing_runs = item.state is InstanceState.FAILED
            self._happens(item, LifecycleEvent.DRAIN_ASKED, item.reason)
            item.drain_ms = now_ms
            broken = wish is not None and wish.gang is not None and wish.gang.broken
            if (item.engine is None or broken) and not nothing_runs:
                self._stop(item)  # nothing was ever sent to it, or it can finish nothing
            self._poll()
        elif not going and item.state is InstanceState.DRAINING:
            self._happens(item, LifecycleEvent.DRAIN_REVOKED)
            self._ground.agenda.at(now_ms + _PROBE_MS, lambda: self._answers(item, item.process))

    def _may_be(self, item: _Held, phase: str) -> bool:
        """Whether `item` comes to serve in `phase` without ending first."""
        if phase == item.refused:
            return True
        item.refused = ""
        if item.state is InstanceState.READY and phase != item.phase:
            self._happens(item, LifecycleEvent.SWITCH_ASKED)
            item.drain_ms, item.failures = self._ground.agenda.now_ms, 0
            self._poll()
        elif item.state is InstanceState.SWITCHING and phase == item.phase and item.engine:
            self._happens(item, LifecycleEvent.ROLLED_BACK)  # wanted as it is, after all
        elif item.state is InstanceState.STARTING and not item.process:
            item.phase = phase
        return item.state is InstanceState.SWITCHING or phase == item.phase

    def _launch(self) -> None:
        """Start what should run and whose GPUs are free."""
        now_ms = self._ground.agenda.now_ms
        busy = {gpu for item in self._held.values() if item.process for gpu in item.desired.gpus}
        for item in self._held.values():
            comes = item.state in (InstanceState.STARTING, InstanceState.SWITCHING)
            if not comes or item.process or now_ms < item.retry_ms:
                continue
            if busy.intersection(item.desired.gpus):
                item.reason = item.reason or "waits for its GPUs"
                continue
            busy.update(item.desired.gpus)
            self._start(item)

    def _start(self, item: _Held) -> None:
        agenda = self._ground.agenda
        missing = self._ground.no_node(self)
        fault = missing or self._ground.launch_fault(self)
        switches = item.state is InstanceState.SWITCHING
        self._launches += 1
        if not switches:
            self._ground.launched()
        item.process = process = self._launches
        back = item.desired.phase == item.refused
        item.coming = item.phase if back else item.desired.phase
        # A machine that could not be had is not billed.
        item.launched_ms = None if missing else agenda.now_ms
        item.reason = item.reason if item.refused else ""
        item.address = f"{self.name}:{10_000 + self._launches}"
        try:
            setup = self._ground.setup(self, replace(item.desired, phase=item.coming))
        except InvalidValue as error:
            fault = str(error)
        if fault:
            agenda.at(agenda.now_ms + _FAIL_AFTER_MS, lambda: self._died(item, process, fault))
        else:
            if self._there_ms is None:
                self._there_ms = agenda.now_ms + 1000.0 * self._ground.provision_s(self)
            wait_s = 0.0 if switches else setup.startup_s
            ready_ms = max(agenda.now_ms, self._there_ms) + 1000.0 * wait_s
            agenda.at(ready_ms, lambda: self._answers(item, process, setup))

    def _answers(self, item: _Held, process: int, setup: AnySetup | None = None) -> None:
        """A process has started, or a drain of it was revoked: it is ready."""
        if item.process != process or self._held.get(item.desired.instance) is not item:
            return
        if item.engine is None and setup is not None:
            item.engine = self._ground.engine(setup, item.address)
            self._ground.engines[item.address] = item.engine
        if item.engine is None:
            return
        if item.state is InstanceState.STARTING:
            self._happens(item, LifecycleEvent.ANSWERED)
        elif item.state is InstanceState.SWITCHING:
            back = item.coming == item.phase
            event = LifecycleEvent.ROLLED_BACK if back else LifecycleEvent.SWITCHED
            self._happens(item, event, item.reason)
            item.phase = item.coming
            self._wish(item, item.desired)  # it may be wanted as something else by now
        else:
            return
        self._tell()

    def _died(self, item: _Held, process: int, why: str) -> None:
        if item.process != process or self._held.get(item.desired.instance) is not item:
            return
        item.process, item.failures = 0, item.failures + 1
        gang = item.desired.gang
        if gang is not None or item.failures >= _MAX_ATTEMPTS:
            given_up = f"given up after {item.failures} attempts: {why}"
            text = f"{gang.place}: {why}" if gang else given_up
            self._happens(item, LifecycleEvent.GAVE_UP, text)
        else:
            pause_ms = _BACKOFF_MS * 2 ** (item.failures - 1)
            item.restarts += 1
            item.retry_ms = self._ground.agenda.now_ms + pause_ms
            if (
                item.state is InstanceState.SWITCHING
                and item.failures >= _SWITCH_ATTEMPTS
                and not item.refused
            ):
                item.refused, item.failures = item.coming, 0
                why = f"switch to {item.coming} failed: {why}"
            self._happens(item, LifecycleEvent.DIED, why)
            self._ground.agenda.at(item.retry_ms, self._launch_again)
        self._launch()
        self._tell()

    def _launch_again(self) -> None:
        if self.up:
            self._launch()
            self._tell()

    def _poll(self) -> None:
        if not self._polling:
            self._polling = True
            self._ground.agenda.at(self._ground.agenda.now_ms + _PROBE_MS, self._probe)

    def _probe(self) -> None:
        """Stop what has drained, or has had long enough."""
        self._polling = False
        now_ms = self._ground.agenda.now_ms
        named_ms = self._assignment.drain_timeout_ms if self._assignment else 0
        timeout_ms = named_ms or _DRAIN_TIMEOUT_MS
        ended = draining = False
        for item in list(self._held.values()):
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
            self._launch()
            self._tell()
        if draining:
            self._poll()

    def _stop(self, item: _Held) -> None:
        engine, item.engine, item.process, item.address = item.engine, None, 0, ""
        if item.state is InstanceState.SWITCHING:
            self._happens(item, LifecycleEvent.DIED)
            item.retry_ms = self._ground.agenda.now_ms
        else:
            self._happens(item, LifecycleEvent.ENDED, "drained")
        if engine is not None:
            del self._ground.engines[engine.address]
            engine.die()

    def _happens(self, item: _Held, event: LifecycleEvent, reason: str = "") -> None:
        state = after(item.state, event)
        if state is not item.state:
            item.since_ms = self._ground.agenda.now_ms
        item.state, item.reason = state, reason

    def _tell(self) -> None:
        ground = self._ground
        every_ms = HEARTBEAT_MS if self._held else IDLE_HEARTBEAT_MS
        self.due_ms = ground.agenda.now_ms + every_ms - 1.0
        at_ms = ground.epoch_ms(ground.agenda.now_ms)
        instances = tuple([self._seen(item) for item in self._held.values()])
        if self._told is not None:
            self._told = like(self._told, at_ms=at_ms, instances=instances)
        else:
            self._told = Status(
                node=self.name,
                pool=self.pool,
                executor="simulated",
                observed_generation=self._assignment.generation if self._assignment else 0,
                at_ms=at_ms,
                instances=instances,
                reclaim_ms=self._reclaim_ms,
            )
        ground.tell(self._told)

    def _seen(self, item: _Held) -> ObservedInstance:
        epoch_ms = self._ground.epoch_ms
        engine, gang = item.engine, item.desired.gang
        in_flight, held_kv = (engine.in_flight, engine.held_kv) if engine else (0, 0)
        of = (
            item.desired, item.state, item.phase, item.process, item.address, item.since_ms,
            item.launched_ms, item.restarts, item.reason,
        )  # fmt: skip
        if item.told is not None and item.told_of == of:
            if (item.told.in_flight, item.told.held_kv) != (in_flight, held_kv):
                item.told = like(item.told, in_flight=in_flight, held_kv=held_kv)
            return item.told
        item.told_of = of
        serves = gang is None or gang.leads
        if gang is not None and gang.leads and item.process:
            gang = replace(gang, rendezvous=item.address)
        item.told = ObservedInstance(
            instance=item.desired.instance,
            model=item.desired.model,
            phase=item.phase,
            group=item.desired.group,
            state=item.state,
            gpus=item.desired.gpus,
            endpoint=item.address if item.process and serves else "",
            since_ms=epoch_ms(item.since_ms),
            launched_ms=0 if item.launched_ms is None else epoch_ms(item.launched_ms),
            restarts=item.restarts,
            in_flight=in_flight,
            held_kv=held_kv,
            reason=item.reason,
            gang=gang,
        )
        return item.told


def _rank(assignment: Assignment) -> tuple[int, int]:
    return assignment.leader_token, assignment.generation
