"""Find the end of a JSON value with compiled code that builds no objects.

The scan accepts a subset of JSON: no spaces, no escapes, ASCII only, bounded number length and
depth. It accepts nothing that orjson would reject.

Every function reads from `at` to `end` inclusive. `end` is the position of the outermost closing
brace, which stops every scan. Compiled code checks no bounds, so each look-ahead relies on that
brace.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from autoscaler.performance.numba_decorators import compiled

_QUOTE, _COMMA, _COLON, _BACKSLASH = b'",:\\'
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST = b"{}[]"
_ZERO, _NINE, _PLUS, _MINUS, _POINT, _SMALL_E, _LARGE_E = b"09+-.eE"
_LONGEST = 100  # digits before the point: such a number is finite with any exponent of two digits
_DEEPEST = 32

_Text = NDArray[np.uint8]


@compiled
def after_text(data: _Text, at: int, end: int) -> int:
    """Position after the plain ASCII text that begins at `at`; -1 if there is none."""
    if data[at] != _QUOTE:
        return -1
    at += 1
    while at < end and data[at] != _QUOTE:
        if data[at] == _BACKSLASH or data[at] < 32 or data[at] > 126:
            return -1
        at += 1
    return at + 1 if at < end else -1


@compiled
def after_word(data: _Text, at: int, end: int) -> int:
    """Position after the word true, false or null that begins at `at`; -1 if there is none."""
    for word in (b"true", b"false", b"null"):
        if at + len(word) <= end:
            same = True
            for place in range(len(word)):
                same = same and data[at + place] == word[place]
            if same:
                return at + len(word)
    return -1


@compiled
def after_digits(data: _Text, at: int) -> int:
    """Position after the digits that begin at `at`; `at` if no digit begins there."""
    while _ZERO <= data[at] <= _NINE:
        at += 1
    return at


@compiled
def after_number(data: _Text, at: int) -> int:
    """Position after the number that begins at `at`; -1 if no number begins there."""
    first = at + 1 if data[at] == _MINUS else at
    at = after_digits(data, first)
    digits = at - first
    if digits < 1 or digits > _LONGEST or (digits > 1 and data[first] == _ZERO):
        return -1
    if data[at] == _POINT:
        first = at + 1
        at = after_digits(data, first)
        if at == first:
            return -1
    if data[at] == _SMALL_E or data[at] == _LARGE_E:
        at += 1
        first = at + 1 if data[at] == _PLUS or data[at] == _MINUS else at
        at = after_digits(data, first)
        if not 1 <= at - first <= 2:
            return -1
    return at


@compiled
def after_key(data: _Text, at: int, end: int) -> int:
    """Position after the key that begins at `at` and its colon; -1 if there is no key with a
    colon."""
    at = after_text(data, at, end)
    return at + 1 if at >= 0 and data[at] == _COLON else -1


@compiled
def after_value(data: _Text, at: int, end: int) -> int:
    """Position after the value that begins at `at`; -1 if there is no value or it is nested too
    deeply."""
    depth = objects = 0  # a bit per open object (1) or list (0), innermost lowest
    while True:
        first = data[at]
        if first in (_OPEN, _OPEN_LIST):
            if depth == _DEEPEST:
                return -1
            depth += 1
            objects = 2 * objects + int(first == _OPEN)
            at += 1
            if data[at] != (_CLOSE if objects & 1 else _CLOSE_LIST):
                if objects & 1:
                    at = after_key(data, at, end)
                if at < 0:
                    return -1
                continue
        elif first == _QUOTE:
            at = after_text(data, at, end)
        elif first == _MINUS or _ZERO <= first <= _NINE:
            at = after_number(data, at)
        else:
            at = after_word(data, at, end)
        if at < 0:
            return -1
        while depth and at < end and data[at] == (_CLOSE if objects & 1 else _CLOSE_LIST):
            at += 1
            depth -= 1
            objects >>= 1
        if depth == 0:
            return at
        if data[at] != _COMMA:
            return -1
        at += 1
        if objects & 1:
            at = after_key(data, at, end)
        if at < 0:
            return -1
