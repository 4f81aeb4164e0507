"""Field checks for records, and the patterns of ids. All checks raise InvalidValue."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from topics.printable import printable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}\Z")
_COMBO = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+>&-]{0,999}\Z")

MAX_COUNT = 10**12
MAX_MS = 4_102_444_800_000  # 2100-01-01, so that a time in microseconds is refused
MAX_RESTORED_COUNT = MAX_COUNT // 2
"""Upper bound of a serial number that the next leader continues (of decisions, plans, groups,
generations). That leader's increments use the range up to MAX_COUNT."""
SCHEMA_VERSION = 1

MOST_REQ_PER_S = 1e9
"""Upper bound of any rate of one model in requests/s, in records and in calculations."""
MOST_USD_PER_H = 1e9
"""Upper bound of the cost of a fleet, in USD per hour."""


FieldChecks = Mapping[str, Callable[[str, Any], None]]
"""The check of each field of a record."""


class InvalidValue(ValueError):
    """A value of a record, a configuration or an option that is not allowed.

    field: path of the field. value: the invalid value. allowed: a description of valid values.
    """

    def __init__(self, field: str, value: object, allowed: str) -> None:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        super().__init__(printable(f"{field}: {shown} is not allowed; allowed: {allowed}"))
        self.field = field
        self.value = value
        self.allowed = allowed

    def __reduce__(self) -> tuple[type[InvalidValue], tuple[str, object, str]]:
        """Pickle support, because worker processes raise this error."""
        return type(self), (self.field, self.value, self.allowed)


def fields(record: object, checked: FieldChecks) -> None:
    """Check fields of a record, in the order of `checked`."""
    for field, check in checked.items():
        check(field, getattr(record, field))


def name(field: str, value: object) -> None:
    """Check an id: letters, digits and . _ : / @ + -, at most 200 characters, no trailing
    newline."""
    if not isinstance(value, str) or not _NAME.match(value):
        raise InvalidValue(field, value, "1 to 200 letters, digits or ._:/@+-")


def name_or_all(field: str, value: object) -> None:
    """Check an id, or "*" for all."""
    if value != "*":
        name(field, value)


def names(field: str, values: Iterable[object]) -> None:
    """Check ids."""
    for value in values:
        name(field, value)


def is_name(value: str) -> bool:
    """Whether `name` accepts `value` as an id."""
    return bool(_NAME.match(value))


def combo(field: str, value: object) -> None:
    """Check the name of a combo or of its group. It may be longer than other names and may contain
    > and &, because it lists the combo's parts and separates the nodes of an instance by these
    characters."""
    if not isinstance(value, str) or not _COMBO.match(value):
        raise InvalidValue(field, value, "1 to 1000 letters, digits or ._:/@+->&")


def label(field: str, value: object) -> None:
    """Check a name as free text: 1 to 200 printable characters, spaces included."""
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InvalidValue(field, value, "1 to 200 printable characters")


def text(field: str, value: object, limit: int = 2000) -> None:
    """Check free text of at most `limit` characters."""
    if not isinstance(value, str) or len(value) > limit:
        raise InvalidValue(field, value, f"text of at most {limit} characters")


def machine_text(field: str, value: object, limit: int) -> None:
    """Check text that programs parse: at most `limit` printable characters."""
    text(field, value, limit)
    if not str(value).isprintable():
        raise InvalidValue(field, value, f"at most {limit} printable characters")


def free_text(record: object, field: str, limit: int = 2000) -> None:
    """Check a field of a frozen record that holds free text, or a tuple of free texts.

    Unprintable characters are not refused but replaced in the record (`topics.printable`).
    """
    value = getattr(record, field)
    if isinstance(value, tuple):
        for one in value:
            text(field, one, limit)
        clean: object = tuple(one if one.isprintable() else printable(one) for one in value)
    else:
        text(field, value, limit)
        clean = value if value.isprintable() else printable(value)
    if clean != value:
        object.__setattr__(record, field, clean)


def texts(field: str, value: object, limit: int = 4000) -> tuple[str, ...]:
    """Check a JSON array of texts and return it as a tuple."""
    if not isinstance(value, (list, tuple)):
        raise InvalidValue(field, value, "a JSON array")
    for index, item in enumerate(value):
        text(f"{field}[{index}]", item, limit)
    return tuple(value)


def number(field: str, value: object, low: float, high: float) -> None:
    """Check a finite number in [low, high]; True and False are refused."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidValue(field, value, f"a number from {low:g} to {high:g}")
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(field, value, f"a finite number from {low:g} to {high:g}")


def count(field: str, value: object, high: int = MAX_COUNT) -> None:
    """Check a whole number in [0, high]."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise InvalidValue(field, value, f"a whole number from 0 to {high}")


def counts(field: str, values: Iterable[object], high: int = MAX_COUNT) -> None:
    """Check whole numbers in [0, high]."""
    for value in values:
        count(field, value, high)


def combo_changes(field: str, values: Iterable[tuple[object, object]]) -> None:
    """Check pairs of a combo and the number by which its count changes."""
    for one, change in values:
        combo(field, one)
        number(field, change, -1_000_000, 1_000_000)


def flag(field: str, value: object) -> None:
    """Check a value that must be true or false."""
    if not isinstance(value, bool):
        raise InvalidValue(field, value, "true or false")


def time_ms(field: str, value: object) -> None:
    """Check a time in milliseconds since the epoch; it must be before the year 2100."""
    count(field, value, MAX_MS)


def one_of(field: str, value: object, allowed: tuple[str, ...]) -> None:
    """Check that `value` is one of `allowed`."""
    if value not in allowed:
        raise InvalidValue(field, value, " or ".join(allowed))


def object_fields(
    field: str, value: object, required: tuple[str, ...], optional: dict[str, Any]
) -> dict[str, Any]:
    """The fields of a JSON object, with the defaults `optional` for missing fields. Unknown fields
    and missing required fields are refused."""
    if not isinstance(value, dict):
        raise InvalidValue(field, value, "a JSON object")
    known = {*required, *optional}
    for key in value:
        if key not in known:
            raise InvalidValue(field, key, "only " + ", ".join(sorted(known)))
    for key in required:
        if key not in value:
            raise InvalidValue(f"{field}.{key}", "nothing", "a value: the key is missing")
    return {**optional, **value}
