"""One second of one model, sums of seconds, and how a record's span falls on seconds.

Owns the counting. Knows nothing of clocks, lateness or duplicates (`windows` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from topics.sketch import quantile_ms
from topics.telemetry import Telemetry

FIELDS = (
    "arrivals",
    "completions",
    "failures",
    "refused",
    "attained",
    "input_tokens_arrived",
    "input_tokens",
    "output_tokens",
)
_NO_SKETCH: Mapping[int, int] = {}


@dataclass(frozen=True, slots=True)
class Part:
    """What one record contributes to one second: counts in the order of FIELDS, two sketches."""

    values: tuple[int, ...]
    ttft: Mapping[int, int]
    tpot: Mapping[int, int]


@dataclass(slots=True)
class Second:
    """All that was seen in one second."""

    values: list[int] = field(default_factory=lambda: [0] * len(FIELDS))
    ttft: dict[int, int] = field(default_factory=dict)
    tpot: dict[int, int] = field(default_factory=dict)

    def add(self, part: Part) -> None:
        """Count `part` in."""
        self.values = [old + new for old, new in zip(self.values, part.values, strict=True)]
        _merge(self.ttft, part.ttft, 1)
        _merge(self.tpot, part.tpot, 1)


@dataclass(slots=True)
class Sums:
    """Running sums of the seconds before `end_s`. covered_s: seconds with any report."""

    end_s: int
    covered_s: int = 0
    values: list[int] = field(default_factory=lambda: [0] * len(FIELDS))
    ttft: dict[int, int] = field(default_factory=dict)
    tpot: dict[int, int] = field(default_factory=dict)

    def add(self, part: Part | Second, sign: int = 1) -> None:
        """Count the contents of `part` in, or out with sign -1."""
        self.values = [o + sign * n for o, n in zip(self.values, part.values, strict=True)]
        _merge(self.ttft, part.ttft, sign)
        _merge(self.tpot, part.tpot, sign)

    def enter(self, bucket: Second) -> None:
        """A second comes into the window."""
        self.covered_s += 1
        self.add(bucket)

    def leave(self, bucket: Second) -> None:
        """A second falls out of the window."""
        self.covered_s -= 1
        self.add(bucket, -1)

    def quantile_ms(self, which: str, q: float) -> float | None:
        """The q-quantile in ms of the "ttft" or "tpot" sketch; None where nothing was seen."""
        return quantile_ms(self.ttft if which == "ttft" else self.tpot, q)


def spread(record: Telemetry, event_ms: int) -> Iterator[tuple[int, Part]]:
    """The seconds that the span ending at `event_ms` touches, each with its share of the counts.

    Shares are in proportion to time, rounded so that they add up exactly; sketches go to the last
    second. A span of 0 ms falls on the second before its end.
    """
    values = tuple(getattr(record, key) for key in FIELDS)
    span = max(1, record.span_ms)
    start = event_ms - span
    first, last = start // 1000, (event_ms - 1) // 1000
    if first == last:
        yield last, Part(values, record.ttft_ms, record.tpot_ms)
        return
    done = tuple(0 for _ in values)
    for second in range(first, last + 1):
        until = min((second + 1) * 1000, event_ms) - start
        upto = tuple(value * until // span for value in values)
        part = tuple(now - before for now, before in zip(upto, done, strict=True))
        done = upto
        at_end = second == last
        yield (
            second,
            Part(
                part,
                record.ttft_ms if at_end else _NO_SKETCH,
                record.tpot_ms if at_end else _NO_SKETCH,
            ),
        )


def _merge(total: dict[int, int], more: Mapping[int, int], sign: int) -> None:
    for bucket, count in more.items():
        left = total.get(bucket, 0) + sign * count
        if left:
            total[bucket] = left
        else:
            total.pop(bucket, None)
