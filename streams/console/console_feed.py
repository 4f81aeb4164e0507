"""The state that the page shows: a whole snapshot, and events with the rows that changed.

A task builds the state at most once a second while a page is open. It does so less often if it
would take more than a hundredth of a core. The history is always sampled. Nothing here changes the
fleet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from autoscaler.domain.cluster import Policy
from autoscaler.explain.reason_texts import text
from autoscaler.tick.account import Totals
from autoscaler.tick.status import FleetStatus
from streams.console.cost_windows import CostWindows
from streams.console.cpu_allowance import CpuAllowance
from streams.console.decision_book import DecisionBook, Row
from streams.console.event_hub import EventHub
from streams.console.fleet_events import FleetEvents, alert_row, note_row
from streams.console.fleet_rows import NodeRows, pool_rows
from streams.console.history import FLEET, History, fleet_sample, model_sample, shown
from streams.console.model_rows import model_row, proposal_row
from streams.console.rounding import rounded
from streams.health.controller_facts import Facts, guards_of
from streams.loop.tick_loop import TickResult
from topics.codec import write_value

log = logging.getLogger(__name__)

FORM = 1
"""Version of the snapshot's format. A page with another version reloads."""
RECENT_DECISIONS = 200
_EVERY_S = 1.0
_SHARE = 0.01
_LINGER_S = 60.0
_CURVE = 60
_MOST_NOTED = 1000
_KEYED = ("models", "pools", "nodes", "proposals")


