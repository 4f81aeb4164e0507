"""One second of one model, sums of seconds, and how a record's span falls on seconds.

Owns the counting. Knows nothing of clocks, lateness or duplicates (`windows` does).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeAlias

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
SKETCHES = ("ttft_ms", "tpot_ms", "input_lengths", "output_lengths")

Sketch = Mapping[int, int]
_ZEROS = (0,) * len(FIELDS)
_NONE = array("q")
_NO_SKETCHES = (_NONE,) * len(SKETCHES)

Packed: TypeAlias = "array[int]"
"""A sketch as bucket, count, bucket, count: a third of a dict's memory for a second's few."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one record contributes to one second: counts of FIELDS, sketches of SKETCHES."""

    values: tuple[int, ...]
    sketches: tuple[Packed, ...]


@dataclass(slots=True)
class Second:
    """All that was seen in one second. Its tuples are replaced, never changed: an idle second
    shares them with all others and costs 56 bytes."""

    values: tuple[int, ...] = _ZEROS
    sketches: tuple[Packed, ...] = _NO_SKETCHES

    def add(self, part: Part) -> None:
        """Count `part` in."""
        if part.values != _ZEROS:
            self.values = tuple(o + n for o, n in zip(self.values, part.values, strict=True))
        if any(part.sketches):
            self.sketches = tuple(
                _merged(old, new) for old, new in zip(self.sketches, part.sketches, strict=True)
            )


@dataclass(slots=True)
class Sums:
    """Running sums of the seconds before `end_s`. covered_s: seconds with any report."""

    end_s: int
    covered_s: int = 0
    values: list[int] = field(default_factory=lambda: [0] * len(FIELDS))
    sketches: tuple[dict[int, int], ...] = field(
        default_factory=lambda: tuple({} for _ in SKETCHES)
    )

    def add(self, part: Part | Second, sign: int = 1) -> None:
        """Count the contents of `part` in, or out with sign -1."""
        if part.values is not _ZEROS:
            self.values = [o + sign * n for o, n in zip(self.values, part.values, strict=True)]
        for total, more in zip(self.sketches, part.sketches, strict=True):
            if more:
                _merge(total, more, sign)

    def enter(self, bucket: Second) -> None:
        """A second comes into the window."""
        self.covered_s += 1
        self.add(bucket)

    def leave(self, bucket: Second) -> None:
        """A second falls out of the window."""
        self.covered_s -= 1
        self.add(bucket, -1)

    def sketch(self, name: str) -> dict[int, int]:
        """The running sketch called `name`, one of SKETCHES."""
        return self.sketches[SKETCHES.index(name)]

    def quantile_ms(self, name: str, q: float) -> float | None:
        """The q-quantile of the sketch called `name`; None where nothing was seen."""
        return quantile_ms(self.sketch(name), q)


def spread(record: Telemetry, event_ms: int) -> Iterator[tuple[int, Part]]:
    """The seconds that the span ending at `event_ms` touches, each with its share of the counts.

    Shares are in proportion to time, rounded so that they add up exactly; sketches go to the last
    second. A span of 0 ms falls on the second before its end.
    """
    values = tuple(getattr(record, key) for key in FIELDS)
    sketches = tuple(_packed(getattr(record, key)) for key in SKETCHES)
    span = max(1, record.span_ms)
    start = event_ms - span
    first, last = start // 1000, (event_ms - 1) // 1000
    if first == last:
        yield last, Part(values, sketches)
        return
    done = _ZEROS
    for second in range(first, last + 1):
        until = min((second + 1) * 1000, event_ms) - start
        upto = tuple(value * until // span for value in values)
        part = tuple(now - before for now, before in zip(upto, done, strict=True))
        done = upto
        yield second, Part(part, sketches if second == last else _NO_SKETCHES)


def _packed(sketch: Sketch) -> Packed:
    return array("q", chain.from_iterable(sketch.items())) if sketch else _NONE


def _merged(old: Packed, new: Packed) -> Packed:
    """Both together. Either may come back itself: no sketch of a second is ever changed."""
    if not new:
        return old
    if not old:
        return new
    total: dict[int, int] = {}
    _merge(total, old, 1)
    _merge(total, new, 1)
    return _packed(total)


def _merge(total: dict[int, int], more: Packed, sign: int) -> None:
    pairs = iter(more)
    for bucket, count in zip(pairs, pairs, strict=True):
        left = total.get(bucket, 0) + sign * count
        if left:
            total[bucket] = left
        else:
            total.pop(bucket, None)
