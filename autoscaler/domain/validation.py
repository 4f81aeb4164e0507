"""Checks of values, and the error that names the field, the value and the allowed values."""

from __future__ import annotations

import math

from topics.checks import InvalidValue as InvalidValue


def finite(field: str, value: float, low: float = -math.inf, high: float = math.inf) -> float:
    """Return `value` as a float if it is a finite number in [low, high], else raise
    InvalidValue."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue(field, value, f"a number from {low:g} to {high:g}")
    try:
        number = float(value)
    except OverflowError:  # raised for integers of more than 308 digits
        number = math.inf
    if not math.isfinite(number) or not low <= number <= high:
        raise InvalidValue(field, value, f"a finite number from {low:g} to {high:g}")
    return number


def whole(field: str, value: int, low: int, high: int) -> int:
    """Return `value` if it is an integer in [low, high], else raise InvalidValue."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidValue(field, value, f"a whole number from {low} to {high}")
    return value


def one_of(field: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return `value` if it is one of `allowed`, else raise InvalidValue."""
    if value not in allowed:
        raise InvalidValue(field, value, " or ".join(allowed))
    return value
