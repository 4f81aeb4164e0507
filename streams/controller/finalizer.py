"""Finalizes withdrawn models (`topics.name_life`): once no instance, route or file refers to a
name, the leader deletes its declaration, its ledger and its controls, and writes the versions that
keep its old declarations out."""

from __future__ import annotations

from collections.abc import Callable

from streams.loop.control_state import ControlState
from streams.loop.tick_loop import TickResult
from streams.ports.actuator import Publisher
from topics.ledger import keys_of
from topics.name_life import NameLife, life_of
from topics.services import FinalizedNames
from topics.topic_table import CONTROLS, LEDGER, SERVICES, KeyDeletion

_REPEAT_TICKS = 10


class Finalizer:
    """Watcher of a leader's ticks. in_file: whether the configuration file declares a model.

    The versions are written first. The keys are deleted once the versions were read back, so that
    no failure in between lets an old declaration return.
    """

    def __init__(
        self, latest: ControlState, in_file: Callable[[str], bool], publisher: Publisher
    ) -> None:
        self._latest = latest
        self._in_file = in_file
        self._publisher = publisher
        self._written: FinalizedNames | None = None
        self._ticks = 0

    def __call__(self, tick: TickResult) -> None:
        declared = self._latest.declared
        for model in declared.overwritten & declared.services.keys():
            self._publisher.put(declared.services[model])
        declared.overwritten.clear()
        done = self._unused(tick)
        if not done:
            return
        floor = declared.finalized
        if floor is None or any(
            declared.services[model].version > floor.version or model in floor.declared
            for model in done
        ):
            self._write(declared.without(done))
            return
        gone = frozenset(done)
        ledger, controls = self._latest.desired.ledger, self._latest.controls
        keys = [(SERVICES.name, model) for model in done]
        keys += [(LEDGER.name, key) for one in done for key in keys_of(one) if key in ledger]
        keys += [(CONTROLS.name, one.topic_key) for one in controls.values() if one.scope in gone]
        for topic, key in keys:
            self._latest.drop(topic, key)
            self._publisher.put(KeyDeletion(topic, key.encode()))

    def _unused(self, tick: TickResult) -> list[str]:
        """Withdrawn models to which no instance, route or file refers."""
        declared = {service.model for service in tick.cluster.services}
        in_use = {group.model for group in tick.after.groups} | tick.after.published.routes.keys()
        return [
            model
            for model in sorted(self._latest.declared.withdrawn)
            if life_of(model in declared, model in in_use or self._in_file(model), True)
            is NameLife.FINALIZED
        ]

    def _write(self, record: FinalizedNames) -> None:
        """Write `record`, and again if it is not read back in time."""
        self._ticks += 1
        if record != self._written or self._ticks >= _REPEAT_TICKS:
            self._written, self._ticks = record, 0
            self._publisher.put(record)
