"""Latency histograms of engines, as Prometheus answers them, and their part of telemetry.

An engine counts each request in the bucket of its latency. Within a bucket the requests are assumed
to be spread evenly, so a share of requests within a limit is known only to the requests of the
bucket that contains the limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from topics.sketch import bucket_of

TTFT, TPOT, TOKEN, WHOLE = "ttft", "tpot", "token", "whole"
"""Marks of the histograms: time to first token, mean time per output token of each request, time of
each token, and time of the whole request."""
_PARTS = 32
"""Points into which the requests of a bucket are spread."""
_GOLDEN, _CYCLE = (5.0**0.5 - 1.0) / 2.0, 10**6
_MOST_PER_S = 1e7


@dataclass(frozen=True, slots=True)
class Histogram:
    """Requests per second by latency. bounds_ms: upper bounds of the buckets, ascending; the last
    one is infinite. rates: requests/s in each bucket."""

    bounds_ms: tuple[float, ...]
    rates: tuple[float, ...]

    @property
    def total(self) -> float:
        """Requests/s in all buckets."""
        return math.fsum(self.rates)

    def share_within(self, limit_ms: float) -> float:
        """Share of the requests with a latency of at most `limit_ms`. Requests above the highest
        finite bound count as above the limit. 1 without requests."""
        if self.total <= 0.0:
            return 1.0
        within, low = 0.0, 0.0
        for high, rate in zip(self.bounds_ms, self.rates, strict=True):
            if high <= limit_ms:
                within += rate
            elif math.isfinite(high):
                within += rate * (limit_ms - low) / (high - low)
                break
            low = high
        return min(1.0, within / self.total)

    def bucket_at(self, limit_ms: float) -> tuple[float, float]:
        """(lower, upper bound) in ms of the bucket that contains `limit_ms`."""
        low = 0.0
        for high in self.bounds_ms:
            if limit_ms <= high:
                return low, high
            low = high
        return low, math.inf


def histogram_of(growth: Mapping[float, float], width_s: float) -> Histogram | None:
    """The histogram of cumulative `growth` by upper bound in s, within `width_s`.

    None if it is unknown: no infinite bound, no finite one, or a value that is no growth. Lost
    samples of single buckets may make a sum smaller than the one before it; it is then raised.
    """
    bounds = sorted(growth)
    if len(bounds) < 2 or bounds[-1] != math.inf or not math.isfinite(bounds[-2]):
        return None
    if any(not 0.0 <= value <= _MOST_PER_S * width_s for value in growth.values()):
        return None
    rates, before = [], 0.0
    for bound in bounds:
        now = max(before, growth[bound])
        rates.append((now - before) / width_s)
        before = now
    return Histogram(tuple(1000.0 * bound for bound in bounds), tuple(rates))


def growth_by_mark(vector: Iterable[Mapping[str, Any]], mark: str) -> dict[str, dict[float, float]]:
    """Growth by upper bound for each value of the label `mark`. Samples without a bound or number
    make their histogram unknown (NaN)."""
    found: dict[str, dict[float, float]] = {}
    for sample in vector:
        labels = sample.get("metric", {})
        name = str(labels.get(mark, ""))
        try:
            bound, value = float(labels["le"]), float(sample["value"][1])
        except (KeyError, IndexError, TypeError, ValueError):
            bound, value = math.inf, math.nan
        known = found.setdefault(name, {})
        known[bound] = known.get(bound, 0.0) + value
    return found


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of one model. ttft: time to first token, or of the whole request for pooling
    models. tpot: time per output token; None if it is unknown, or for pooling models."""

    ttft: Histogram
    tpot: Histogram | None = None


def latencies_of(
    growth: Mapping[str, Mapping[float, float]], width_s: float, pooling: bool
) -> Latencies | None:
    """The latencies in the answers `growth`; None without a histogram of the first token. The mean
    time per token of each request counts, or without it the time of each token."""
    made = {mark: histogram_of(values, width_s) for mark, values in growth.items()}
    first = made.get(WHOLE if pooling else TTFT)
    if first is None:
        return None
    return Latencies(first, None if pooling else made.get(TPOT) or made.get(TOKEN))


@dataclass(slots=True)
class LatencyMeter:
    """Turns rates of latencies into whole requests. Fractions are added to the next span, so no
    request is lost. ttft_ms, tpot_ms: limits of the SLO."""

    ttft_ms: float
    tpot_ms: float
    pooling: bool = False
    _carried: dict[tuple[str, int], float] = field(default_factory=dict)
    _spread: dict[tuple[str, int], int] = field(default_factory=dict)
    _attained: float = 0.0

    def counts(self, seen: Latencies, span_s: float) -> dict[str, Any]:
        """The telemetry fields of `span_s` seconds: latency sketches, and, if every limit can be
        judged, completions and attained requests. A request attains its SLO within both limits; the
        smaller of both shares is taken, because late requests are usually late in both."""
        first = self._sketch("ttft", seen.ttft, 1.0, span_s)
        found: dict[str, Any] = {"ttft_ms": first}
        share = seen.ttft.share_within(self.ttft_ms)
        if not self.pooling:
            if seen.tpot is None:
                return found
            if seen.tpot.total > 0.0:
                scale = seen.ttft.total / seen.tpot.total
                found["tpot_ms"] = self._sketch("tpot", seen.tpot, scale, span_s)
            share = min(share, seen.tpot.share_within(self.tpot_ms))
        completed = sum(first.values())
        self._attained += completed * share
        found["completions"], found["attained"] = completed, math.floor(self._attained + 1e-9)
        self._attained -= found["attained"]
        return found

    def resolution(self, seen: Latencies) -> str:
        """Text on the buckets that contain the limits, within which attainment is interpolated."""
        judged = [("TTFT", self.ttft_ms, seen.ttft)]
        if seen.tpot is not None:
            judged.append(("TPOT", self.tpot_ms, seen.tpot))
        return ", ".join(
            f"{name} limit {limit:g} ms is in a bucket from {low:g} to {high:g} ms"
            for name, limit, histogram in judged
            for low, high in (histogram.bucket_at(limit),)
        )

    def _sketch(self, name: str, seen: Histogram, scale: float, span_s: float) -> dict[int, int]:
        sketch: dict[int, int] = {}
        low = 0.0
        for place, (high, rate) in enumerate(zip(seen.bounds_ms, seen.rates, strict=True)):
            exact = rate * scale * span_s + self._carried.get((name, place), 0.0)
            count = math.floor(exact + 1e-9)
            self._carried[name, place] = exact - count
            # Nothing is known beyond the highest finite bound.
            width = high - low if math.isfinite(high) else 0.05 * low
            parts = min(count, _PARTS)
            first = self._spread.get((name, place), 0)
            self._spread[name, place] = (first + parts) % _CYCLE
            for part in range(parts):
                # Points of the golden ratio are spread evenly, however few each span has.
                bucket = bucket_of(low + width * ((first + part + 0.5) * _GOLDEN % 1.0))
                own = count * (part + 1) // parts - count * part // parts
                sketch[bucket] = sketch.get(bucket, 0) + own
            low = high
        return sketch
