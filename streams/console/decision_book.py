"""The last decisions and events for the page, decisions with the instances before them and their
plan.

Decisions come from the topic, so a new leader also shows those of its predecessors. The context is
known only for decisions of this controller.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import orjson

from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import Stats
from autoscaler.explain.combo_labels import combo_words, pool_words, pools_of
from autoscaler.rollout.capacity_and_cost import nodes_of
from autoscaler.state.controller_state import ControllerState
from autoscaler.state.effects import PublishDecision, PublishPlan
from streams.console.plan_requests import (
    AnsweredObservation,
    Asked,
    Key,
    PlannedTick,
    PlanRequests,
)
from streams.console.rounding import rounded
from topics.decisions import Decision, PlanRecord

Row = dict[str, Any]

MOST_DECISIONS = 10_000
_MOST_CONTEXTS = 500
_VISIBLE_PRICE = 0.05
"""Smallest difference of a price from the declared one that the page shows, as a fraction."""


class ExplainedObservation(AnsweredObservation, Protocol):
    """The planner's answers and the demand by model that a tick observed."""

    @property
    def demand(self) -> Mapping[str, ModelDemand]: ...


class ObservedTick(PlannedTick, Protocol):
    """The parts of a tick that explain its decisions."""

    @property
    def observation(self) -> ExplainedObservation: ...
    @property
    def before(self) -> ControllerState: ...
    @property
    def after(self) -> ControllerState: ...


class DecisionBook:
    """Rows of the last decisions, oldest first. `version` changes with each new row.

    Rows are kept as compressed JSON, which takes a tenth of the memory of their objects.
    """

    def __init__(self, most: int = MOST_DECISIONS) -> None:
        self._most = most
        self._rows: dict[Key, tuple[int, bytes]] = {}
        self._contexts: dict[Key, Row] = {}
        self._last: Decision | None = None
        self.requests = PlanRequests()
        self.version = 0

    def tick(self, done: ObservedTick) -> None:
        """Record the context of the decisions of one tick."""
        self.requests.tick(done)
        plan: PlanRecord | None = None
        made: list[Decision] = []
        for effect in done.effects:
            if isinstance(effect, PublishPlan):
                plan = effect.record
            elif isinstance(effect, PublishDecision):
                made.append(effect.record)
        for decision in made:
            counts = Counter(
                group.combo_id
                for group in done.before.groups
                if group.model == decision.model and group.counts
            )
            key = _key(decision)
            asked = self.requests.of(key)
            demand = done.observation.demand.get(decision.model)
            seen = demand.local if demand is not None else None
            self._contexts[key] = {
                "before": [[combo_words(combo), n] for combo, n in sorted(counts.items())],
                "gap": rounded(plan.gap) if plan is not None and plan.gap >= 0.0 else None,
                "plan_usd": rounded(plan.cost_usd_per_h) if plan is not None else None,
                "kept_usd": rounded(_kept_usd_per_h(done)) if plan is not None else None,
                "measured": rounded(seen.req_per_s) if isinstance(seen, Stats) else None,
                "planned_at": asked[0].at_ms if asked is not None else 0,
                "prices": _moved_prices(decision, asked) if asked is not None else [],
            }
        while len(self._contexts) > _MOST_CONTEXTS:
            del self._contexts[next(iter(self._contexts))]

    def read(self, decisions: Sequence[Decision]) -> list[Row]:
        """Add those of `decisions` that are new, oldest first. Returns their rows."""
        fresh: list[Decision] = []
        for decision in reversed(decisions):
            if decision is self._last:
                break
            fresh.append(decision)
        if not fresh:
            return []
        self._last = fresh[0]
        return self.add(reversed(fresh))

    def add(self, decisions: Iterable[Decision]) -> list[Row]:
        """Add decisions that are not known yet. Returns their rows."""
        added = []
        for decision in decisions:
            key = _key(decision)
            if key not in self._rows:
                added.append(self._add(decision_row(decision, self._contexts.pop(key, {}))))
        self._keep(bool(added))
        return added

    def put(self, events: Iterable[Row]) -> list[Row]:
        """Add rows of events (`fleet_events`) that are not known yet. Returns them."""
        last_ms = next(reversed(self._rows.values()))[0] if self._rows else 0
        added = [self._add(row) for row in events if (row["token"], row["n"]) not in self._rows]
        if any(row["at"] < last_ms for row in added):
            self._rows = dict(sorted(self._rows.items(), key=_at_ms))
        self._keep(bool(added))
        return added

    def _add(self, row: Row) -> Row:
        self._rows[row["token"], row["n"]] = row["at"], zlib.compress(orjson.dumps(row), 1)
        return row

    def _keep(self, is_changed: bool) -> None:
        """Forget the oldest rows above the limit."""
        while len(self._rows) > self._most:
            del self._rows[next(iter(self._rows))]
        self.version += is_changed

    def put_older(self, decisions: Iterable[Decision]) -> None:
        """Add decisions from before the known ones, for example from the decision log."""
        known, self._rows = self._rows, {}
        for decision in decisions:
            self._add(decision_row(decision, {}))
        self._rows.update(known)
        self._rows = dict(sorted(self._rows.items(), key=_at_ms)[-self._most :])
        self.version += 1

    def rows(self) -> list[Row]:
        """All rows, oldest first."""
        return [orjson.loads(zlib.decompress(row)) for _, row in self._rows.values()]


def decision_row(decision: Decision, context: Row) -> Row:
    """The row of one decision. change: label and count of added (+) and removed (-) combos."""
    return {
        "n": decision.number,
        "token": decision.leader_token,
        "model": decision.model,
        "kind": decision.kind,
        "at": decision.at_ms,
        "applied": decision.applied,
        "reason": decision.reason,
        "codes": list(decision.codes),
        "demand": rounded(decision.demand_req_per_s),
        "capacity": rounded(decision.capacity_req_per_s),
        "usd": rounded(decision.cost_delta_usd_per_h),
        "over": decision.over_since_ms,
        "change": [[combo_words(combo), count] for combo, count in decision.change],
        "expires": decision.expires_ms,
        "trace": decision.trace,
        **context,
    }


def _kept_usd_per_h(done: ObservedTick) -> float:
    """The cost of the fleet after a tick, without nodes that all their instances leave."""
    prices = {**done.cluster.prices_usd_per_h(), **done.after.supply.prices_usd_per_h()}
    kept = nodes_of(group for group in done.after.groups if group.counts)
    return sum(
        prices.get(pool, 0.0)
        for node, pool in kept.items()
        if node not in done.after.observed.lost_nodes
    )


def _moved_prices(decision: Decision, asked: Asked) -> list[Row]:
    """Prices of the change's pools that differ visibly from the declared ones, when the plan was
    requested."""
    request, cluster = asked
    used = {pool for combo, _ in decision.change for pool in pools_of(combo)}
    rows = []
    for pool_id, usd_per_h in request.prices_usd_per_h:
        declared = cluster.pool(pool_id).price_usd_per_h if pool_id in used else usd_per_h
        if abs(usd_per_h - declared) > _VISIBLE_PRICE * declared:
            label = pool_words(pool_id)
            rows.append({"pool": label, "usd": rounded(usd_per_h), "declared": rounded(declared)})
    return rows


def _at_ms(item: tuple[Key, tuple[int, bytes]]) -> int:
    return item[1][0]


def _key(decision: Decision) -> Key:
    return decision.leader_token, decision.number
