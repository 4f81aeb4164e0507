"""Parse quantities as users write them: durations, shares, counts.

Each parser takes the value from YAML (str, int, float, ...) and returns a plain number.
InvalidValue: the value is not allowed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches

from autoscaler.domain.validation import InvalidValue, finite, whole

_DURATION = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+)\s*(ms|s|m|h|d)\Z")
_BANDWIDTH = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(Gbit/s|Gbps|GB/s)\Z")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration_s(value: object) -> float:
    """Duration in seconds, written "500ms", "2s", "10m" or "1h" (the unit is required); positive
    and finite."""
    seconds = _seconds(value)
    if not 0.0 < seconds <= 30 * 86400.0:
        raise InvalidValue("", value, "a duration above 0 and up to 30d")
    return seconds


def duration_between(low: str, high: str) -> Callable[[object], float]:
    """Parser of durations from `low` to `high`, which are given as text ("10s")."""

    def parse(value: object) -> float:
        seconds = _seconds(value)
        if not duration_s(low) <= seconds <= duration_s(high):
            raise InvalidValue("", value, f"a duration from {low} to {high}")
        return seconds

    return parse


def _seconds(value: object) -> float:
    match = _DURATION.match(value) if isinstance(value, str) else None
    if not match:
        raise InvalidValue("", value, 'a duration with its unit, such as "500ms", "2s" or "10m"')
    return float(match[1]) * _UNIT_S[match[2]]


def named_duration_s(option: str, text: str) -> float:
    """The duration of a command-line option, in seconds; InvalidValue names the option."""
    try:
        return duration_s(text)
    except InvalidValue as error:
        raise InvalidValue(option, text, error.allowed) from None


def bandwidth_gb_s(value: object) -> float:
    """Bandwidth in 1e9 bytes/s, written "100Gbit/s" or "12.5GB/s" (the unit is required); above
    0."""
    match = _BANDWIDTH.match(value) if isinstance(value, str) else None
    allowed = 'a bandwidth with its unit, such as "100Gbit/s" or "12.5GB/s"'
    if not match:
        raise InvalidValue("", value, allowed)
    found = float(match[1]) / (8.0 if match[2].startswith("Gb") else 1.0)
    if not 0.0 < found <= 1e5:
        raise InvalidValue("", value, "a bandwidth above 0 and up to 100000GB/s")
    return found


def share(value: object) -> float:
    """A fraction from 0 to 1, written 0.8 or "80%". 95 is refused; "95%" is accepted."""
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return finite("", float(value.strip()[:-1]) / 100.0, 0.0, 1.0)
        except ValueError:
            raise InvalidValue("", value, 'a fraction from 0 to 1, or "0%" to "100%"') from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue("", value, 'a fraction from 0 to 1, or "0%" to "100%"')
    if not 0.0 <= value <= 1.0:
        raise InvalidValue("", value, 'a fraction from 0 to 1, or "0%" to "100%"')
    return float(value)


def percentile(value: object) -> float:
    """A percentile from 50 to 100, written 95, "95%" or 0.95."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1.0 < value <= 100.0:
        value = value / 100.0
    found = share(value)
    if not 0.5 <= found <= 1.0:
        raise InvalidValue("", value, "a percentile from 50 to 100")
    return found


def count(low: int, high: int) -> Callable[[object], int]:
    """A parser of whole numbers in [low, high]."""

    def parse(value: object) -> int:
        return whole("", value, low, high)  # type: ignore[arg-type]

    return parse


def number(low: float, high: float) -> Callable[[object], float]:
    """A parser of finite numbers in [low, high]."""

    def parse(value: object) -> float:
        return finite("", value, low, high)  # type: ignore[arg-type]

    return parse


def text(value: object) -> str:
    """A non-empty text of at most 2000 characters."""
    if not isinstance(value, str) or not 0 < len(value) <= 2000:
        raise InvalidValue("", value, "a text of 1 to 2000 characters")
    return value


def flag(value: object) -> bool:
    """Parse true or false."""
    if not isinstance(value, bool):
        raise InvalidValue("", value, "true or false")
    return value


def texts(value: object, example: str = "[us-east]") -> tuple[str, ...]:
    """A list of texts; the error shows `example`."""
    if not isinstance(value, list):
        raise InvalidValue("", value, f"a list such as {example}")
    return tuple(text(entry) for entry in value)


def word(*allowed: str) -> Callable[[object], str]:
    """Parser of a closed set of words; the error for a misspelt word suggests the nearest word."""

    def parse(value: object) -> str:
        if value not in allowed:
            near = get_close_matches(str(value), allowed, n=1, cutoff=0.5)
            nearest = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidValue("", value, " or ".join(allowed) + nearest)
        return str(value)

    return parse
