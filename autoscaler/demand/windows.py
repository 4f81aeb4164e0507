"""Sliding windows of telemetry, per model.

Owns what was seen and when. Must not know what anyone concludes from it, nor any clock: event
times and "now" are arguments, in domain ms since the epoch.

Three things are kept apart: a model of which nothing was ever seen (`NoData` without a last
time), a series that died (`NoData` with its last time) and a model with no traffic (`Stats`
with zero arrivals). Windows cover whole seconds before the one that `now_ms` is in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoscaler.demand.duplicates import Producer
from autoscaler.demand.kinds import Kinds
from autoscaler.demand.seconds import spread
from autoscaler.demand.seen import GatewaySeen, LengthsSeen, NoData, Stats, WindowStats
from autoscaler.demand.sketches import Sketches
from autoscaler.demand.totals import Blocks, Count, Totals
from autoscaler.domain.checks import whole
from topics.reported import Reported, reported
from topics.telemetry import COUNTS, Telemetry

__all__ = [
    "MAX_AHEAD_S",
    "Counters",
    "GatewaySeen",
    "LengthsSeen",
    "NoData",
    "Stats",
    "TelemetryWindows",
    "WindowStats",
]

MAX_AHEAD_S = 60
_MOST_PENDING = 5000
_SWEEP_S = 60


@dataclass(slots=True)
class Counters:
    """What was not applied, and why. Counts since the start of the process."""

    applied: int = 0
    duplicate: int = 0
    late: int = 0
    ahead: int = 0


_LastWord = tuple[Reported, int, int]
"""A gateway's newest record, its event time, and that of its newest with requests (0: none)."""


@dataclass(slots=True)
class _Series:
    """One model. swept_s: when what is dead was looked for last."""

    totals: Totals
    sketches: Sketches
    swept_s: int = 0
    producers: dict[tuple[str, str], Producer] = field(default_factory=dict)
    gateways: dict[str, _LastWord] = field(default_factory=dict)


