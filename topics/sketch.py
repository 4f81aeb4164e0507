"""A mergeable latency sketch: counts in logarithmic buckets, quantiles within 2%.

The method is DDSketch (VLDB 2019): bucket i holds values in (g^(i-1), g^i] with g = 1.04, so that
the geometric middle of a bucket is within 2% of every value in the bucket. Bucket numbers are
limited to a fixed range, which bounds the size of a sketch.

On the wire, the sketches of a record are one text of cells. A cell is four characters: two digits
for its place and two for its count, in base 92 with the higher digit first. The digits are the
printable ASCII characters that JSON does not escape, in order. The place is bucket - LOWEST, plus
WIDTH for each preceding sketch. A count above `MOST_IN_CELL` takes several cells.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from topics.checks import InvalidValue

GAMMA = 1.04
_LOG_GAMMA = math.log(GAMMA)
LOWEST, HIGHEST = -118, 590  # bucket numbers: values from about 0.01 ms to 3 hours
WIDTH = HIGHEST - LOWEST + 1
MOST_COUNT = 10_000_000  # maximum count of a bucket in a record
DIGITS = "".join(chr(code) for code in range(33, 127) if chr(code) not in '"\\')
NUMBERS = tuple(high + low for high in DIGITS for low in DIGITS)
"""The wire text of each number from 0, two digits in base 92."""
MOST_IN_CELL = len(NUMBERS) - 1
CELL_CHARS = 4
_VALUES = {text: number for number, text in enumerate(NUMBERS)}


def bucket_of(value_ms: float) -> int:
    """The bucket of `value_ms` (finite, >= 0)."""
    if value_ms <= 0.0:
        return LOWEST
    return min(HIGHEST, max(LOWEST, math.ceil(math.log(value_ms) / _LOG_GAMMA)))


def bucket_value_ms(bucket: int) -> float:
    """The representative value of a bucket, in ms."""
    return math.exp((bucket - 0.5) * _LOG_GAMMA)


def sketches_to_text(sketches: Iterable[Mapping[int, int]]) -> str:
    """The wire form of `sketches`. The position of each sketch identifies it."""
    return "".join([NUMBERS[number] for number in to_numbers(sketches)])


def to_numbers(sketches: Iterable[Mapping[int, int]]) -> list[int]:
    """The cells of `sketches` as a list of numbers: place, count, place, count, ..."""
    found: list[int] = []
    for number, sketch in enumerate(sketches):
        first = WIDTH * number - LOWEST
        for bucket, count in sketch.items():
            while count >= MOST_IN_CELL:
                found += (first + bucket, MOST_IN_CELL)
                count -= MOST_IN_CELL
            found += (first + bucket, count)
    return found


def is_cells(text: str) -> bool:
    """Whether `text` is the wire form of cells."""
    return len(text) % CELL_CHARS == 0 and not text.strip(DIGITS)


def sketches_from_text(field: str, text: object, sketches: int) -> list[dict[int, int]]:
    """The first `sketches` sketches in `text`; a writer of another version may write fewer or more.
    Raises InvalidValue, which names `field`, if they are invalid."""
    found: list[dict[int, int]] = [{} for _ in range(sketches)]
    if not isinstance(text, str) or len(text) % CELL_CHARS:
        raise InvalidValue(field, text, f"cells of {CELL_CHARS} characters")
    for at in range(0, len(text), CELL_CHARS):
        place, count = _VALUES.get(text[at : at + 2]), _VALUES.get(text[at + 2 : at + 4])
        if place is None or count is None:
            raise InvalidValue(field, text[at : at + 4], "digits of base 92")
        number, bucket = divmod(place, WIDTH)
        if number < sketches:
            seen = found[number]
            seen[bucket + LOWEST] = seen.get(bucket + LOWEST, 0) + count
    return found


def merge(sketches: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """The sum of `sketches`, bucket by bucket."""
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
            return bucket_value_ms(bucket)
    return bucket_value_ms(max(sketch))
