"""Parse times of a trace: dates and numbers, and the unit of the numbers.

The unit comes from the column name (`timestamp_ms`), the format, the user, or the values. A number
is a date if it is a time in the years 2000 to 2100 in s, ms, us or ns. If both seconds and
milliseconds are plausible, the user must choose.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

MS_OF = {"s": 1e3, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
"""Milliseconds of one unit."""
UNIT_WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_ENDINGS = {
    "s": "s", "sec": "s", "secs": "s", "seconds": "s", "ms": "ms", "msec": "ms", "millis": "ms",
    "milliseconds": "ms", "us": "us", "usec": "us", "micros": "us", "microseconds": "us",
    "ns": "ns", "nsec": "ns", "nanos": "ns", "nanoseconds": "ns",
}  # fmt: skip
_EPOCH_MS = 946_684_800_000.0, 4_102_444_800_000.0  # start of 2000 and of 2100
_LEAST_SPAN_S = 10.0
_MOST_REQ_PER_S, _MOST_GAP_S = 1000.0, 60.0
_ENOUGH = 100
DATE_EXAMPLE = "2023-11-16 18:15:46.68"


class UnclearUnit(ValueError):
    """The numbers are plausible in several units."""


@dataclass(frozen=True, slots=True)
class Clock:
    """Conversion of a column's numbers to ms. dated: whether the numbers count from 1970."""

    unit: str
    dated: bool


def unit_of_name(name: str) -> str:
    """Unit suffix of a column name (`delay_ms`), else ""."""
    stem, _, ending = name.rpartition("_")
    return _ENDINGS.get(ending, "") if stem else ""


def without_unit(name: str) -> str:
    """The name of a column without the unit at its end."""
    return name.rpartition("_")[0] if unit_of_name(name) else name


def date_ms(value: object) -> float | None:
    """Milliseconds since 1970 of a date, in UTC if the date has no offset; None if `value` is not a
    date."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    try:
        return 1000.0 * value.replace(tzinfo=value.tzinfo or UTC).timestamp()
    except (OverflowError, ValueError):
        return None


def clock_of(values: Sequence[float], unit: str, certain: bool) -> Clock:
    """Conversion of plain numbers, given in file order.

    unit: unit from the format, the user or the column name; "" if none. certain: whether the unit
    comes from the user or the column name. UnclearUnit: the values do not determine the unit.
    """
    low, high = min(values), max(values)
    if unit and certain:
        return Clock(unit, low * MS_OF[unit] >= _EPOCH_MS[0])
    for one, factor in MS_OF.items():
        if _EPOCH_MS[0] <= low * factor and high * factor <= _EPOCH_MS[1]:
            return Clock(one, dated=True)
    fitting = [one for one in ("s", "ms") if _plausible(high - low, len(values), one)]
    if unit:
        gap_s = (high - low) * MS_OF[unit] / 1e3 / max(1, len(values) - 1)
        if len(values) >= _ENOUGH and gap_s < 1.0 / _MOST_REQ_PER_S and fitting:
            raise UnclearUnit
        return Clock(unit, dated=False)
    if len(fitting) == 1:
        return Clock(fitting[0], dated=False)
    if high - low < 1000.0 * _LEAST_SPAN_S:
        return Clock("s", dated=False)  # in ms, the whole trace would be too short
    raise UnclearUnit


def _plausible(span: float, count: int, unit: str) -> bool:
    """Whether `count` requests over `span` (in `unit`) is a plausible rate for a service."""
    span_s = span * MS_OF[unit] / 1e3
    gap_s = span_s / max(1, count - 1)
    return span_s >= _LEAST_SPAN_S and 1.0 / _MOST_REQ_PER_S <= gap_s <= _MOST_GAP_S


def finite_number(value: object) -> float | None:
    """`value` as a finite number, or None. Text of a number counts too."""
    if isinstance(value, str):
        if not value.isascii() or len(value) > 40 or "_" in value:
            return None
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None
