"""Shapes of requests: classes of input and output length together. Gateways count requests by shape
at their arrival, with the expected output length. The classes of both lengths are bounded by powers
of 1.62 from 4 tokens to 2^20, and a shape is one bucket of a sketch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topics.sketch import LOWEST

CLASSES = 26
"""Number of classes of each length; CLASSES x CLASSES buckets fit into a sketch."""

_SHORTEST, _LONGEST = 4.0, 2.0**20
_LOG_STEP = math.log(_LONGEST / _SHORTEST) / CLASSES


def shape_of(input_tokens: float, output_tokens: float) -> int:
    """The shape (bucket number) of a request with these lengths (finite, >= 0)."""
    return LOWEST + CLASSES * _class(input_tokens) + _class(output_tokens)


def shape_lengths(shape: int) -> tuple[float, float]:
    """Representative (input, output) tokens of the bucket `shape`. They are within 27% of every
    request in the bucket, except below 4 tokens and above 2^20."""
    row, column = divmod(shape - LOWEST, CLASSES)
    return _middle(row), _middle(column)


def nearest_kind(
    kinds: Sequence[tuple[float, float]], input_tokens: float, output_tokens: float
) -> int:
    """Index of the kind in `kinds` (input, output tokens; at least one kind) with the nearest
    lengths, by the ratios of both lengths. If several kinds are equally near, the first is
    returned."""
    read, written = math.log(max(1.0, input_tokens)), math.log(max(1.0, output_tokens))

    def distance(index: int) -> float:
        kind = kinds[index]
        return (math.log(max(1.0, kind[0])) - read) ** 2 + (
            math.log(max(1.0, kind[1])) - written
        ) ** 2

    return min(range(len(kinds)), key=distance)


def _class(tokens: float) -> int:
    if tokens <= _SHORTEST:
        return 0
    return min(CLASSES - 1, int(math.log(tokens / _SHORTEST) / _LOG_STEP))


def _middle(index: int) -> float:
    return _SHORTEST * math.exp((index + 0.5) * _LOG_STEP)
