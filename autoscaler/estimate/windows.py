"""Sliding windows of telemetry, per model.

Event times and "now" are arguments, in domain ms since the epoch. There are three different cases
without requests: the model was never reported (`NoData` without a last time), its reports ended
(`NoData` with the last time), or it has no traffic (`Stats` with zero arrivals). Windows cover
whole seconds before the second of `now_ms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.validation import whole
from autoscaler.estimate.arrival_counts import ArrivalCounts, Blocks, Count
from autoscaler.estimate.gateway_registry import REFUSED, GatewayRegistry
from autoscaler.estimate.request_kinds import KindCounts, VersionBlock
from autoscaler.estimate.sketches import SketchSnapshot, SketchStore
from autoscaler.estimate.span_to_seconds import split_into_seconds
from autoscaler.estimate.window_stats import (
    NO_REQUESTS,
    EndedRequests,
    GatewayReport,
    NoData,
    PrefixHits,
    Stats,
    TokenSums,
    WindowLengths,
    WindowStats,
    proven_share,
)
from topics.telemetry import COUNTS, Telemetry
from topics.telemetry_columns import SEQUENCE, TelemetryBatch, batch_of

__all__ = [
    "MAX_AHEAD_S",
    "GatewayReport",
    "NoData",
    "PrefixHits",
    "RecordCounters",
    "Stats",
    "TelemetryWindows",
    "TokenSums",
    "WindowLengths",
    "WindowStats",
]

MAX_AHEAD_S = 60
"""Seconds by which a span may end in the future; a clock that is further ahead is wrong."""
# Columns of (covered seconds, COUNTS) that make up `TokenSums`.
_TOKEN_COLUMNS = [1, 6, 2, 8, 3, 4, 5]
_QUERIED, _HIT = (1 + COUNTS.index(name) for name in ("cache_queried_tokens", "cache_hit_tokens"))
_ENDED = [COUNTS.index(name) for name in ("completions", "failures", "refused")]
_ATTAINED = COUNTS.index("attained")
_MINUTE_S = 60
_MAX_PENDING = 5000
"""Records that wait to be counted, which limits memory."""
_SWEEP_S = 60
"""Seconds between two removals of expired data."""


@dataclass(slots=True)
class RecordCounters:
    """Numbers of applied and ignored records since the start of the process, by reason. refused:
    records of further gateways of a model that has `gateway_registry.MOST_BOOTS_PER_MODEL`."""

    applied: int = 0
    duplicate: int = 0
    late: int = 0
    ahead: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class _Batch:
    """Records that wait to be counted at the next read. boots: boot index of each record's
    producer."""

    boots: NDArray[np.int64]
    ends_ms: NDArray[np.int64]
    records: TelemetryBatch


class TelemetryWindows:
    """Sliding windows of all models. `now_ms` comes from the owner's clock, never from records.

    horizon_s: longest window in seconds, in [1, 86400]. A record is late if its span ended more
    than the horizon before the newest `now_ms`, and ahead if its span ends more than MAX_AHEAD_S
    after the newest `now_ms`. Late and ahead records are counted in `counters` and otherwise
    ignored, so a gateway with a wrong clock distorts no window. Every event time is accepted before
    the first `advance` or `stats`.
    """

    def __init__(self, horizon_s: int = 1800) -> None:
        self._horizon_s = whole("horizon_s", horizon_s, 1, 86_400)
        kept_s = self._horizon_s + MAX_AHEAD_S
        self._gateways = GatewayRegistry()
        self._totals, self._sketches = ArrivalCounts(kept_s), SketchStore(kept_s)
        self._ended = np.zeros((1, 2), np.int64)  # by model, of all records: ended, attained
        self._kinds: dict[str, KindCounts] = {}
        self._read_models: set[str] = set()  # models read since the last sweep
        self._now_ms: int | None = None
        self._batches_to_count: list[_Batch] = []
        self._batches_to_note: list[_Batch] = []
        self._pending = 0
        self._swept_s = 0
        self.counters = RecordCounters()

    def advance(self, now_ms: int) -> None:
        """Set the time. A `now_ms` before the present time changes nothing."""
        if self._now_ms is None or now_ms > self._now_ms:
            self._now_ms = now_ms

    def add(self, record: Telemetry, event_ms: int) -> bool:
        """Count `record`, whose span ended at `event_ms`; True if the record was applied."""
        return self.add_all(batch_of([record]), np.array([event_ms])) == 1

    def add_all(
        self, records: TelemetryBatch, ends_ms: NDArray[np.int64], *, from_gateway: bool = True
    ) -> int:
        """Count `records`, whose spans ended at `ends_ms`; return how many were applied.

        Idempotent by (gateway, boot, sequence) per model. Counts are split over the seconds of a
        span. from_gateway: whether the producer applies routes.
        """
        records, ends_ms = self._within_time_limits(records, ends_ms, self._horizon_s * 1000)
        boots = self._gateways.applied_sequences(records.names)
        sequences = records.numbers[:, SEQUENCE].tolist()
        new = [boot.is_new(at) for boot, at in zip(boots, sequences, strict=True)]
        numbers = np.array([boot.boot_number for boot in boots], np.int64)
        if not all(new):
            refused = sum(boot is REFUSED for boot in boots)
            self.counters.refused += refused
            self.counters.duplicate += new.count(False) - refused
            places = [at for at, one in enumerate(new) if one]
            records, ends_ms, numbers = records.select(places), ends_ms[places], numbers[places]
        if not len(records):
            return 0
        batch = _Batch(numbers, ends_ms, records)
        for at, kinds in records.kinds.items():
            counts = self._kinds.setdefault(records.names[at][0], KindCounts(self._horizon_s))
            counts.add((int(ends_ms[at]) - 1) // 1000, kinds)
        self.counters.applied += len(records)
        # Merging waits for the next read, because one call for many gateways and all models is
        # faster.
        self._batches_to_count.append(batch)
        if from_gateway:
            self._batches_to_note.append(batch)
        self._enqueue(batch)
        return len(records)

    def note_gateways(self, records: TelemetryBatch, ends_ms: NDArray[np.int64]) -> None:
        """Note that gateways report, and which routes they apply; ignore the counts of the
        records."""
        records, ends_ms = self._within_time_limits(records, ends_ms, None)
        if not len(records):
            return
        boots = [boot.boot_number for boot in self._gateways.applied_sequences(records.names)]
        if -1 in boots:
            self.counters.refused += boots.count(-1)
            places = [at for at, boot in enumerate(boots) if boot >= 0]
            records, ends_ms = records.select(places), ends_ms[places]
            boots = [boot for boot in boots if boot >= 0]
        batch = _Batch(np.array(boots, np.int64), ends_ms, records)
        self._batches_to_note.append(batch)
        self._enqueue(batch)

    def _within_time_limits(
        self, records: TelemetryBatch, ends_ms: NDArray[np.int64], max_age_ms: int | None
    ) -> tuple[TelemetryBatch, NDArray[np.int64]]:
        """The records whose event times are neither late nor ahead."""
        if self._now_ms is None:
            return records, ends_ms
        latest_ms = self._now_ms + MAX_AHEAD_S * 1000
        earliest_ms = self._now_ms - max_age_ms if max_age_ms is not None else -math.inf
        if not len(ends_ms) or (ends_ms.min() >= earliest_ms and ends_ms.max() <= latest_ms):
            return records, ends_ms
        ahead, late = ends_ms > latest_ms, ends_ms < earliest_ms
        self.counters.ahead += int(ahead.sum())
        self.counters.late += int(late.sum())
        places = np.flatnonzero(~(ahead | late)).tolist()
        return records.select(places), ends_ms[places]

    def _enqueue(self, batch: _Batch) -> None:
        self._pending += len(batch.records)
        if self._pending > _MAX_PENDING:
            self._flush()

    def _flush(self) -> None:
        """Count the waiting records, and drop old data."""
        if self._pending:
            self._totals.reserve(self._gateways.index_limit)
            self._sketches.reserve(self._gateways.index_limit)
            more = self._gateways.index_limit - len(self._ended)
            if more > 0:
                self._ended = np.pad(self._ended, ((0, more), (0, 0)))
            self._count(self._batches_to_count)
            self._note(self._batches_to_note)
            self._batches_to_count, self._batches_to_note, self._pending = [], [], 0
        if self._now_ms is not None:
            self._sweep(self._now_ms // 1000)

    def _count(self, batches: Sequence[_Batch]) -> None:
        if not batches:
            return
        boots = np.concatenate([one.boots for one in batches])
        ends_ms = np.concatenate([one.ends_ms for one in batches])
        numbers = np.concatenate([one.records.numbers for one in batches])
        cells = [cell for one in batches for cell in one.records.cells]
        models = self._gateways.models_of_boots(boots)
        self._gateways.note_newest(boots, ends_ms)
        attained, ended = numbers[:, _ATTAINED], numbers[:, _ENDED].sum(axis=1)
        np.add.at(self._ended, models, np.column_stack([ended, attained]))
        found = split_into_seconds(models, ends_ms, numbers, cells)
        self._totals.add(found.seconds, found.models, found.counts)
        for second, sketches in found.sketches:
            self._sketches.add(second, sketches)

    def _note(self, batches: Sequence[_Batch]) -> None:
        if batches:
            self._gateways.update_reports(
                np.concatenate([one.boots for one in batches]),
                np.concatenate([one.ends_ms for one in batches]),
                np.concatenate([one.records.numbers for one in batches]),
            )

    def _indices(self, models: Sequence[str]) -> NDArray[np.int64]:
        """Indices of `models`, 0 for a model without records. Waiting records are counted first."""
        self._read_models.update(models)
        self._flush()
        numbers = [self._gateways.models.get(model, 0) for model in models]
        return np.array(numbers, np.int64)

    def ended_requests(self, model: str) -> EndedRequests:
        """Requests of `model` that ended since the start of the process, at the last read of a
        window. They restart at 0 after a model was forgotten. Reading them changes nothing."""
        index = self._gateways.models.get(model, 0)
        return (
            EndedRequests(*self._ended[index].tolist()) if index < len(self._ended) else NO_REQUESTS
        )

    def stats(self, model: str, now_ms: int, window_s: int) -> WindowStats:
        """Counts of `model` in the `window_s` whole seconds before `now_ms`."""
        return self.all_stats([model], now_ms, window_s)[0][0]

    def all_stats(
        self, models: Sequence[str], now_ms: int, window_s: int
    ) -> list[tuple[WindowStats, WindowLengths]]:
        """For each of `models`: `stats` of the window, and the lengths of its requests."""
        self.advance(now_ms)
        numbers = self._indices(models)
        now_s, window_s = now_ms // 1000, min(window_s, self._horizon_s)
        seen = self._sketches.window(window_s, now_s)
        return [
            (
                _stats(
                    counts, min(end_s, now_s) * 1000 if end_s else None, now_ms, *p95_ms, *p50_ms
                ),
                _lengths(seen, number, counts),
            )
            for number, counts, end_s, p95_ms, p50_ms in zip(
                numbers.tolist(),
                self._totals.counts_between(numbers, now_s - window_s, now_s).tolist(),
                self._totals.newest_end_s[numbers].tolist(),
                seen.quantiles_ms(("ttft_ms", "tpot_ms"), numbers, 0.95),
                seen.quantiles_ms(("tpot_ms",), numbers, 0.5),
                strict=True,
            )
        ]

    def kinds(self, model: str, now_ms: int, window_s: int) -> dict[str, int]:
        """Requests by kind in the `window_s` whole seconds before `now_ms`."""
        found = self._kinds.get(model)
        now_s = now_ms // 1000
        return found.counts_between(now_s - window_s, now_s) if found is not None else {}

    def versions(self, model: str, now_ms: int) -> tuple[VersionBlock, ...]:
        """Counts by version in the complete blocks of the last minutes, while versions of `model`
        are compared."""
        found = self._kinds.get(model)
        return found.versions_until(now_ms // 1000) if found is not None else ()

    def all_tokens(
        self, models: Sequence[str], now_ms: int, spans_s: Sequence[int]
    ) -> list[tuple[TokenSums, ...]]:
        """Token sums of each of `models` in each span of `spans_s` whole seconds before
        `now_ms`."""
        self.advance(now_ms)
        numbers, now_s = self._indices(models), now_ms // 1000
        found = [
            self._totals.counts_between(numbers, now_s - span_s, now_s)[:, _TOKEN_COLUMNS].tolist()
            for span_s in spans_s
        ]
        return [tuple(TokenSums(*one[at]) for one in found) for at in range(len(models))]

    def all_prefix_hits(
        self, models: Sequence[str], now_ms: int, recent_s: Sequence[int], local_s: int, long_s: int
    ) -> list[PrefixHits]:
        """Prompt tokens of each of `models` that came from prefix caches, in the spans before
        `now_ms`."""
        self.advance(now_ms)
        numbers, now_s = self._indices(models), now_ms // 1000
        last_s = now_s // _MINUTE_S * _MINUTE_S
        minutes = np.arange(last_s - min(long_s, self._horizon_s), last_s + 1, _MINUTE_S)
        sums = self._totals.sums_at(numbers, minutes)[:, :, [_QUERIED, _HIT]]
        spans = [
            self._totals.counts_between(numbers, now_s - span_s, now_s)[:, [_QUERIED, _HIT]]
            for span_s in (*recent_s, local_s)
        ]
        each = np.diff(sums, axis=0)
        return [
            PrefixHits(tuple(map(tuple, recent)), local[0], local[1], *proven_share(each[:, at]))
            for at, (*recent, local) in enumerate(
                zip(*(one.tolist() for one in spans), strict=True)
            )
        ]

    def all_recent(
        self, models: Sequence[str], now_ms: int, spans_s: Sequence[int]
    ) -> list[tuple[Count, ...]]:
        """(covered seconds, arrivals) of each of `models` in each span of `spans_s` (rising), if
        the span has reports.

        Spans end with the newest reported second, so that the delay of a record does not look like
        silence.
        """
        self.advance(now_ms)
        found = self._totals.recent_spans(self._indices(models), now_ms // 1000, spans_s)
        return [tuple(count for count in counts if count[0]) for counts in found]

    def all_blocks(self, models: Sequence[str], now_ms: int, window_s: int) -> list[Blocks]:
        """(covered seconds, arrivals) of each whole 10 s block of the window, oldest first, for
        each of `models`."""
        self.advance(now_ms)
        numbers = self._indices(models)
        found = self._totals.whole_blocks(
            numbers[numbers > 0], now_ms // 1000, min(window_s, self._horizon_s)
        )
        return [found.pop(0) if number else () for number in numbers.tolist()]

    def newest_ms(self, model: str, now_ms: int) -> int | None:
        """End of the newest reported second of `model` that is not after `now_ms`; None without
        reports."""
        return self.all_newest_ms([model], now_ms)[0]

    def all_newest_ms(self, models: Sequence[str], now_ms: int) -> list[int | None]:
        """For each of `models`: the result of `newest_ms`."""
        # call `_indices` first, because it may replace the arrays that are read
        numbers = self._indices(models)
        ends_s = self._totals.newest_end_s[numbers].tolist()
        return [min(end_s, now_ms // 1000) * 1000 if end_s else None for end_s in ends_s]

    def gateways(self, model: str, now_ms: int, within_s: int = 10) -> tuple[GatewayReport, ...]:
        """Gateway reports on `model` of the last `within_s` seconds, without gateways that signed
        off."""
        return self.all_gateways([model], now_ms, within_s)[0]

    def all_gateways(
        self, models: Sequence[str], now_ms: int, within_s: int
    ) -> list[tuple[GatewayReport, ...]]:
        """For each of `models`: the result of `gateways`."""
        numbers = self._indices(models).tolist()
        return [*map(tuple, self._gateways.reports(numbers, now_ms, now_ms - within_s * 1000))]

    def producer_count(self, model: str) -> int:
        """Number of producers whose sequence numbers on `model` are kept for deduplication."""
        return self._gateways.boot_count(model)

    def _sweep(self, now_s: int) -> None:
        """Drop data that no window needs, at most once per _SWEEP_S to keep ticks fast."""
        self._sketches.compact(now_s)
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            # Safe, because a duplicate record of these boots would be rejected as late by now.
            self._gateways.forget_silent_boots((now_s - self._horizon_s - MAX_AHEAD_S) * 1000)
            self._release_unused()

    def _release_unused(self) -> None:
        """Release the indices of models that have no data and were not read since the last sweep. A
        model that was read keeps its index, because readers need its last report time."""
        oldest_s = self._sketches.oldest_s
        for model in sorted(self._gateways.models_without_boots() - self._read_models):
            if self._totals.newest_end_s[self._gateways.models[model]] <= oldest_s:
                released = self._gateways.release(model)
                self._totals.clear(released)
                self._ended[released] = 0
                self._kinds.pop(model, None)
        self._read_models.clear()


def _stats(
    sums: Sequence[int], last_ms: int | None, now_ms: int, ttft_ms: float | None,
    tpot_ms: float | None, median_tpot_ms: float | None,
) -> WindowStats:  # fmt: skip
    """Window statistics from `sums`: covered seconds, then COUNTS."""
    covered_s, arrivals, completions, failures, refused, attained, inputs, _, outputs = sums[:9]
    if not covered_s or last_ms is None:
        return NoData(last_ms)
    return Stats(
        covered_s,
        now_ms - last_ms,
        arrivals,
        completions,
        failures,
        refused,
        attained,
        arrivals / covered_s,
        inputs / arrivals if arrivals else None,
        outputs / completions if completions else None,
        ttft_ms,
        tpot_ms,
        median_tpot_ms,
    )


def _lengths(seen: SketchSnapshot, model: int, sums: Sequence[int]) -> WindowLengths:
    """Request lengths of `model` in a window. sums: covered seconds, then COUNTS."""
    _, arrivals, completions, _, _, _, inputs, _, outputs = sums[:9]
    return WindowLengths(
        seen.sketch("input_lengths", model),
        seen.sketch("output_lengths", model),
        inputs / arrivals if arrivals else None,
        outputs / completions if completions else None,
        arrivals,
        completions,
        seen.sketch("shapes", model),
        seen.sketch("classes", model),
    )
