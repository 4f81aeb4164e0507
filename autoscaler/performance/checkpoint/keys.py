"""Typed access to the keys of a configuration, with the defaults of its configuration class.

Publishers leave out keys with default values. A key that is null is unset and has no default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoscaler.domain.validation import InvalidValue, finite, whole

MOST = 10**8
_LONGEST_LIST = 100_000
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a configuration.

    config: keys and values of the file. defaults: defaults of the configuration class. field: name
    of the file in errors.
    """

    config: Mapping[str, Any]
    field: str
    defaults: Mapping[str, Any]

    def __contains__(self, name: str) -> bool:
        return self.value(name) is not None

    def value(self, *names: str) -> Any:
        """The value of the first key in `names` that the file sets; otherwise the first default;
        otherwise None."""
        for name in names:
            if self.config.get(name) is not None:
                return self.config[name]
        for name in names:
            if name not in self.config and self.defaults.get(name) is not None:
                return self.defaults[name]
        return None

    def written(self, name: str) -> Any:
        """The value of `name` in the file, without a default; None if the key is absent."""
        return self.config.get(name)

    def error(self, name: str, value: object, allowed: str) -> InvalidValue:
        """The InvalidValue for `value` at the key `name`."""
        short = value if len(repr(value)) <= 200 else f"{repr(value)[:200]}..."
        return InvalidValue(f"{self.field}: {_printable(name)}", short, allowed)

    def number_of(self, *names: str, low: int = 1, high: int = MOST) -> int:
        """A required whole number from the first key that is set. Raises InvalidValue, which names
        the first key."""
        value = self.value(*names)
        if value is None:
            raise InvalidValue(f"{self.field}: {names[0]}", "missing", "a whole number above 0")
        return self._whole(self._named(*names), value, low, high)

    def number(self, *names: str, otherwise: int = 0, low: int = 0, high: int = MOST) -> int:
        """A whole number, or the number that all entries of a list have; `otherwise` if no key is
        set. Raises InvalidValue for a list of different numbers."""
        numbers = set(self.whole_list(*names, low=low, high=high))
        if len(numbers) > 1:
            allowed = "one number, or a list of equal numbers"
            raise self.error(self._named(*names), self.value(*names), allowed)
        return numbers.pop() if numbers else otherwise

    def whole_list(self, *names: str, low: int = 0, high: int = MOST) -> tuple[int, ...]:
        """A list of whole numbers; one number counts as a list of one, and () if no key is set."""
        value = self.value(*names)
        if value is None:
            return ()
        listed = value if isinstance(value, list | tuple) else [value]
        if len(listed) > _LONGEST_LIST:
            raise self.error(self._named(*names), value, "a shorter list")
        return tuple(self._whole(self._named(*names), one, low, high) for one in listed)

    def real(self, name: str, otherwise: float, low: float, high: float) -> float:
        """A number; `otherwise` if unset."""
        value = self.value(name)
        return otherwise if value is None else finite(f"{self.field}: {name}", value, low, high)

    def flag(self, *names: str, otherwise: bool = False) -> bool:
        """True or false; `otherwise` if unset."""
        value = self.value(*names)
        if value is None:
            return otherwise
        if not isinstance(value, bool):
            raise self.error(self._named(*names), value, "true or false")
        return value

    def text(self, *names: str) -> str:
        """A text; "" if none is set."""
        value = self.value(*names)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(self._named(*names), value, "a text")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; () if unset."""
        found = self.listed(name)
        for one in found:
            if not isinstance(one, str):
                raise self.error(name, one, "texts")
        return found

    def listed(self, name: str) -> tuple[Any, ...]:
        """A list; () if unset."""
        value = self.value(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or len(value) > _LONGEST_LIST:
            raise self.error(name, value, "a list")
        return tuple(value)

    def numbers(self, name: str) -> frozenset[int]:
        """The list of whole numbers at a key."""
        return frozenset(self._whole(name, one, 0, MOST) for one in self.listed(name))

    def section(self, name: str) -> Keys | None:
        """The keys below `name`; None if unset."""
        value = self.value(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, value, "a mapping")
        return Keys(value, f"{self.field}: {_printable(name)}", {})

    def _named(self, *names: str) -> str:
        return next((n for n in names if self.config.get(n) is not None), names[0])

    def _whole(self, name: str, value: Any, low: int, high: int) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, value, f"a whole number from {low} to {high}")
        return whole(f"{self.field}: {name}", value, low, high)


def _printable(name: str) -> str:
    """A key as printable text on one line; the names of groups and modules in a file may contain
    any characters."""
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else repr(name[:_LONGEST_NAME])
