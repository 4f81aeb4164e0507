"""One run of a recording: columns of samples, decisions, and spans of node states.

The page derives the state at any time from them (`streams/console/page/recording.js`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.state.controller_state import ControllerState
from autoscaler.state.effects import Effect
from autoscaler.tick.account import Account, AccountedTick
from autoscaler.tick.status import fleet_status
from streams.console.decision_book import DecisionBook
from streams.console.fleet_events import FleetEvents
from streams.console.fleet_rows import NodeRows, Row
from streams.console.history import (
    FLEET,
    FLEET_SERIES,
    MODEL_SERIES,
    Sample,
    fleet_sample,
    model_sample,
    shown,
)
from streams.console.rounding import rounded
from streams.decision_log.log_entries import decisions_of

STEP_MS = 10_000
MOST_SAMPLES = 1500
_DIGITS = 9
"""Digits of totals: far more than are shown, so that every view shows the same figure."""
_LATENCIES = ("ttft", "tpot", "attained", "attained_now", "tokens", "ended", "met")


class Tick(AccountedTick, Protocol):
    """One tick of a recorded or repeated run."""

    @property
    def before(self) -> ControllerState: ...
    @property
    def effects(self) -> tuple[Effect, ...]: ...


@dataclass(slots=True)
class Columns:
    """Samples of several series over time. If there are more than MOST_SAMPLES, every second one
    is dropped."""

    names: Sequence[str]
    t: list[int] = field(default_factory=list)
    values: list[Sample] = field(default_factory=list)

    def add(self, at_ms: int, sample: Sample) -> None:
        """Add a sample that is later than the last one."""
        self.t.append(at_ms)
        self.values.append(sample)

    def as_json(self) -> dict[str, Any]:
        """Columns by name, and `t` in ms."""
        step = 1 + len(self.t) // MOST_SAMPLES
        kept = self.values[::step]
        return {
            "t": self.t[::step],
            **{name: [shown(name, sample.get(name)) for sample in kept] for name in self.names},
        }


class RunRecorder:
    """Records the ticks of one run through `tick`. latencies: whether they are those of this run;
    if not, they are left out."""

    def __init__(self, name: str, note: str = "", latencies: bool = True) -> None:
        self._name = name
        self._note = note
        self._latencies = latencies
        self._book = DecisionBook()
        self._events = FleetEvents()
        self._columns: dict[str, Columns] = {}
        self._nodes = NodeRows()
        self._open: dict[str, tuple[int, Row]] = {}
        self._spans: list[list[Any]] = []
        self._models: dict[str, dict[str, Any]] = {}
        self._sampled_ms = 0
        self._account = Account()
        self.last_ms = 0
        self.first_ms = 0
        self.cluster: Cluster | None = None

    def tick(self, done: Tick) -> None:
        """Record one tick."""
        self.first_ms = self.first_ms or done.now_ms
        self.last_ms, self.cluster = done.now_ms, done.cluster
        self._account.tick(done)
        self._book.tick(done)
        self._book.add(decisions_of(done.effects))
        if done.now_ms < self._sampled_ms + STEP_MS:
            return
        self._sampled_ms = done.now_ms
        for service in done.cluster.services:
            self._models[service.model] = model_limits(service)
        self._sample(done)
        self._note_nodes(self._nodes.rows(done.after, done.observation.statuses), done.now_ms)

    def _sample(self, done: Tick) -> None:
        status = fleet_status(done.after, done.observation, done.cluster, done.now_ms)
        totals, statuses = self._account.totals(), done.observation.statuses
        pools = {node: one.pool for node, one in statuses.items()}
        lost = self._events.losses(done.after.observed.lost_nodes, pools, done.now_ms)
        self._book.put([*lost, *self._events.reclaims(statuses, done.now_ms)])
        for model in status.models:
            self._add(model.model, MODEL_SERIES, done.now_ms, model_sample(model, totals))
        nodes = sum(bool(a.instances) for a in done.after.published.assignments.values())
        self._add(FLEET, FLEET_SERIES, done.now_ms, fleet_sample(status, totals, nodes))

    def _add(self, name: str, series: Sequence[str], at_ms: int, sample: Sample) -> None:
        hidden = {} if self._latencies else dict.fromkeys(_LATENCIES)
        self._of(name, series).add(at_ms, {**sample, **hidden})

    def _of(self, name: str, series: Sequence[str]) -> Columns:
        return self._columns.setdefault(name, Columns(series))

    def _note_nodes(self, rows: Mapping[str, Row], now_ms: int) -> None:
        """End the spans of nodes whose rows changed, and begin new ones."""
        for name in [known for known, (_, row) in self._open.items() if rows.get(known) != row]:
            self._end(name, now_ms)
        for name, row in rows.items():
            if row["instances"] or row["state"] == "lost":
                self._open.setdefault(name, (now_ms, row))

    def _end(self, name: str, now_ms: int) -> None:
        began_ms, row = self._open.pop(name)
        self._spans.append(
            [name, row["pool"], began_ms, now_ms, row["state"], row["instances"], row["reclaim"]]
        )

    def as_json(self) -> dict[str, Any]:
        """The recorded run as JSON for the page."""
        for name in [*self._open]:
            self._end(name, self.last_ms + 1)
        history = {name: columns.as_json() for name, columns in self._columns.items()}
        totals = self._account.totals()
        return run_json(
            self._name, self._note, self._models, history, self._book.rows(), self._spans,
            totals.usd, totals.all_requests.share if self._latencies else None,
        )  # fmt: skip


def run_json(
    name: str,
    note: str,
    models: Mapping[str, Any],
    history: Mapping[str, Any],
    decisions: Sequence[Row],
    nodes: Sequence[Sequence[Any]],
    usd: float,
    attained: float | None,
) -> dict[str, Any]:
    """One run for the page. nodes: spans as [node, pool, from ms, to ms, state, instances, reclaim
    ms]. usd, attained: cost and share of requests that met their SLO, over the whole run."""
    return {
        "name": name,
        "note": note,
        "usd": round(usd, _DIGITS),
        "attained": None if attained is None else round(attained, _DIGITS),
        "models": {model: limits for model, limits in models.items() if model in history},
        "history": dict(history),
        "decisions": list(decisions),
        "nodes": [list(span) for span in nodes],
    }


def model_limits(service: Service) -> dict[str, Any]:
    """The declared part of a model's row."""
    return {
        "mode": str(service.mode),
        "ttft_limit": rounded(service.slo.ttft_ms),
        "tpot_limit": rounded(service.slo.tpot_ms),
        "percentile": service.percentile,
        "utilization": service.utilization,
        "spot_share": service.spot_share,
        "min": service.min_instances,
        "max": service.max_instances,
    }
