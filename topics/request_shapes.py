"""Shapes of requests: input and output length together, in classes that everyone shares.

Owns the grid on which a producer counts requests whose output is not known yet (what it expects
of it), and which of several kinds of requests a length is nearest to. Both lengths are classed by
the same powers of 1.62 from 4 tokens to a million, and a shape is one bucket of a sketch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topics.sketch import LOWEST

CLASSES = 26
"""Classes of one length; CLASSES x CLASSES buckets are what a sketch has room for."""

_SHORTEST, _LONGEST = 4.0, 2.0**20
_LOG_STEP = math.log(_LONGEST / _SHORTEST) / CLASSES


def shape_of(input_tokens: float, output_tokens: float) -> int:
    """The bucket of a request with these lengths (finite, >= 0)."""
    return LOWEST + CLASSES * _class(input_tokens) + _class(output_tokens)


def lengths_of(shape: int) -> tuple[float, float]:
    """(input, output) tokens that stand for the bucket `shape`: within 27% of all it holds, apart
    from those below 4 tokens and above a million."""
    row, column = divmod(shape - LOWEST, CLASSES)
    return _middle(row), _middle(column)


def nearest(kinds: Sequence[tuple[float, float]], input_tokens: float, output_tokens: float) -> int:
    """Index of the one of `kinds` (input, output tokens; at least one) whose lengths are nearest,
    by their ratios; the first of several."""
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