class TelemetryWindows:
    """Windows of all models. `now_ms` may only be given by the owner's clock, never by records.

    horizon_s: how far back windows reach, in [1, 86400]. A record is late if it ended more than
    the horizon before the newest `now_ms` given, and ahead if it ends more than MAX_AHEAD_S after
    it: either is counted and changes nothing, so one gateway with a wrong clock harms no window.
    Before the first `advance` or `stats` there is no now, and every event time is believed.
    """

    def __init__(self, horizon_s: int = 1800) -> None:
        self._horizon_s = whole("horizon_s", horizon_s, 1, 86_400)
        self._series: dict[str, _Series] = {}
        self._kinds: dict[str, Kinds] = {}
        self._now_ms: int | None = None
        self._believed: tuple[float, float] = -math.inf, math.inf  # event times, now that it is now
        self._pending: list[tuple[Reported, int]] = []
        self.counters = Counters()

    def advance(self, now_ms: int) -> None:
        """Say what time it is. Time never goes back: an earlier `now_ms` changes nothing."""
        if self._now_ms is None or now_ms > self._now_ms:
            self._now_ms = now_ms
            self._believed = now_ms - self._horizon_s * 1000, now_ms + MAX_AHEAD_S * 1000

    def add(
        self, record: Telemetry | Reported, event_ms: int, *, from_gateway: bool = True
    ) -> bool:
        """Count `record`, whose span ended at `event_ms`; True if it was applied.

        Idempotent by (gateway, boot, sequence) per model. Its counts are spread over the seconds
        that the span touches. from_gateway: whether who says so applies routes.
        """
        if isinstance(record, Telemetry):
            record = reported(record)
        return self.add_all(((record, event_ms),), from_gateway=from_gateway) == 1

    def add_all(self, said: Sequence[tuple[Reported, int]], *, from_gateway: bool = True) -> int:
        """As `add`, of many records with their event times; how many were applied."""
        oldest_ms, newest_ms = self._believed
        pending = self._pending
        before = len(pending)
        for span in said:
            record, event_ms = span
            if event_ms < oldest_ms:
                self.counters.late += 1
                continue
            if event_ms > newest_ms:
                self.counters.ahead += 1
                continue
            series = self._series.get(record.model) or self._of(record.model)
            name = record.gateway, record.boot
            producer = series.producers.get(name)
            if producer is None:
                producer = series.producers[name] = Producer()
            if not producer.is_new(record.sequence):
                self.counters.duplicate += 1
                continue
            if event_ms > producer.newest_ms:
                producer.newest_ms = event_ms
            # Merged when somebody looks: what many gateways say of all models, in one go.
            pending.append(span)
            if record.kinds:
                kinds = self._kinds.setdefault(record.model, Kinds(self._horizon_s))
                kinds.add((event_ms - 1) // 1000, record.kinds)
            if from_gateway:
                _hear(series, record, event_ms)
        applied = len(pending) - before
        self.counters.applied += applied
        if len(pending) > _MOST_PENDING:
            self._absorb()
        return applied

    def hear(self, record: Telemetry | Reported, event_ms: int) -> None:
        """Note only that a gateway lives, and the routes it applies; its counts are left out."""
        if event_ms > self._believed[1]:
            return
        if isinstance(record, Telemetry):
            record = reported(record)
        _hear(self._of(record.model), record, event_ms)

    def _absorb(self) -> None:
        """Count in what came since somebody looked last."""
        pending, self._pending = self._pending, []
        for model, second, values, sketches in spread(pending):
            series = self._series[model]
            series.totals.add(second, values)
            if sketches:
                series.sketches.add(second, sketches)
            if self._now_ms is not None:
                self._sweep(series, self._now_ms // 1000)

    def _seen(self, model: str) -> _Series | None:
        """What is known of `model`, all that came included."""
        if self._pending:
            self._absorb()
        return self._series.get(model)

    def stats(self, model: str, now_ms: int, window_s: int) -> WindowStats:
        """What was seen of `model` in the `window_s` whole seconds before `now_ms`."""
        self.advance(now_ms)
        series = self._seen(model)
        if series is None:
            return NoData(None)
        now_s = now_ms // 1000
        if not series.totals.seconds:
            return NoData(None)
        last_ms = min(series.totals.end_s, now_s) * 1000
        window_s = min(window_s, self._horizon_s)
        covered_s, *counts = series.totals.between(now_s - window_s, now_s)
        if not covered_s:
            return NoData(last_ms)
        values = dict(zip(COUNTS, counts, strict=True))
        arrivals, completions = values["arrivals"], values["completions"]
        sketches = series.sketches.window(window_s, now_s)
        return Stats(
            covered_s=covered_s,
            age_ms=now_ms - last_ms,
            arrivals=arrivals,
            completions=completions,
            failures=values["failures"],
            refused=values["refused"],
            attained=values["attained"],
            req_per_s=arrivals / covered_s,
            mean_input_tokens=values["input_tokens_arrived"] / arrivals if arrivals else None,
            mean_output_tokens=values["output_tokens"] / completions if completions else None,
            ttft_p95_ms=sketches.quantile_ms("ttft_ms", 0.95),
            tpot_p95_ms=sketches.quantile_ms("tpot_ms", 0.95),
        )

    def kinds(self, model: str, now_ms: int, window_s: int) -> dict[str, int]:
        """Requests sent in the `window_s` whole seconds before `now_ms`, by their kind."""
        found = self._kinds.get(model)
        now_s = now_ms // 1000
        return found.within(now_s - window_s, now_s) if found is not None else {}

    def lengths(self, model: str, now_ms: int, window_s: int) -> LengthsSeen:
        """How long the requests of the `window_s` whole seconds before `now_ms` were."""
        self.advance(now_ms)
        series = self._seen(model)
        if series is None:
            return LengthsSeen()
        now_s, window_s = now_ms // 1000, min(window_s, self._horizon_s)
        _, *counts = series.totals.between(now_s - window_s, now_s)
        values = dict(zip(COUNTS, counts, strict=True))
        sums = series.sketches.window(window_s, now_s)
        arrivals, completions = values["arrivals"], values["completions"]
        return LengthsSeen(
            sums.sketch("input_lengths"),
            sums.sketch("output_lengths"),
            values["input_tokens_arrived"] / arrivals if arrivals else None,
            values["output_tokens"] / completions if completions else None,
            arrivals,
            completions,
            sums.sketch("shapes"),
            sums.sketch("classes"),
        )

    def recent(self, model: str, now_ms: int, spans_s: Sequence[int]) -> tuple[Count, ...]:
        """(covered seconds, arrivals) of each span in `spans_s` (rising) that has data.

        Counted back from the newest reported second, so that the way of a record from gateway to
        here does not look like silence.
        """
        self.advance(now_ms)
        series = self._seen(model)
        if series is None or not series.totals.seconds:
            return ()
        found = series.totals.spans(min(series.totals.end_s, now_ms // 1000), spans_s)
        return tuple(count for count in found if count[0])

    def blocks(self, model: str, now_ms: int, window_s: int) -> Blocks:
        """(covered seconds, arrivals) of each whole 10 s block of the window, oldest first."""
        self.advance(now_ms)
        series = self._seen(model)
        if series is None:
            return ()
        return series.totals.whole_blocks(now_ms // 1000, min(window_s, self._horizon_s))

    def newest_ms(self, model: str, now_ms: int) -> int | None:
        """End of the newest reported second of `model` that is not after now, None if none is."""
        series = self._seen(model)
        if series is None or not series.totals.seconds:
            return None
        return min(series.totals.end_s, now_ms // 1000) * 1000

    def gateways(self, model: str, now_ms: int, within_s: int = 10) -> tuple[GatewaySeen, ...]:
        """Gateways that spoke of `model` in the last `within_s` seconds and did not sign off."""
        series = self._seen(model)
        if series is None:
            return ()
        oldest = now_ms - within_s * 1000
        return tuple(
            GatewaySeen(
                gateway,
                last.boot,
                seen_ms,
                last.in_flight,
                last.route_generation,
                age_ms=max(0, now_ms - seen_ms),
                served_ms=served_ms,
            )
            for gateway, (last, seen_ms, served_ms) in sorted(series.gateways.items())
            if seen_ms >= oldest and not last.leaving
        )

    def producers(self, model: str) -> int:
        """How many producers of `model` are remembered, to know copies of their records."""
        series = self._series.get(model)
        return len(series.producers) if series else 0

    def _of(self, model: str) -> _Series:
        series = self._series.get(model)
        if series is None:
            kept_s = self._horizon_s + MAX_AHEAD_S
            series = _Series(Totals(kept_s), Sketches(kept_s))
            self._series[model] = series
        return series

    def _sweep(self, series: _Series, now_s: int) -> None:
        """Forget what no window reaches; in lumps, so that it costs nothing per tick."""
        series.sketches.merge(now_s)
        if now_s - series.swept_s < _SWEEP_S:
            return
        series.swept_s = now_s
        dead = (now_s - self._horizon_s - MAX_AHEAD_S) * 1000
        for name in [n for n, (_, seen_ms, _) in series.gateways.items() if seen_ms < dead]:
            del series.gateways[name]
        # A copy of what such a producer said is late by now, so nothing is counted twice.
        for boot in [b for b, seen in series.producers.items() if seen.newest_ms < dead]:
            del series.producers[boot]


def _hear(series: _Series, record: Reported, event_ms: int) -> None:
    seen = series.gateways.get(record.gateway)
    served_ms = 0
    if seen is not None:
        last, seen_ms, served_ms = seen
        if event_ms < seen_ms or (last.leaving and last.boot == record.boot):
            return
    if record.values[0] or record.values[1] or record.in_flight:  # arrivals, completions
        served_ms = event_ms
    series.gateways[record.gateway] = record, event_ms, served_ms
