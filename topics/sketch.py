"""A mergeable latency sketch: counts in logarithmic buckets, quantiles within 2%.

The same idea as DDSketch (VLDB 2019): bucket i holds values in (g^(i-1), g^i] with g = 1.04, so
that a bucket's geometric middle is within 2% of all it holds. Buckets are clamped to a fixed
range, so a sketch is bounded in size whatever arrives.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

GAMMA = 1.04
_LOG_GAMMA = math.log(GAMMA)
LOWEST, HIGHEST = -118, 590  # about 0.01 ms to 3 hours in ms


def bucket_of(value_ms: float) -> int:
    """The bucket that `value_ms` (finite, >= 0) falls into."""
    if value_ms <= 0.0:
        return LOWEST
    return min(HIGHEST, max(LOWEST, math.ceil(math.log(value_ms) / _LOG_GAMMA)))


def middle_ms(bucket: int) -> float:
    """The value in ms that stands for a bucket."""
    return math.exp((bucket - 0.5) * _LOG_GAMMA)


def merge(sketches: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The sketch of everything that `sketches` saw."""
    total: dict[int, int] = {}
    for sketch in sketches:
        for bucket, count in sketch.items():
            total[bucket] = total.get(bucket, 0) + count
    return total


def quantile_ms(sketch: Mapping[int, int], q: float) -> float | None:
    """The q-quantile (0..1) in ms, None for an empty sketch."""
    total = sum(sketch.values())
    if total == 0:
        return None
    rank = max(1, math.ceil(q * total))
    seen = 0
    for bucket in sorted(sketch):
        seen += sketch[bucket]
        if seen >= rank:
            return middle_ms(bucket)
    return middle_ms(max(sketch))
