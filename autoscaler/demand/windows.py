"""Sliding windows of telemetry: one-second buckets per model, sums kept as time goes on.

Owns what was seen and when. Must not know what anyone concludes from it, nor any clock: event
times and "now" are arguments, in domain ms since the epoch.

Three things are kept apart: a model of which nothing was ever seen (`NoData` without a last
time), a series that died (`NoData` with its last time) and a model with no traffic (`Stats`
with zero arrivals). Windows cover whole seconds before the one that `now_ms` is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoscaler.demand.duplicates import Producer
from autoscaler.demand.kinds import Kinds
from autoscaler.demand.seconds import Second, Span, Sums, spread
from autoscaler.demand.seen import GatewaySeen, LengthsSeen, NoData, Stats, WindowStats
from autoscaler.demand.timeline import Blocks, Count, Timeline
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
_MOST_PENDING = 2000


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
    """One model: a ring of seconds, running sums per window length, producers."""

    timeline: Timeline
    seconds: dict[int, Second] = field(default_factory=dict)
    newest_s: int = -1
    windows: dict[int, Sums] = field(default_factory=dict)
    producers: dict[tuple[str, str], Producer] = field(default_factory=dict)
    gateways: dict[str, _LastWord] = field(default_factory=dict)
    pending: list[Span] = field(default_factory=list)


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
        self.counters = Counters()

    def advance(self, now_ms: int) -> None:
        """Say what time it is. Time never goes back: an earlier `now_ms` changes nothing."""
        if self._now_ms is None or now_ms > self._now_ms:
            self._now_ms = now_ms

    def add(
        self, record: Telemetry | Reported, event_ms: int, *, from_gateway: bool = True
    ) -> bool:
        """Count `record`, whose span ended at `event_ms`; True if it was applied.

        Idempotent by (gateway, boot, sequence) per model. Its counts are spread over the seconds
        that the span touches. from_gateway: whether who says so applies routes.
        """
        if isinstance(record, Telemetry):
            record = reported(record)
        if self._now_ms is not None:
            if event_ms < self._now_ms - self._horizon_s * 1000:
                self.counters.late += 1
                return False
            if event_ms > self._now_ms + MAX_AHEAD_S * 1000:
                self.counters.ahead += 1
                return False
        series = self._series.get(record.model) or self._of(record.model)
        name = record.gateway, record.boot
        producer = series.producers.get(name)
        if producer is None:
            producer = series.producers[name] = Producer()
        if not producer.is_new(record.sequence):
            self.counters.duplicate += 1
            return False
        producer.newest_ms = max(producer.newest_ms, event_ms)
        # Merged when somebody looks: what many gateways say of a second, in one go.
        series.pending.append((event_ms, record.span_ms, record.values, record.sketches))
        if record.kinds:
            kinds = self._kinds.setdefault(record.model, Kinds(self._horizon_s))
            kinds.add((event_ms - 1) // 1000, record.kinds)
        if len(series.pending) > _MOST_PENDING:
            self._absorb(series)
        if from_gateway:
            self.hear(record, event_ms)
        self.counters.applied += 1
        return True

    def hear(self, record: Telemetry | Reported, event_ms: int) -> None:
        """Note only that a gateway lives, and the routes it applies; its counts are left out."""
        if self._now_ms is not None and event_ms > self._now_ms + MAX_AHEAD_S * 1000:
            return
        if isinstance(record, Telemetry):
            record = reported(record)
        series = self._of(record.model)
        seen = series.gateways.get(record.gateway)
        served_ms = 0
        if seen is not None:
            last, seen_ms, served_ms = seen
            if event_ms < seen_ms or (last.leaving and last.boot == record.boot):
                return
        if record.values[0] or record.values[1] or record.in_flight:  # arrivals, completions
            served_ms = event_ms
        series.gateways[record.gateway] = record, event_ms, served_ms

    def _absorb(self, series: _Series) -> None:
        """Count in what came since somebody looked last."""
        pending, series.pending = series.pending, []
        for second, values, cells in spread(pending):
            within = [
                sums
                for length, sums in series.windows.items()
                if sums.end_s - length <= second < sums.end_s
            ]
            bucket = series.seconds.get(second)
            if bucket is None:
                bucket = series.seconds[second] = Second()
                for sums in within:
                    sums.covered_s += 1
            bucket.add(values, cells)
            for sums in within:
                sums.add(values, cells)
            series.newest_s = max(series.newest_s, second)
            series.timeline.changed(second)
        if self._now_ms is not None:
            self._sweep(series, self._now_ms // 1000)

    def _seen(self, model: str) -> _Series | None:
        """What is known of `model`, all that came included."""
        series = self._series.get(model)
        if series is not None and series.pending:
            self._absorb(series)
        return series

    def stats(self, model: str, now_ms: int, window_s: int) -> WindowStats:
        """What was seen of `model` in the `window_s` whole seconds before `now_ms`."""
        self.advance(now_ms)
        series = self._seen(model)
        if series is None:
            return NoData(None)
        now_s = now_ms // 1000
        sums = self._slide(series, min(window_s, self._horizon_s), now_s)
        if sums.covered_s == 0 and series.newest_s < 0:
            return NoData(None)
        if sums.covered_s == 0:
            return NoData((min(series.newest_s, now_s - 1) + 1) * 1000)
        return _stats(sums, max(0, now_ms - (min(series.newest_s, now_s - 1) + 1) * 1000))

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
        sums = self._slide(series, min(window_s, self._horizon_s), now_ms // 1000)
        values = dict(zip(COUNTS, sums.values, strict=True))
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
        if series is None or series.newest_s < 0:
            return ()
        end_s = min(series.newest_s + 1, now_ms // 1000)
        found = series.timeline.spans(series.seconds, end_s, spans_s)
        return tuple(count for count in found if count[0])

    def blocks(self, model: str, now_ms: int, window_s: int) -> Blocks:
        """(covered seconds, arrivals) of each whole 10 s block of the window, oldest first."""
        self.advance(now_ms)
        series = self._seen(model)
        if series is None:
            return ()
        window_s = min(window_s, self._horizon_s)
        return series.timeline.whole_blocks(series.seconds, now_ms // 1000, window_s)

    def newest_ms(self, model: str, now_ms: int) -> int | None:
        """End of the newest reported second of `model` that is not after now, None if none is."""
        series = self._seen(model)
        if series is None or series.newest_s < 0:
            return None
        return min(series.newest_s + 1, now_ms // 1000) * 1000

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
            series = self._series[model] = _Series(Timeline(self._horizon_s + MAX_AHEAD_S))
        return series

    def _slide(self, series: _Series, window_s: int, now_s: int) -> Sums:
        """The running sums of the `window_s` seconds before `now_s`, brought up to date."""
        sums = series.windows.get(window_s)
        if sums is None or now_s < sums.end_s or now_s - sums.end_s > window_s:
            sums = series.windows[window_s] = Sums(now_s)
            for second in range(now_s - window_s, now_s):
                bucket = series.seconds.get(second)
                if bucket is not None:
                    sums.enter(bucket)
        for second in range(sums.end_s, now_s):
            entering, leaving = series.seconds.get(second), series.seconds.get(second - window_s)
            if entering is not None:
                sums.enter(entering)
            if leaving is not None:
                sums.leave(leaving)
        sums.end_s = now_s
        return sums

    def _sweep(self, series: _Series, now_s: int) -> None:
        """Forget seconds that no window reaches; in lumps, so that it costs nothing per tick."""
        if len(series.seconds) <= self._horizon_s + 2 * MAX_AHEAD_S + 60:
            return
        oldest = now_s - self._horizon_s - MAX_AHEAD_S
        gone = [second for second in series.seconds if second < oldest]
        for second in gone:
            del series.seconds[second]
        dead = oldest * 1000
        for name in [n for n, (_, seen_ms, _) in series.gateways.items() if seen_ms < dead]:
            del series.gateways[name]
        # A copy of what such a producer said is late by now, so nothing is counted twice.
        for boot in [b for b, seen in series.producers.items() if seen.newest_ms < dead]:
            del series.producers[boot]


def _stats(sums: Sums, age_ms: int) -> Stats:
    values = dict(zip(COUNTS, sums.values, strict=True))
    arrivals, completions = values["arrivals"], values["completions"]
    return Stats(
        covered_s=sums.covered_s,
        age_ms=age_ms,
        arrivals=arrivals,
        completions=completions,
        failures=values["failures"],
        refused=values["refused"],
        attained=values["attained"],
        req_per_s=arrivals / sums.covered_s,
        mean_input_tokens=values["input_tokens_arrived"] / arrivals if arrivals else None,
        mean_output_tokens=values["output_tokens"] / completions if completions else None,
        ttft_p95_ms=sums.quantile_ms("ttft_ms", 0.95),
        tpot_p95_ms=sums.quantile_ms("tpot_ms", 0.95),
    )
