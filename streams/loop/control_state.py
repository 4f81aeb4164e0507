"""Latest value of each key on the control topics.

`control_topics` adds records to the same object in its initial read and in `follow`. A record that
is read twice changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autoscaler.estimate.engine_view import EngineView
from autoscaler.state.ledger import read_part
from streams.clock import Clock
from streams.loop.command_log import CommandLog
from streams.loop.declared_names import DeclaredNames
from streams.loop.election import Election
from topics.checks import MAX_MS, MAX_RESTORED_COUNT
from topics.fleet import NO_DEADLINE_MS
from topics.leadership import token_of
from topics.name_life import is_superseded
from topics.records import (
    Alert,
    Assignment,
    Availability,
    Control,
    DeadLetter,
    Decision,
    DeclaredService,
    FinalizedNames,
    Leadership,
    LedgerEntry,
    PlanRecord,
    Price,
    Routes,
    Status,
)
from topics.services import MOST_NAMES
from topics.topic_table import key_of, topic_of

_KEPT_DECISIONS = 500
_KEPT_ALERTS = 1000
_KEPT_VERDICTS = 1000
_KEPT_REFUSED = 100
KEPT_DEAD = 10_000
# Leaders per node or model. The highest token is evicted first, because it may be forged.
_KEPT_ASIDE = 8
_SAME_MS = 1_000

_ALERT_IS_NEWS_S = 60.0
"""Real seconds. Older alerts are ignored: the first full plan already covers them."""


LedRecord = Assignment | Routes | LedgerEntry
"""A record that only a leader writes, ordered by (leader token, generation)."""


class RecordRefused(Exception):
    """A record can be decoded, but the core rejects its values."""


@dataclass(slots=True)
class DesiredRecords:
    """Assignments by node, routes by model, and the leader's memory by key. claimed: the highest
    leader token in any claim.

    beyond: such records with a token that no leader has claimed, by (topic, key) and then by token.
    They are kept until a claim arrives. If claims are lost, a forged record with a higher token
    does not hide the true one. Eight forged records with lower tokens evict it, but signatures
    prevent forged records.
    """

    assignments: dict[str, Assignment] = field(default_factory=dict)
    routes: dict[str, Routes] = field(default_factory=dict)
    ledger: dict[str, LedgerEntry] = field(default_factory=dict)
    claimed: int = 0
    beyond: dict[tuple[str, str], dict[int, LedRecord]] = field(default_factory=dict)

    def size(self) -> int:
        """Number of stored keys."""
        return len(self.assignments) + len(self.routes) + len(self.beyond)

    def claim(self, token: int) -> None:
        """Apply a leader's claim to `token`, and the records that waited for it."""
        if token <= self.claimed:
            return
        self.claimed = token
        for key, aside in list(self.beyond.items()):
            for of in sorted(of for of in aside if of <= token):
                self.take(aside.pop(of))
            if not aside:
                del self.beyond[key]

    def take(self, record: LedRecord) -> None:
        """Keep `record` unless a later one is stored.

        Records are ordered by (token, generation). Their order in the topic does not count, because
        the last record of a key may be a late write of a former leader. A forged token can have any
        value.
        """
        kept: dict[str, Any] = self.ledger
        if isinstance(record, Assignment):
            kept = self.assignments
        elif isinstance(record, Routes):
            kept = self.routes
        key = (key_of(record) or b"").decode()
        if record.leader_token > self.claimed:
            aside = self.beyond.setdefault((topic_of(record).name, key), {})
            before = aside.get(record.leader_token)
            if before is None or _order(record) >= _order(before):
                aside[record.leader_token] = record
            if len(aside) > _KEPT_ASIDE:
                del aside[max(aside)]
            return
        known = kept.get(key)
        if known is None or _order(record) >= _order(known):
            kept[key] = record


@dataclass(slots=True)
class SupplyRecords:
    """Offers and prices, by pool."""

    nodes_obtainable: dict[str, Availability] = field(default_factory=dict)
    usd_per_node_h: dict[str, Price] = field(default_factory=dict)


