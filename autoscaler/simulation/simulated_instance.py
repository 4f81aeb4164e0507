"""One instance on a simulated node, and its entry in the node's status.

Times in ms of the event queue.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from autoscaler.simulation.component_stage import AnyEngine
from autoscaler.simulation.status_copies import copy_with
from topics.fleet import DesiredInstance, InstanceState, ObservedInstance


@dataclass(slots=True, eq=False)
class SimInstance:
    """One instance.

    process: number of the launch of the running process, 0 = none. engine: set if the process
    answers. phase: the phase that the instance serves. process_phase: the phase for which its
    process was started. failed_phase: a phase to which a switch failed; the switch is tried again
    only after another phase was desired. drain_ms: time since which the instance has been waiting
    to become idle, so that it can stop or switch.
    """

    desired: DesiredInstance
    state: InstanceState
    since_ms: float
    phase: str
    process_phase: str = ""
    failed_phase: str = ""
    process: int = 0
    engine: AnyEngine | None = None
    address: str = ""
    launched_ms: float | None = None
    restarts: int = 0
    failures: int = 0
    retry_ms: float = 0.0
    drain_ms: float = 0.0
    reason: str = ""
    last_observed_from: tuple[object, ...] = ()  # the inputs of last_observed, without the load
    last_observed: ObservedInstance | None = None

    def observed(self, epoch_ms: Callable[[float], int]) -> ObservedInstance:
        """The instance as its node reports it. Returns one object until something changes.

        epoch_ms: converts ms of the event queue to domain ms since the epoch.
        """
        engine, gang = self.engine, self.desired.gang
        load = (engine.in_flight, engine.held_kv, engine.finished) if engine else (0, 0, 0)
        in_flight, held_kv, finished = load
        of = (
            self.desired, self.state, self.phase, self.process, self.address, self.since_ms,
            self.launched_ms, self.restarts, self.reason,
        )  # fmt: skip
        if self.last_observed is not None and self.last_observed_from == of:
            last = self.last_observed
            if (last.in_flight, last.held_kv, last.finished) != load:
                self.last_observed = copy_with(
                    last, in_flight=in_flight, held_kv=held_kv, finished=finished
                )
            return self.last_observed
        self.last_observed_from = of
        serves = gang is None or gang.leads
        if gang is not None and gang.leads and self.process:
            gang = replace(gang, rendezvous=self.address)
        self.last_observed = ObservedInstance(
            instance=self.desired.instance,
            model=self.desired.model,
            phase=self.phase,
            group=self.desired.group,
            state=self.state,
            gpus=self.desired.gpus,
            endpoint=self.address if self.process and serves else "",
            since_ms=epoch_ms(self.since_ms),
            launched_ms=0 if self.launched_ms is None else epoch_ms(self.launched_ms),
            restarts=self.restarts,
            in_flight=in_flight,
            held_kv=held_kv,
            reason=self.reason,
            gang=gang,
            finished=finished,
        )
        return self.last_observed
