"""The table of topics: name, key, partitions, clean-up, retention, record type and writers.

`streams.broker.topic_admin` creates these topics on a broker. Names in the table are short
("telemetry"); on a broker they have a prefix (`wire_name`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from topics.checks import InvalidValue
from topics.records import (
    Alert,
    Assignment,
    Availability,
    Control,
    DeadLetter,
    Decision,
    DeclaredService,
    Demand,
    FinalizedNames,
    Leadership,
    LedgerEntry,
    PlanRecord,
    Price,
    Routes,
    Status,
    Telemetry,
)

PREFIX = "shoal."
DAY_MS = 86_400_000


class Cleanup(StrEnum):
    """How a broker removes old records: keep the latest per key, or delete by age."""

    COMPACT = "compact"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic. key: returns the key of a record, "" for none. retention_ms: for a DELETE topic,
    otherwise 0. record: type of the records."""

    name: str
    partitions: int
    cleanup: Cleanup
    retention_ms: int
    record: type[Any]
    key: Callable[[Any], str]

    def wire_name(self, prefix: str = PREFIX) -> str:
        """The topic's name on a broker."""
        return prefix + self.name

    def settings(self) -> dict[str, str]:
        """The topic's Kafka settings.

        The broker sets append times, so that one clock orders the records of all gateways.
        Compaction runs early. Tombstones stay for a day, so that a reader that was disconnected for
        hours still reads them.
        """
        common = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": str(self.cleanup)}
        if self.cleanup is Cleanup.DELETE:
            return {**common, "retention.ms": str(self.retention_ms)}
        return {
            **common,
            "segment.ms": "3600000",
            "min.cleanable.dirty.ratio": "0.1",
            "delete.retention.ms": str(DAY_MS),
        }


def _leadership_key(record: Leadership) -> str:
    # All claims share a key that renewals do not use, so compaction keeps the last claim, which is
    # the highest.
    return "claim" if record.kind == "claim" else record.controller


def _compacted(name: str, partitions: int, record: type[Any], key: Callable[[Any], str]) -> Topic:
    return Topic(name, partitions, Cleanup.COMPACT, 0, record, key)


# Gateways write telemetry, and window workers write demand.
TELEMETRY = Topic("telemetry", 8, Cleanup.DELETE, 2 * DAY_MS, Telemetry, lambda r: str(r.model))
DEMAND = Topic("demand", 8, Cleanup.DELETE, 2 * DAY_MS, Demand, lambda r: str(r.model))

# Feeds write these topics.
AVAILABILITY = _compacted("supply.availability", 1, Availability, lambda r: str(r.pool))
PRICES = _compacted("supply.prices", 1, Price, lambda r: str(r.pool))

# Operators write services and controls. A controller writes the alerts that it receives.
SERVICES = _compacted("services", 1, DeclaredService, lambda r: str(r.model))
CONTROLS = _compacted("controls", 1, Control, lambda r: str(r.topic_key))
ALERTS = Topic("alerts", 1, Cleanup.DELETE, 7 * DAY_MS, Alert, lambda r: str(r.fingerprint))

# All controllers write LEADERSHIP; only the leader writes the other topics.
LEADERSHIP = _compacted("leadership", 1, Leadership, _leadership_key)
DECISIONS = Topic("decisions", 1, Cleanup.DELETE, 90 * DAY_MS, Decision, lambda r: str(r.model))
NAMES = _compacted("names", 1, FinalizedNames, lambda _: "services")
PLANS = _compacted("plans", 1, PlanRecord, lambda _: "cluster")
LEDGER = _compacted("ledger", 1, LedgerEntry, lambda r: str(r.key))
ASSIGNMENTS = _compacted("assignments", 4, Assignment, lambda r: str(r.node))
ROUTES = _compacted("routes", 4, Routes, lambda r: str(r.model))
DEAD_LETTERS = Topic("dead-letters", 1, Cleanup.DELETE, 30 * DAY_MS, DeadLetter, lambda _: "")

# Executors write this topic.
STATUS = _compacted("status", 4, Status, lambda r: str(r.node))

TABLE: tuple[Topic, ...] = (
    TELEMETRY,
    DEMAND,
    AVAILABILITY,
    PRICES,
    SERVICES,
    CONTROLS,
    ALERTS,
    LEADERSHIP,
    DECISIONS,
    NAMES,
    PLANS,
    LEDGER,
    ASSIGNMENTS,
    STATUS,
    ROUTES,
    DEAD_LETTERS,
)

_BY_NAME = {topic.name: topic for topic in TABLE}
_BY_RECORD = {topic.record: topic for topic in TABLE}


@dataclass(frozen=True, slots=True)
class KeyDeletion:
    """A tombstone to write: it deletes `key` from the compacted topic with the short name
    `topic`."""

    topic: str
    key: bytes


def topic(name: str) -> Topic:
    """The topic with the short name `name`. Raises InvalidValue if there is none."""
    found = _BY_NAME.get(name)
    if found is None:
        raise InvalidValue("topic", name, " or ".join(_BY_NAME))
    return found


def topic_of(record: object) -> Topic:
    """The topic of this record's type. Raises InvalidValue if there is none."""
    if isinstance(record, KeyDeletion):
        return topic(record.topic)
    found = _BY_RECORD.get(type(record))
    if found is None:
        raise InvalidValue("record", type(record).__name__, "a record of `topics.records`")
    return found


def short_name(wire: str, prefix: str = PREFIX) -> str:
    """The short name of a topic on a broker. Raises InvalidValue if the prefix differs."""
    if not wire.startswith(prefix):
        raise InvalidValue("topic", wire, f"a name that begins with {prefix}")
    return wire[len(prefix) :]


def key_of(record: object) -> bytes | None:
    """The Kafka key of `record`, None if its topic has no keys."""
    if isinstance(record, KeyDeletion):
        return record.key
    key = topic_of(record).key(record)
    return key.encode() if key else None