@dataclass(slots=True)
class ServiceRecords:
    """The latest declaration or withdrawal of each model on the topic (`topics.name_life`).
    refused: by model, the reason why its latest declaration is invalid. The previous declaration
    then stays in force. finalized: the finalized versions on the topic. overwritten: models whose
    last record on the topic is older than the one in force, which must be written again."""

    services: dict[str, DeclaredService] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    finalized: FinalizedNames | None = None
    overwritten: set[str] = field(default_factory=set)

    @property
    def withdrawn(self) -> frozenset[str]:
        """Models whose name is withdrawn and not finalized."""
        return frozenset(one.model for one in self.services.values() if one.withdrawn)

    def take(self, record: DeclaredService) -> bool:
        """Keep `record`. False if it is older than the record or the finalization of its name, so
        that a withdrawn model does not return."""
        model, known, floor = record.model, self.services.get(record.model), self.finalized
        if known is not None:
            if (record.version, record.withdrawn) < (known.version, known.withdrawn):
                self.overwritten.add(model)
                return False
        elif len(self.services) >= MOST_NAMES:
            return False
        elif floor is not None and is_superseded(
            record.version, floor.version, floor.declared.get(model)
        ):
            self.refuse(
                model,
                f"its version {record.version} is not above {floor.version}, the last version of a "
                "withdrawn model; run `shoal apply` again",
            )
            return False
        self.services[model] = record
        self.overwritten.discard(model)
        return True

    def refuse(self, model: str, why: str) -> None:
        """Keep the reason why the latest declaration of `model` is invalid, for at most 100
        models."""
        if model in self.refused or len(self.refused) < _KEPT_REFUSED:
            self.refused[model] = why

    def take_finalized(self, record: FinalizedNames) -> None:
        """Keep the versions of `record` unless later ones are known."""
        if self.finalized is None or record.version >= self.finalized.version:
            self.finalized = record

    def without(self, models: Collection[str]) -> FinalizedNames:
        """The record that keeps old declarations of the withdrawn `models` out."""
        before = self.finalized.version if self.finalized is not None else 0
        version = max(before, *(self.services[model].version for model in models))
        return FinalizedNames(
            version, {m: one.version for m, one in sorted(self.services.items()) if m not in models}
        )

    def drop(self, model: str) -> None:
        """Apply a tombstone: it removes only a withdrawn model, whose name a leader finalized."""
        if model in self.services and not self.services[model].withdrawn:
            self.overwritten.add(model)
        elif self.services.pop(model, None) is None:
            self.refused.pop(model, None)


@dataclass(slots=True)
class LastNumbers:
    """Highest numbers in plan records. plan: of a plan; serial: of the next group."""

    plan: int = 0
    serial: int = 1


@dataclass(slots=True)
class DroppedRecords:
    """Records that were not applied. dead: (topic, partition, offset) of records with a dead
    letter, at least the last 10,000, in order. buried: total number of these records. undeclared:
    number of records dropped for undeclared and finalized names, by topic."""

    dead: dict[tuple[str, int, int], None] = field(default_factory=dict)
    buried: int = 0
    undeclared: Counter[str] = field(default_factory=Counter)

    def bury(self, place: tuple[str, int, int]) -> None:
        """Record that the record at `place` (topic, partition, offset) has a dead letter."""
        self.buried += place not in self.dead
        self.dead[place] = None
        if len(self.dead) > 2 * KEPT_DEAD:
            for oldest in list(self.dead)[:KEPT_DEAD]:
                del self.dead[oldest]


