"""Promises about the topics and the disk: a controller that reads them now can continue.

line "takeover": a new leader restores at least what the topics hold, and at the end of a run a new
controller restores what the leader has in force. line "22": the decision log has every tick that
its writer accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from autoscaler.tick.restore import restore
from loadtests.invariants.controller import KEYS, Controller
from loadtests.invariants.log import Link
from streams.decision_log.log_reader import Gap, read_spans, segments
from streams.loop.tick_loop import TickResult
from topics.checks import InvalidValue
from topics.codec import decode
from topics.signing import body_refusal
from topics.topic_table import LEDGER

if TYPE_CHECKING:
    from loadtests.invariants.simulated_run import World

Hold = Callable[[str, bool, str], None]
_RECENT_MS = 15_000
_RETRY_S = 30.0
_WAY_MS = 3_000
_ALWAYS = ("model", "groups", "combos")
"""Kinds of entries that the ledger has for each model."""


class StorageChecks:
    """Checks of one world. hold: counts a check of a line."""

    def __init__(self, world: World, hold: Hold) -> None:
        self._world = world
        self._hold = hold
        self._token = 0
        self._recorded: dict[str, list[int]] = {}

    def ticked(self, controller: Controller, done: TickResult) -> None:
        """Check a tick of the leader, after its watchers."""
        if controller.disk is not None and not controller.disk.status().fault:
            self._recorded.setdefault(controller.name, []).append(done.now_ms)
        token = done.after.term.leader_token
        if token != self._token:
            self._token = token
            if self._world.log.transactional:
                self._restored(controller, done)

    def _restored(self, controller: Controller, done: TickResult) -> None:
        """Check the first tick of a term: the former leader is fenced, so nothing on the topics is
        newer than the restored state."""
        claimed = controller.latest.desired.claimed
        published: dict[str, Mapping[str, Any]] = {
            "assignments": done.before.published.assignments,
            "routes": done.before.published.routes,
        }
        for name, restored in published.items():
            for key, record in self._last(name, claimed).items():
                mine = restored.get(key)
                whole = mine is not None and _order(mine) >= _order(record)
                self._hold("takeover", whole, f"{name} of {key}: restored {_order(mine)}, "
                           f"the topic has {_order(record)}")  # fmt: skip

        until_ms = done.now_ms - _WAY_MS  # the last leader was silent for longer
        written = [e.at_ms for e in self._last(LEDGER.name, claimed).values() if e.at_ms < until_ms]
        self._hold("takeover", max(written, default=0) <= done.before.term.ticked_ms,
                   "the ledger holds more than the restored memory")  # fmt: skip

    def _last(self, name: str, claimed: int) -> dict[str, Any]:
        """The highest valid record of each key that the topic holds, with a token that a leader
        claimed. A tombstone counts for records in other partitions too, even after it expired."""
        found: dict[str, Any] = {}
        names = {"", *self._world.nodes, *self._world.scenario.loads}
        for (of, _), part in self._world.log.parts.items():
            if of != name:
                continue
            for entry in part.entries:
                key = (entry.key or b"").decode(errors="replace")
                deleted_s = self._world.log.deleted_s.get((name, entry.key), -math.inf)
                if entry.value is None or entry.at_s <= deleted_s:
                    continue
                try:
                    record = decode(name, entry.value)
                except InvalidValue:
                    continue
                names = {"", *self._world.nodes, *self._world.scenario.loads}
                if (record.model if name == LEDGER.name else key) not in names or body_refusal(
                    name, entry.value, KEYS
                ):
                    continue
                if record.leader_token <= claimed and (
                    key not in found or _order(record) >= _order(found[key])
                ):
                    found[key] = record
        return found

    def end(self, leader: Controller) -> None:
        """Check the topics and the disk after the quiet time."""
        self._successor(leader)
        if self._world.scenario.records:
            self._decision_log(leader)

    def _successor(self, leader: Controller) -> None:
        """Check that a controller that starts now restores the state of `leader`."""
        world = self._world
        state, now_ms = leader.loop.state, leader.clock.now_ms()
        heir = Controller(
            "gamma", 1, world.log, Link(world.rng), world.now_s, 0, lambda: world.cluster,
            lambda *_: None, world.rng,
        )  # fmt: skip
        try:
            heir.process.run_until(world.now_s + 1.5)
        finally:
            heir.kill()
        latest = heir.latest
        pairs: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
            ("assignments", state.published.assignments, latest.desired.assignments),
            ("routes", state.published.routes, latest.desired.routes),
        ]
        for name, mine, restored in pairs:
            for key, record in mine.items():
                if record.issued_ms < now_ms - _RECENT_MS:
                    told = _order(restored.get(key))
                    self._hold("takeover", told == _order(record),
                               f"{name} of {key}: a successor has {told}, "
                               f"the leader {_order(record)}")  # fmt: skip
        parts = {f"{kind}/{model}" for kind in _ALWAYS for model in state.models} | {"fleet/"}
        lost = sorted(parts - latest.desired.ledger.keys())
        self._hold("takeover", not lost, f"a successor has no {lost} of the ledger")
        commands = {key: one.active for key, one in leader.latest.controls.items()}
        heard = {key: one.active for key, one in latest.controls.items()}
        self._hold("takeover", commands == heard, f"controls {heard}, the leader has {commands}")
        restored_state = restore(
            world.cluster, latest.desired.assignments, latest.desired.routes, latest.statuses,
            latest.decisions, now_ms, leader_token=state.term.leader_token + 1,
            plan_number=latest.numbers.plan, next_serial=latest.numbers.serial,
            ledger=latest.desired.ledger.values(),
        )  # fmt: skip
        if any(group.created_ms > now_ms - _RECENT_MS for group in state.groups):
            return
        for model, known in state.models.items():
            held = known.target.restart_hold
            again = restored_state.models[model].target.restart_hold
            self._hold("takeover", again <= held, f"{model}: a successor forgets its demand")
        names = {group.name for group in state.groups if group.counts}
        again_names = {group.name for group in restored_state.groups if group.counts}
        what = f"a successor has groups {sorted(again_names)}, not {sorted(names)}"
        self._hold("takeover", names == again_names, what)

    def _decision_log(self, leader: Controller) -> None:
        world = self._world
        for name, ticks in self._recorded.items():
            own = [one for one in segments(world.disk.folder) if one.controller == name]
            gaps: list[Gap] = []
            readable = {tick.now_ms for span in read_spans(own, gaps) for tick in span.ticks}
            lost = [ms for ms in ticks if ms not in readable]
            what = f"{len(lost)} of {len(ticks)} ticks of {name} are unreadable: {gaps[:2]}"
            self._hold("22", not lost, what)
        mended_s = max(
            (f.until_s for f in world.scenario.faults if f.kind == "disk full"), default=0.0
        )
        if leader.disk is not None and world.now_s - mended_s > _RETRY_S + 5.0:
            self._hold("22", not leader.disk.status().fault, "the log is not written again")


def _order(record: Any) -> tuple[int, int]:
    return (record.leader_token, record.generation) if record is not None else (0, 0)
