"""Parsers of command-line values that check a value's range."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def number(low: float, high: float) -> Callable[[str], float]:
    """Return a parser of numbers from `low` to `high`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return parse


def whole(low: int) -> Callable[[str], int]:
    """Return a parser of whole numbers from `low` on."""

    def parse(text: str) -> int:
        if not text.isascii() or not text.isdigit() or int(text) < low:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} on")
        return int(text)

    return parse
