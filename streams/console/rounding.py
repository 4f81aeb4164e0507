"""Rounded numbers for the page.

Four significant digits are more than a curve shows. If a number did not change visibly, its rounded
value is equal, so an event does not repeat it.
"""

from __future__ import annotations

import math


def rounded(value: float | None) -> float | None:
    """`value` with four significant digits; None for None and for values without a JSON form."""
    if value is None or not math.isfinite(value):
        return None
    if value == 0.0:
        return 0.0
    return round(value, 3 - math.floor(math.log10(abs(value))))
