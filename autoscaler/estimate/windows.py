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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.validation import whole
from autoscaler.estimate.arrival_counts import Blocks, Count, Totals
from autoscaler.estimate.gateway_registry import Gateways
from autoscaler.estimate.request_kinds import Kinds
from autoscaler.estimate.sketches import Seen, Sketches
from autoscaler.estimate.span_to_seconds import spread
from autoscaler.estimate.window_stats import (
    GatewaySeen,
    LengthsSeen,
    NoData,
    Stats,
    TokenSums,
    WindowStats,
)
from topics.telemetry import Telemetry
from topics.telemetry_columns import SEQUENCE, Reported, reported

__all__ = [
    "MAX_AHEAD_S",
    "Counters",
    "GatewaySeen",
    "LengthsSeen",
    "NoData",
    "Stats",
    "TelemetryWindows",
    "TokenSums",
    "WindowStats",
]

MAX_AHEAD_S = 60
_TOKENS = [1, 6, 2, 8]  # of covered seconds and COUNTS: those of `TokenSums`
_MOST_WAITING = 5000
_SWEEP_S = 60


@dataclass(slots=True)
class Counters:
    """What was not applied, and why. Counts since the start of the process."""

    applied: int = 0
    duplicate: int = 0
    late: int = 0
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class _Came:
    """Records that nobody looked at yet. boots: numbers of who said them."""

    boots: NDArray[np.int64]
    ends_ms: NDArray[np.int64]
    records: Reported


