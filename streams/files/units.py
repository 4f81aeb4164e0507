"""Parsers of quantities as users write them: durations, shares, counts.

Each parser takes the value from YAML (str, int, float, ...) and returns a plain number or text.
InvalidValue: the value is not allowed. A parser also describes what it accepts as a JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Generic, TypeVar

from autoscaler.domain.validation import InvalidValue, finite, whole

T = TypeVar("T")

_DURATION = re.compile(r"\s*([+-]?[0-9]*\.?[0-9]+)\s*(ms|s|m|h|d)\Z")
_BANDWIDTH = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(Gbit/s|Gbps|GB/s)\Z")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SHARE = 'a fraction from 0 to 1, or "0%" to "100%"'
_LONGEST_DURATION = "30d"
_UNMET = 1e5
"""Bounds from this size on only protect calculations from overflow."""


@dataclass(frozen=True, slots=True)
class Parser(Generic[T]):
    """Parses one value of a file. form: the allowed text in a few words. schema: the same as a JSON
    Schema; it may accept more than `parse`, but not less.
    """

    parse: Callable[[object], T]
    form: str
    schema: Mapping[str, object]

    def __call__(self, value: object) -> T:
        return self.parse(value)


def _duration_schema() -> dict[str, object]:
    return {"type": "string", "pattern": r"^\s*[0-9]*\.?[0-9]+\s*(ms|s|m|h|d)$"}


def _seconds(value: object) -> float:
    match = _DURATION.match(value) if isinstance(value, str) else None
    if not match:
        raise InvalidValue("", value, 'a duration with its unit, such as "500ms", "2s" or "10m"')
    return float(match[1]) * _UNIT_S[match[2]]


def _positive_seconds(value: object) -> float:
    seconds = _seconds(value)
    if not 0.0 < seconds <= _seconds(_LONGEST_DURATION):
        raise InvalidValue("", value, f"a duration above 0 and up to {_LONGEST_DURATION}")
    return seconds


duration_s = Parser(_positive_seconds, "duration", _duration_schema())
"""A duration in seconds, written "500ms", "2s", "10m" or "1h" (the unit is required); positive."""


def duration_between(low: str, high: str) -> Parser[float]:
    """Parser of durations from `low` to `high`, which are given as text ("10s")."""

    def parse(value: object) -> float:
        seconds = _seconds(value)
        if not _seconds(low) <= seconds <= _seconds(high):
            raise InvalidValue("", value, f"a duration from {low} to {high}")
        return seconds

    return Parser(parse, f"duration, {low} to {high}", _duration_schema())


def duration_up_to(high: str) -> Parser[float]:
    """Parser of positive durations up to `high`."""

    def parse(value: object) -> float:
        seconds = _positive_seconds(value)
        if seconds > _seconds(high):
            raise InvalidValue("", value, f"a duration of up to {high}")
        return seconds

    return Parser(parse, f"duration, up to {high}", _duration_schema())


def whole_seconds_between(low: str, high: str) -> Parser[int]:
    """Parser of durations of whole seconds from `low` to `high`."""
    between = duration_between(low, high)

    def parse(value: object) -> int:
        seconds = between(value)
        if seconds != int(seconds):
            raise InvalidValue("", value, "whole seconds")
        return int(seconds)

    return Parser(parse, f"whole seconds, {low} to {high}", _duration_schema())


def named_duration_s(option: str, text: str) -> float:
    """The duration of a command-line option, in seconds; InvalidValue names the option."""
    try:
        return duration_s(text)
    except InvalidValue as error:
        raise InvalidValue(option, text, error.allowed) from None


def _bandwidth(value: object) -> float:
    match = _BANDWIDTH.match(value) if isinstance(value, str) else None
    allowed = 'a bandwidth with its unit, such as "100Gbit/s" or "12.5GB/s"'
    if not match:
        raise InvalidValue("", value, allowed)
    gb_s = float(match[1]) / (8.0 if match[2].startswith("Gb") else 1.0)
    if not 0.0 < gb_s <= 1e5:
        raise InvalidValue("", value, "a bandwidth above 0 and up to 100000GB/s")
    return gb_s


bandwidth_gb_s = Parser(
    _bandwidth,
    "bandwidth",
    {"type": "string", "pattern": r"^\s*[0-9]*\.?[0-9]+\s*(Gbit/s|Gbps|GB/s)$"},
)
"""Bandwidth in 1e9 bytes/s, written "100Gbit/s" or "12.5GB/s" (the unit is required)."""


def _fraction(value: object) -> float:
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            return finite("", float(value.strip()[:-1]) / 100.0, 0.0, 1.0)
        except ValueError:
            raise InvalidValue("", value, _SHARE) from None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue("", value, _SHARE)
    if not 0.0 <= value <= 1.0:
        raise InvalidValue("", value, _SHARE)
    return float(value)


_PERCENT_TEXT = {"type": "string", "pattern": r"^\s*[0-9.]+\s*%\s*$"}

share = Parser(
    _fraction, "share", {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, _PERCENT_TEXT]}
)
"""A fraction from 0 to 1, written 0.8 or "80%". 95 is refused; "95%" is accepted."""


def _percentile(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 1.0 < value <= 100.0:
        value = value / 100.0
    fraction = _fraction(value)
    if not 0.5 <= fraction <= 1.0:
        raise InvalidValue("", value, "a percentile from 50 to 100")
    return fraction


percentile = Parser(
    _percentile,
    "percentile, 50 to 100",
    {"anyOf": [{"type": "number", "minimum": 0.5, "maximum": 100}, _PERCENT_TEXT]},
)
"""A percentile from 50 to 100 as a fraction, written 95, "95%" or 0.95."""


def _bounds(low: float, high: float) -> str:
    """The bounds of a number as text, without bounds that users never reach."""
    if high < _UNMET:
        return f"{low:g} to {high:g}"
    if low <= -_UNMET:
        return "any"
    return "above 0" if 0.0 < low < 1.0 / _UNMET else f"from {low:g}"


def count(low: int, high: int) -> Parser[int]:
    """A parser of whole numbers in [low, high]."""

    def parse(value: object) -> int:
        return whole("", value, low, high)  # type: ignore[arg-type]

    form = f"whole number, {_bounds(low, high)}"
    return Parser(parse, form, {"type": "integer", "minimum": low, "maximum": high})


def number(low: float, high: float) -> Parser[float]:
    """A parser of finite numbers in [low, high]."""

    def parse(value: object) -> float:
        return finite("", value, low, high)  # type: ignore[arg-type]

    form = f"number, {_bounds(low, high)}"
    return Parser(parse, form, {"type": "number", "minimum": low, "maximum": high})


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 2000:
        raise InvalidValue("", value, "a text of 1 to 2000 characters")
    return value


text = Parser(_text, "text", {"type": "string", "minLength": 1, "maxLength": 2000})
"""A non-empty text of at most 2000 characters."""


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("", value, "true or false")
    return value


flag = Parser(_flag, "true or false", {"type": "boolean"})
"""true or false."""


def texts(value: object, example: str = "[us-east]") -> tuple[str, ...]:
    """A list of texts; the error shows `example`."""
    if not isinstance(value, list):
        raise InvalidValue("", value, f"a list such as {example}")
    return tuple(text(entry) for entry in value)


def list_of(each: Parser[T], example: str) -> Parser[tuple[T, ...]]:
    """A parser of lists whose entries `each` parses; the error for another kind shows `example`."""

    def parse(value: object) -> tuple[T, ...]:
        return tuple(each(entry) for entry in texts(value, example))

    return Parser(parse, f"list of {each.form}", {"type": "array", "items": dict(each.schema)})


def word(*allowed: str) -> Parser[str]:
    """Parser of a closed set of words; the error for a misspelt word suggests the nearest word."""

    def parse(value: object) -> str:
        if value not in allowed:
            parts = [one for one in allowed if str(value).lower() in one.split("-")]
            near = parts or get_close_matches(str(value), allowed, n=1, cutoff=0.5)
            nearest = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidValue("", value, " or ".join(allowed) + nearest)
        return str(value)

    return Parser(parse, " or ".join(f"`{one}`" for one in allowed), {"enum": list(allowed)})