@dataclass(slots=True)
class ControlState:
    """Latest records by key.

    statuses: by node. decisions: the last 500. controls: the operator command in force of each
    subject, and at least the last 1000 verdicts. alerts: alerts not yet
    returned by `take_alerts`. unmanaged: by model and combo, number of servers that Shoal did not
    start.
    """

    statuses: dict[str, Status] = field(default_factory=dict)
    desired: DesiredRecords = field(default_factory=DesiredRecords)
    decisions: list[Decision] = field(default_factory=list)
    supply: SupplyRecords = field(default_factory=SupplyRecords)
    declared: ServiceRecords = field(default_factory=ServiceRecords)
    controls: dict[str, Control] = field(default_factory=dict)
    commands: CommandLog = field(default_factory=CommandLog)
    alerts: list[Alert] = field(default_factory=list)
    engines: dict[str, EngineView] = field(default_factory=dict)
    unmanaged: dict[str, Mapping[str, int]] = field(default_factory=dict)
    numbers: LastNumbers = field(default_factory=LastNumbers)
    dropped: DroppedRecords = field(default_factory=DroppedRecords)

    def take(self, record: Any, offset: int) -> None:
        """Store `record`, which was read at `offset` of its partition."""
        if isinstance(record, Status):
            self.statuses[record.node] = record
        elif isinstance(record, (Assignment, Routes, LedgerEntry)):
            self.desired.take(record)
        elif isinstance(record, Decision):
            self.decisions.append(record)
            if record.proposal:
                self.commands.ended(record)
            if len(self.decisions) > 2 * _KEPT_DECISIONS:
                del self.decisions[:-_KEPT_DECISIONS]
        elif isinstance(record, Leadership):
            self.desired.claim(token_of(record, offset))
        elif isinstance(record, PlanRecord):
            if max(record.number, record.next_serial) <= MAX_RESTORED_COUNT:
                self.numbers.plan = max(self.numbers.plan, record.number)
                self.numbers.serial = max(self.numbers.serial, record.next_serial)
        elif isinstance(record, Availability):
            self.supply.nodes_obtainable[record.pool] = record
        elif isinstance(record, Price):
            self.supply.usd_per_node_h[record.pool] = record
        elif isinstance(record, DeclaredService):
            self.dropped.undeclared["services"] += not self.declared.take(record)
        elif isinstance(record, FinalizedNames):
            self.declared.take_finalized(record)
        elif isinstance(record, Control):
            self._control(record)
        elif isinstance(record, Alert):
            self.alerts.append(record)
            del self.alerts[:-_KEPT_ALERTS]
        elif isinstance(record, DeadLetter):
            self.dropped.bury((record.topic, record.partition, record.offset))

    def _control(self, record: Control) -> None:
        before = self.controls.get(record.key)
        if not record.replaces(before):
            assert before is not None  # noqa: S101  `replaces` is true without one
            self.commands.lost(record, before)
            return
        if before is not None:
            if not record.version:
                record = replace(record, version=before.version + 1)
            self.commands.replaced(record, before)
        self.controls.pop(record.key, None)
        self.controls[record.key] = record  # the newest key is last
        self.commands.won(record)
        if record.kind != "verdict" or len(self.controls) <= 2 * _KEPT_VERDICTS:
            return
        verdicts = [key for key, control in self.controls.items() if control.kind == "verdict"]
        if len(verdicts) > 2 * _KEPT_VERDICTS:
            for key in verdicts[:-_KEPT_VERDICTS]:
                self.commands.outdated[self.controls.pop(key).topic_key] = None

    def take_engines(self) -> dict[str, EngineView]:
        """Engine observations that arrived since the last call, by model."""
        found, self.engines = self.engines, {}
        return found

    def take_alerts(self) -> tuple[Alert, ...]:
        """Alerts that arrived since the last call."""
        found, self.alerts = tuple(self.alerts), []
        return found

    def drop(self, topic: str, key: str) -> None:
        """Apply a tombstone: remove the record with `key` of `topic`."""
        if topic == "controls":
            self.commands.outdated.pop(key, None)
            self.controls = {
                subject: one for subject, one in self.controls.items() if one.topic_key != key
            }
            return
        if topic == "services":
            self.declared.drop(key)
            return
        kept: dict[str, dict[str, Any]] = {
            "status": self.statuses,
            "assignments": self.desired.assignments,
            "routes": self.desired.routes,
            "supply.availability": self.supply.nodes_obtainable,
            "supply.prices": self.supply.usd_per_node_h,
            "ledger": self.desired.ledger,
        }
        kept.get(topic, {}).pop(key, None)
        self.desired.beyond.pop((topic, key), None)