class TelemetryWindows:
    """Windows of all models. `now_ms` may only be given by the owner's clock, never by records.

    horizon_s: how far back windows reach, in [1, 86400]. A record is late if it ended more than
    the horizon before the newest `now_ms` given, and ahead if it ends more than MAX_AHEAD_S after
    it: either is counted and changes nothing, so one gateway with a wrong clock harms no window.
    Before the first `advance` or `stats` there is no now, and every event time is believed.
    """

    def __init__(self, horizon_s: int = 1800) -> None:
        self._horizon_s = whole("horizon_s", horizon_s, 1, 86_400)
        kept_s = self._horizon_s + MAX_AHEAD_S
        self._gateways = Gateways()
        self._totals, self._sketches = Totals(kept_s), Sketches(kept_s)
        self._kinds: dict[str, Kinds] = {}
        self._asked: set[str] = set()  # models, since the last sweep
        self._now_ms: int | None = None
        self._to_count: list[_Came] = []
        self._to_hear: list[_Came] = []
        self._waiting = 0
        self._swept_s = 0
        self.counters = Counters()

    def advance(self, now_ms: int) -> None:
        """Say what time it is. Time never goes back: an earlier `now_ms` changes nothing."""
        if self._now_ms is None or now_ms > self._now_ms:
            self._now_ms = now_ms

    def add(self, record: Telemetry, event_ms: int) -> bool:
        """Count `record`, whose span ended at `event_ms`; True if it was applied."""
        return self.add_all(reported([record]), np.array([event_ms])) == 1

    def add_all(
        self, records: Reported, ends_ms: NDArray[np.int64], *, from_gateway: bool = True
    ) -> int:
        """Count `records`, whose spans ended at `ends_ms`; how many were applied.

        Idempotent by (gateway, boot, sequence) per model. Counts are spread over the seconds that
        a span touches. from_gateway: whether who says so applies routes.
        """
        records, ends_ms = self._believed(records, ends_ms, self._horizon_s * 1000)
        boots = self._gateways.producers(records.names)
        sequences = records.numbers[:, SEQUENCE].tolist()
        new = [boot.is_new(at) for boot, at in zip(boots, sequences, strict=True)]
        numbers = np.array([boot.number for boot in boots], np.int64)
        if not all(new):
            self.counters.duplicate += new.count(False)
            places = [at for at, one in enumerate(new) if one]
            records, ends_ms, numbers = records.at(places), ends_ms[places], numbers[places]
        if not len(records):
            return 0
        came = _Came(numbers, ends_ms, records)
        for at, kinds in records.kinds.items():
            known = self._kinds.setdefault(records.names[at][0], Kinds(self._horizon_s))
            known.add((int(ends_ms[at]) - 1) // 1000, kinds)
        self.counters.applied += len(records)
        # Merged when somebody looks: what many gateways say of all models, in one go.
        self._to_count.append(came)
        if from_gateway:
            self._to_hear.append(came)
        self._wait(came)
        return len(records)

    def hear(self, records: Reported, ends_ms: NDArray[np.int64]) -> None:
        """Note only that gateways live, and the routes they apply; their counts are left out."""
        records, ends_ms = self._believed(records, ends_ms, None)
        if not len(records):
            return
        boots = [boot.number for boot in self._gateways.producers(records.names)]
        came = _Came(np.array(boots, np.int64), ends_ms, records)
        self._to_hear.append(came)
        self._wait(came)

    def _believed(
        self, records: Reported, ends_ms: NDArray[np.int64], back_ms: int | None
    ) -> tuple[Reported, NDArray[np.int64]]:
        """Those whose event times are believed, now that it is now."""
        if self._now_ms is None:
            return records, ends_ms
        latest_ms = self._now_ms + MAX_AHEAD_S * 1000
        earliest_ms = self._now_ms - back_ms if back_ms is not None else -math.inf
        if not len(ends_ms) or (ends_ms.min() >= earliest_ms and ends_ms.max() <= latest_ms):
            return records, ends_ms
        ahead, late = ends_ms > latest_ms, ends_ms < earliest_ms
        self.counters.ahead += int(ahead.sum())
        self.counters.late += int(late.sum())
        places = np.flatnonzero(~(ahead | late)).tolist()
        return records.at(places), ends_ms[places]

    def _wait(self, came: _Came) -> None:
        self._waiting += len(came.records)
        if self._waiting > _MOST_WAITING:
            self._absorb()

    def _absorb(self) -> None:
        """Count in what came since somebody looked last."""
        if self._waiting:
            self._totals.room_for(self._gateways.numbers)
            self._sketches.room_for(self._gateways.numbers)
            self._count(self._to_count)
            self._hear(self._to_hear)
            self._to_count, self._to_hear, self._waiting = [], [], 0
        if self._now_ms is not None:
            self._sweep(self._now_ms // 1000)

    def _count(self, came: Sequence[_Came]) -> None:
        if not came:
            return
        boots = np.concatenate([one.boots for one in came])
        ends_ms = np.concatenate([one.ends_ms for one in came])
        numbers = np.concatenate([one.records.numbers for one in came])
        cells = [cell for one in came for cell in one.records.cells]
        models = self._gateways.models_of(boots)
        self._gateways.heard(boots, ends_ms)
        found = spread(models, ends_ms, numbers, cells)
        self._totals.add(found.seconds, found.models, found.counts)
        for second, sketches in found.sketches:
            self._sketches.add(second, sketches)

    def _hear(self, came: Sequence[_Came]) -> None:
        if came:
            self._gateways.hear(
                np.concatenate([one.boots for one in came]),
                np.concatenate([one.ends_ms for one in came]),
                np.concatenate([one.records.numbers for one in came]),
            )

    def _numbers(self, models: Sequence[str]) -> NDArray[np.int64]:
        """Of `models`, all that came included; 0 stands for those of which nothing did."""
        self._asked.update(models)
        self._absorb()
        numbers = [self._gateways.models.get(model, 0) for model in models]
        return np.array(numbers, np.int64)

    def stats(self, model: str, now_ms: int, window_s: int) -> WindowStats:
        """What was seen of `model` in the `window_s` whole seconds before `now_ms`."""
        return self.all_stats([model], now_ms, window_s)[0][0]

    def all_stats(
        self, models: Sequence[str], now_ms: int, window_s: int
    ) -> list[tuple[WindowStats, LengthsSeen]]:
        """`stats` of each of `models`, and how long the requests of the window were."""
        self.advance(now_ms)
        numbers = self._numbers(models)
        now_s, window_s = now_ms // 1000, min(window_s, self._horizon_s)
        seen = self._sketches.window(window_s, now_s)
        return [
            (
                _stats(counts, min(end_s, now_s) * 1000 if end_s else None, now_ms, *p95_ms),
                _lengths(seen, number, counts),
            )
            for number, counts, end_s, p95_ms in zip(
                numbers.tolist(),
                self._totals.between(numbers, now_s - window_s, now_s).tolist(),
                self._totals.ends_s[numbers].tolist(),
                seen.quantiles_ms(("ttft_ms", "tpot_ms"), numbers, 0.95),
                strict=True,
            )
        ]

    def kinds(self, model: str, now_ms: int, window_s: int) -> dict[str, int]:
        """Requests sent in the `window_s` whole seconds before `now_ms`, by their kind."""
        found = self._kinds.get(model)
        now_s = now_ms // 1000
        return found.within(now_s - window_s, now_s) if found is not None else {}

    def all_tokens(
        self, models: Sequence[str], now_ms: int, spans_s: Sequence[int]
    ) -> list[tuple[TokenSums, ...]]:
        """What each of `models` was asked in each of the spans of `spans_s` whole seconds before
        `now_ms`."""
        self.advance(now_ms)
        numbers, now_s = self._numbers(models), now_ms // 1000
        found = [
            self._totals.between(numbers, now_s - span_s, now_s)[:, _TOKENS].tolist()
            for span_s in spans_s
        ]
        return [tuple(TokenSums(*one[at]) for one in found) for at in range(len(models))]

    def all_recent(
        self, models: Sequence[str], now_ms: int, spans_s: Sequence[int]
    ) -> list[tuple[Count, ...]]:
        """(covered seconds, arrivals) of each of `models` in each span in `spans_s` (rising) that
        has data.

        Counted back from the newest reported second, so that the way of a record from gateway to
        here does not look like silence.
        """
        self.advance(now_ms)
        found = self._totals.spans(self._numbers(models), now_ms // 1000, spans_s)
        return [tuple(count for count in counts if count[0]) for counts in found]

    def all_blocks(self, models: Sequence[str], now_ms: int, window_s: int) -> list[Blocks]:
        """(covered seconds, arrivals) of each whole 10 s block of the window, oldest first, of each
        of `models`."""
        self.advance(now_ms)
        numbers = self._numbers(models)
        found = self._totals.whole_blocks(
            numbers[numbers > 0], now_ms // 1000, min(window_s, self._horizon_s)
        )
        return [found.pop(0) if number else () for number in numbers.tolist()]

    def newest_ms(self, model: str, now_ms: int) -> int | None:
        """End of the newest reported second of `model` that is not after now, None if none is."""
        return self.all_newest_ms([model], now_ms)[0]

    def all_newest_ms(self, models: Sequence[str], now_ms: int) -> list[int | None]:
        """`newest_ms` of each of `models`."""
        numbers = self._numbers(models)  # first: room for new ones is made anew
        ends_s = self._totals.ends_s[numbers].tolist()
        return [min(end_s, now_ms // 1000) * 1000 if end_s else None for end_s in ends_s]

    def gateways(self, model: str, now_ms: int, within_s: int = 10) -> tuple[GatewaySeen, ...]:
        """Gateways that spoke of `model` in the last `within_s` seconds and did not sign off."""
        return self.all_gateways([model], now_ms, within_s)[0]

    def all_gateways(
        self, models: Sequence[str], now_ms: int, within_s: int
    ) -> list[tuple[GatewaySeen, ...]]:
        """`gateways` of each of `models`."""
        numbers = self._numbers(models).tolist()
        return [*map(tuple, self._gateways.seen(numbers, now_ms, now_ms - within_s * 1000))]

    def producers(self, model: str) -> int:
        """How many producers of `model` are remembered, to know copies of their records."""
        return self._gateways.boots_of(model)

    def _sweep(self, now_s: int) -> None:
        """Forget what no window reaches; in lumps, so that it costs nothing per tick."""
        self._sketches.merge(now_s)
        if now_s - self._swept_s >= _SWEEP_S:
            self._swept_s = now_s
            # A copy of what they said is late by now, so nothing is counted twice.
            self._gateways.forget((now_s - self._horizon_s - MAX_AHEAD_S) * 1000)
            self._let_go()

    def _let_go(self) -> None:
        """Give the numbers of models to others of which nothing is kept, and that nobody asks
        about: of those it is still said when they were seen last."""
        oldest_s = self._sketches.oldest_s
        for model in sorted(self._gateways.unspoken() - self._asked):
            if self._totals.ends_s[self._gateways.models[model]] <= oldest_s:
                self._totals.clear(self._gateways.let_go(model))
                self._kinds.pop(model, None)
        self._asked.clear()


def _stats(
    sums: Sequence[int], last_ms: int | None, now_ms: int, ttft_ms: float | None,
    tpot_ms: float | None,
) -> WindowStats:  # fmt: skip
    """sums: covered seconds, and COUNTS."""
    covered_s, arrivals, completions, failures, refused, attained, inputs, _, outputs = sums
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
    )


def _lengths(seen: Seen, model: int, sums: Sequence[int]) -> LengthsSeen:
    """sums: covered seconds, and COUNTS."""
    _, arrivals, completions, _, _, _, inputs, _, outputs = sums
    return LengthsSeen(
        seen.sketch("input_lengths", model),
        seen.sketch("output_lengths", model),
        inputs / arrivals if arrivals else None,
        outputs / completions if completions else None,
        arrivals,
        completions,
        seen.sketch("shapes", model),
        seen.sketch("classes", model),
    )
