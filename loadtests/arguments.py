"""Values of command lines, checked as they are read."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def number(low: float, high: float) -> Callable[[str], float]:
    """Reads a number from `low` to `high`."""

    def parse(text: str) -> float:
        value = float(text)
        if not math.isfinite(value) or not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not a number from {low:g} to {high:g}")
        return value

    return parse
