"""What the control topics said last: one value per key, whoever read it and however often.

Owns the fold of control records into "the latest". Knows nothing of Kafka clients or Faust: the
rebuild at the start and the agents afterwards feed the same object. A record that comes twice
changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topics.leadership import token_of
from topics.records import (
    Alert,
    Assignment,
    Availability,
    Control,
    DeadLetter,
    Decision,
    DeclaredService,
    Leadership,
    PlanRecord,
    Price,
    Routes,
    Status,
)

_KEPT_DECISIONS = 2000
_KEPT_ALERTS = 1000
KEPT_DEAD = 10_000


@dataclass(slots=True)
class Latest:
    """Latest records by key. highest_claim: (token, controller) of the highest claim seen.

    statuses, assignments: by node; routes: by model; nodes_obtainable, usd_per_node_h: by pool.
    dead: (topic, partition, offset) of what is in dead-letters already, at least the last 10,000
    (a dict, because it keeps their order). decisions: the last 2000. services: by model, as
    declared on the topic; withdrawn: models whose service was withdrawn there. controls: by key, as
    operators said it last. alerts: those that
    nobody has taken yet.
    """

    statuses: dict[str, Status] = field(default_factory=dict)
    assignments: dict[str, Assignment] = field(default_factory=dict)
    routes: dict[str, Routes] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    nodes_obtainable: dict[str, Availability] = field(default_factory=dict)
    usd_per_node_h: dict[str, Price] = field(default_factory=dict)
    services: dict[str, DeclaredService] = field(default_factory=dict)
    withdrawn: set[str] = field(default_factory=set)
    controls: dict[str, Control] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    highest_claim: tuple[int, str] = (0, "")
    plan_number: int = 0
    dead: dict[tuple[str, int, int], None] = field(default_factory=dict)

    def take(self, record: Any, offset: int) -> None:
        """Fold in `record`, read at `offset` of its partition."""
        if isinstance(record, Status):
            self.statuses[record.node] = record
        elif isinstance(record, Assignment):
            known = self.assignments.get(record.node)
            # A stale leader's late write may be the last of its key: order is (token, generation).
            if known is None or _order(record) >= _order(known):
                self.assignments[record.node] = record
        elif isinstance(record, Routes):
            before = self.routes.get(record.model)
            if before is None or _order(record) >= _order(before):
                self.routes[record.model] = record
        elif isinstance(record, Decision):
            self.decisions.append(record)
            if len(self.decisions) > 2 * _KEPT_DECISIONS:
                del self.decisions[:-_KEPT_DECISIONS]
        elif isinstance(record, Leadership):
            self.highest_claim = max(
                self.highest_claim, (token_of(record, offset), record.controller)
            )
        elif isinstance(record, PlanRecord):
            self.plan_number = max(self.plan_number, record.number)
        elif isinstance(record, Availability):
            self.nodes_obtainable[record.pool] = record
        elif isinstance(record, Price):
            self.usd_per_node_h[record.pool] = record
        elif isinstance(record, DeclaredService):
            self.services[record.model] = record
            self.withdrawn.discard(record.model)
        elif isinstance(record, Control):
            self.controls[record.key] = record
        elif isinstance(record, Alert):
            self.alerts.append(record)
            del self.alerts[:-_KEPT_ALERTS]
        elif isinstance(record, DeadLetter):
            self.bury((record.topic, record.partition, record.offset))

    def take_alerts(self) -> tuple[Alert, ...]:
        """Alerts since the last call."""
        found, self.alerts = tuple(self.alerts), []
        return found

    def bury(self, place: tuple[str, int, int]) -> None:
        """Remember that `place` (topic, partition, offset) has its dead letter."""
        self.dead[place] = None
        if len(self.dead) > 2 * KEPT_DEAD:
            for oldest in list(self.dead)[:KEPT_DEAD]:
                del self.dead[oldest]

    def drop(self, topic: str, key: str) -> None:
        """A tombstone: `key` of `topic` is gone."""
        if topic == "services":
            self.services.pop(key, None)
            self.withdrawn.add(key)
            return
        kept: dict[str, dict[str, Any]] = {
            "status": self.statuses,
            "assignments": self.assignments,
            "routes": self.routes,
            "supply.availability": self.nodes_obtainable,
            "supply.prices": self.usd_per_node_h,
            "controls": self.controls,
        }
        kept.get(topic, {}).pop(key, None)


def _order(record: Assignment | Routes) -> tuple[int, int]:
    return record.leader_token, record.generation