def control_record_handler(
    latest: ControlState,
    election: Election,
    clock: Clock,
    overwrite: Callable[[Assignment | Routes], None],
    on_alert: Callable[[Alert], None],
    known: DeclaredNames | None = None,
) -> Callable[[str, Any, int, int], None]:
    """Return the handler of control records, called with (topic, record, offset, append time).

    overwrite: called with assignments and routes. on_alert: called with new alerts. known: declared
    names; None accepts every name.

    If a record is invalid, the handler raises RecordRefused before it changes any state. Any other
    exception is a bug.
    """

    offered: dict[tuple[str, str], Availability | Price] = {}

    def on_our_clock(record: Any, append_ms: int) -> Any:
        if isinstance(record, Status):
            # Statuses of a node arrive in order, so no status is older than the previous one, even
            # if the broker's clock was set back in between.
            before = latest.statuses.get(record.node)
            heard_ms = clock.event_ms(append_ms)
            return on_local_clock(record, max(heard_ms, before.at_ms) if before else heard_ms)
        if isinstance(record, (Availability, Price)):
            return replace(record, observed_ms=clock.event_ms(append_ms))
        return record

    def on_record(topic: str, record: Any, offset: int, append_ms: int) -> None:
        if known is not None and not known.admits(topic, record, len(latest.controls)):
            return
        try:
            if isinstance(record, LedgerEntry):
                read_part(record)
            dated = on_our_clock(record, append_ms)
        except (ValueError, ArithmeticError) as error:
            raise RecordRefused(str(error)) from error
        if isinstance(record, Leadership):
            election.apply(record, offset, clock.real_age_s(append_ms))
        elif isinstance(record, Alert):
            if clock.real_age_s(append_ms) < _ALERT_IS_NEWS_S:
                on_alert(record)
            return
        elif isinstance(record, Status):
            election.followed(record.observed_token)
            record = dated
        elif isinstance(record, (Availability, Price)):
            if offered.get((topic, record.pool)) == record:
                return  # This record was read before.
            offered[topic, record.pool] = record
            record = dated
        latest.take(record, offset)
        if isinstance(record, (Assignment, Routes)):
            overwrite(record)

    return on_record


def on_local_clock(status: Status, heard_ms: int) -> Status:
    """Convert `status` to this controller's clock.

    `at_ms` becomes `heard_ms`, the time at which the broker received the status. Instance times of
    the executor's clock shift by the same amount, and none is later than `heard_ms`.
    """
    ahead_ms = status.at_ms - heard_ms
    near = abs(ahead_ms) < _SAME_MS
    newest_ms = max((max(i.since_ms, i.launched_ms) for i in status.instances), default=0)
    if near and newest_ms <= status.at_ms:
        return replace(status, at_ms=heard_ms)
    by_ms = 0 if near else ahead_ms

    def past(ms: int) -> int:
        return min(max(0, ms - by_ms), heard_ms) if ms else 0

    instances = tuple(
        replace(seen, since_ms=past(seen.since_ms), launched_ms=past(seen.launched_ms))
        for seen in status.instances
    )
    reclaim_ms = status.reclaim_ms
    if reclaim_ms not in (0, NO_DEADLINE_MS):
        reclaim_ms = min(max(1, reclaim_ms - by_ms), MAX_MS)
    return replace(status, at_ms=heard_ms, instances=instances, reclaim_ms=reclaim_ms)


def _order(record: LedRecord) -> tuple[int, int]:
    return record.leader_token, record.generation
