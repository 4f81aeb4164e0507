"""Quantities of Kubernetes, such as "8", "1k", "1Ki", "1500m" and "1e3". Pure.

The server stores a quantity in its shortest form, so 1000 devices become "1k".
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction

_FORM = re.compile(
    r"(?P<number>[+-]?(?:\d+\.?\d*|\.\d+))(?:(?P<unit>[KMGTPE]i|[numkMGTPE])|[eE](?P<power>[+-]?\d{1,2}))?",
    re.ASCII,
)
_UNITS = {
    **{unit: Fraction(1000) ** power for power, unit in enumerate("num", -3)},
    **{unit: Fraction(1000) ** power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": Fraction(1024) ** power for power, unit in enumerate("KMGTPE", 1)},
}


def parse_quantity(value: object) -> Fraction:
    """The number that `value` denotes. Raises ValueError if it is no quantity."""
    match = _FORM.fullmatch(str(value)) if isinstance(value, str | int | float) else None
    if match is None or isinstance(value, bool):
        raise ValueError(f"{value!r} is no quantity")
    power = Fraction(10) ** int(match["power"] or 0)
    return Fraction(match["number"].rstrip(".")) * _UNITS.get(match["unit"] or "", power)


def device_counts(resources: Mapping[str, object]) -> dict[str, int]:
    """Number of devices by resource name: extended resources, whose names contain a domain. Raises
    ValueError if a number cannot be read."""
    return {
        name: math.ceil(parse_quantity(count)) for name, count in resources.items() if "/" in name
    }
