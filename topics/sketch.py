"""A mergeable latency sketch: counts in logarithmic buckets, quantiles within 2%.

The same idea as DDSketch (VLDB 2019): bucket i holds values in (g^(i-1), g^i] with g = 1.04, so
that a bucket's geometric middle is within 2% of all it holds. Buckets are clamped to a fixed
range, so a sketch is bounded in size whatever arrives.

On the wire a sketch is packed: pairs of unsigned 16-bit numbers, little-endian, bucket - LOWEST and
count, in base64. A count above 65,535 is several pairs.
"""

from __future__ import annotations

import binascii
import math
import struct
from collections.abc import Iterable, Mapping

from topics.checks import InvalidRecord

GAMMA = 1.04
_LOG_GAMMA = math.log(GAMMA)
LOWEST, HIGHEST = -118, 590  # about 0.01 ms to 3 hours in ms
MOST_COUNT = 10_000_000  # in a bucket of one record
_MOST = 65_535
_PAIR = struct.Struct("<HH")
PAIR_BYTES = _PAIR.size


def bucket_of(value_ms: float) -> int:
    """The bucket that `value_ms` (finite, >= 0) falls into."""
    if value_ms <= 0.0:
        return LOWEST
    return min(HIGHEST, max(LOWEST, math.ceil(math.log(value_ms) / _LOG_GAMMA)))


def middle_ms(bucket: int) -> float:
    """The value in ms that stands for a bucket."""
    return math.exp((bucket - 0.5) * _LOG_GAMMA)


def pack(sketch: Mapping[int, int]) -> bytes:
    """`sketch` as pairs of (bucket - LOWEST, count)."""
    found = []
    for bucket, count in sketch.items():
        full, rest = divmod(count, _MOST)
        found += [_PAIR.pack(bucket - LOWEST, _MOST)] * full
        found.append(_PAIR.pack(bucket - LOWEST, rest))
    return b"".join(found)


def to_text(packed: bytes) -> str:
    """The wire form of a packed sketch."""
    return binascii.b2a_base64(packed, newline=False).decode()


def from_text(field: str, text: str) -> bytes:
    """The packed sketch in `text`; InvalidRecord names `field`. Buckets are not looked at."""
    try:
        packed = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise InvalidRecord(field, text, "base64") from None
    if len(packed) % _PAIR.size:
        raise InvalidRecord(field, f"{len(packed)} bytes", "pairs of bucket and count")
    return packed


def unpack(packed: bytes) -> dict[int, int]:
    """The sketch whose pairs `packed` holds."""
    found: dict[int, int] = {}
    for bucket, count in _PAIR.iter_unpack(packed):
        found[bucket + LOWEST] = found.get(bucket + LOWEST, 0) + count
    return found


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