class ConsoleFeed:
    """Observes a loop through `tick`. can_write: whether commands are accepted. asks_token:
    whether a command needs a token, because no proxy names the person.
    cpu_s: CPU time of this thread. unhealthy: reason why the controller is unhealthy, or ""."""

    def __init__(
        self,
        facts: Facts,
        can_write: bool,
        asks_token: bool = True,
        cpu_s: Callable[[], float] = time.thread_time,
    ) -> None:
        self._facts = facts
        self._can_write = can_write
        self._asks_token = asks_token
        self._nodes = NodeRows()
        self._last: dict[str, Any] | None = None
        self._viewed_s = float("-inf")
        self._allowance = CpuAllowance(_SHARE, cpu_s, facts.loop.clock.now_s)
        self.unhealthy: Callable[[], str] = str
        self.stream = uuid.uuid4().hex[:12]
        self.hub = EventHub(self.stream)
        self.book = DecisionBook()
        self.events = FleetEvents()
        self.history = History()
        self.windows = CostWindows()
        self._windows_version = 0
        self._noted: deque[Row] = deque(maxlen=_MOST_NOTED)

    def tick(self, done: TickResult) -> None:
        """Observe one tick."""
        self.book.tick(done)
        self._noted += (alert_row(alert, done.now_ms) for alert in done.observation.alerts)

    def note(self, model: str, who: str, text: str) -> None:
        """Add a note of the operator `who` to the time line."""
        self._noted.append(note_row(self._facts.loop.clock.now_ms(), model, who, text))

    async def run(self) -> None:
        """Sample the history and publish events until cancelled."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                self.step()
        finally:
            self.hub.close()

    def step(self) -> None:
        """One round: sample the history if a sample is due, and publish changes if pages are
        open."""
        now_s = self._facts.loop.clock.now_s()
        if self.hub.viewers:
            self._viewed_s = now_s
        if not self._allowance.allowed:
            self.hub.beat()
            return
        with self._allowance.work():
            sampled = self._sample()
            if self.viewed:
                self._publish(sampled)
            else:
                self._last = None
                self._new_rows()

    @property
    def viewed(self) -> bool:
        """Whether a page is open, or was in the last minute."""
        return self._facts.loop.clock.now_s() - self._viewed_s <= _LINGER_S

    def snapshot(self) -> dict[str, Any]:
        """The whole state, with the id of the last event that it includes."""
        self._viewed_s = self._facts.loop.clock.now_s()
        if self._last is None:
            self._publish(None)
        state = self._last
        assert state is not None  # noqa: S101  _publish set it
        models = state["models"]
        return {
            **state,
            "event": f"{self.stream}:{self.hub.number}",
            "decisions": self.book.rows()[-RECENT_DECISIONS:],
            "otherwise": self.windows.row(),
            "curves": {
                name: [self.history.recent(name, one, _CURVE) for one in ("demand", "ready")]
                for name in models
            },
        }

    def _new_rows(self) -> list[Row]:
        """Rows of the decisions and events since the last call, oldest first."""
        latest = self._facts.loop.latest
        rows = self.book.read(latest.decisions)
        found = [*self._noted, *self.events.commands(latest.controls)]
        self._noted.clear()
        return rows + self.book.put(sorted(found, key=lambda row: row["at"]))

    def _sample(self) -> dict[str, Any] | None:
        """Add a sample to the history if one is due. Returns it as part of an event."""
        done, now = self._facts.leading(), self._facts.standing()
        if done is None or now is None or not self.history.due(done.now_ms):
            return None
        observed = done.after.observed
        pools = {node: one.pool for node, one in done.observation.statuses.items()}
        self._noted += self.events.verdicts(now.models, done.now_ms)
        self._noted += self.events.losses(observed.lost_nodes, pools, done.now_ms)
        self._noted += self.events.reclaims(done.observation.statuses, done.now_ms)
        nodes = sum(bool(a.instances) for a in done.after.published.assignments.values())
        totals = self._facts.account.totals()
        self.history.sample(done.now_ms, now, totals, nodes)
        self.windows.sample(
            done.now_ms,
            totals.usd,
            {model.model: model.demand_req_per_s for model in now.models},
            done.cluster,
            {name: model.estimate.lengths for name, model in done.after.models.items()},
            done.after.supply.prices_usd_per_h(),
        )
        return _sample_row(done.now_ms, now, totals, nodes)

    def _publish(self, sampled: dict[str, Any] | None) -> None:
        """Build the state, and publish its difference from the last one as one event."""
        decisions = self._new_rows()
        state, before = self._state(), self._last
        self._last = state
        if before is None:
            # No event leads from an older state to this one, so a page with an older id must start
            # again.
            self.hub.publish("reset", b"{}")
            return
        event: dict[str, Any] = {"now_ms": state["now_ms"], "controller": state["controller"]}
        for part in _KEYED:
            changed, gone = _changes(before[part], state[part])
            if changed:
                event[part] = changed
            if gone:
                event.setdefault("gone", {})[part] = gone
        if decisions:
            event["decisions"] = decisions
        if sampled is not None:
            event["sample"] = sampled
        if self.windows.version != self._windows_version:
            self._windows_version = self.windows.version
            event["otherwise"] = self.windows.row()
        self.hub.publish("change", write_value(event))

    def _state(self) -> dict[str, Any]:
        """The state without decisions and history."""
        facts = self._facts
        done, now = facts.leading(), facts.standing()
        found: dict[str, Any] = {
            "form": FORM,
            "source": "live",
            "now_ms": facts.loop.clock.now_ms(),
            "speed": facts.loop.clock.time_base.speed,
            "can_write": self._can_write,
            "asks_token": self._asks_token,
            "controller": self._controller(done, now),
            "models": {}, "pools": {}, "nodes": {}, "proposals": {},
        }  # fmt: skip
        if done is None or now is None:
            return found
        state = done.after
        services = {service.model: service for service in done.cluster.services}
        found["models"] = {
            one.model: model_row(one, services[one.model], guards_of(done, one))
            for one in now.models
        }
        found["pools"] = pool_rows(done.cluster, state.supply)
        found["nodes"] = self._nodes.rows(state, done.observation.statuses)
        found["proposals"] = {
            model: proposal_row(model, own.advisory.proposal)
            for model, own in state.models.items()
            if own.advisory.proposal is not None and not own.advisory.proposal.rejected
        }
        return found

    def _controller(self, done: TickResult | None, now: FleetStatus | None) -> Row:
        facts = self._facts
        leads, token, leader = facts.leader()
        identity = facts.identity
        full = done.after.full if done else None
        return {
            "id": identity.controller,
            "leads": leads,
            "leader": leader,
            "token": token,
            "unhealthy": self.unhealthy(),
            "tick_age_s": round(facts.tick_age_s()),
            "writes": facts.writes,
            "signed": identity.records_signed,
            "refused": sum(facts.refused().values()),
            "declined": dict(facts.loop.latest.declared.refused),
            "log_fault": facts.log_status().get("fault", ""),
            "open": [dataclasses.asdict(point) for point in identity.open],
            "config": done.cluster.content_hash[:8] if done else "",
            "windows_s": _windows_s(done),
            "lag_ms": dict(done.observation.lag_ms) if done else {},
            "held": {k: text(why) for k, why in done.after.declared.controls.items()}
            if done
            else {},
            "usd": rounded(now.usd_per_h) if now else None,
            "attained": rounded(now.attained) if now else None,
            "budget": rounded(done.cluster.policy.budget_usd_per_h) if done else None,
            "planning": len(done.after.pending) if done else 0,
            "gap": rounded(full.gap) if full and full.gap >= 0.0 else None,
            "planned_at": full.made_ms if full else 0,
        }


def _windows_s(done: TickResult | None) -> list[int]:
    """Seconds of the windows of `attained_now` and `attained`."""
    policy = done.cluster.policy if done else Policy()
    return [policy.local_window_s, policy.global_window_s]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """New and changed rows, and the keys that are gone."""
    changed = {
        key: row
        for key, row in now.items()
        if (known := before.get(key)) is not row and known != row
    }
    return changed, [key for key in before if key not in now]


def _sample_row(now_ms: int, status: FleetStatus, totals: Totals, nodes: int) -> dict[str, Any]:
    """One sample of the history as part of an event.

    It has the series of each model, and those of the fleet under "*".
    """
    rows = {model.model: model_sample(model, totals) for model in status.models}
    rows[FLEET] = fleet_sample(status, totals, nodes)
    return {
        "t": now_ms,
        "of": {n: {k: shown(k, v) for k, v in row.items()} for n, row in rows.items()},
    }
