"""Caches of results that are dropped when they are no longer asked for.

What the controller measures changes all the time, and old inputs never return. A cache of a fixed
number of entries would fill with their results over days.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_Key = Callable[[tuple[Any, ...], dict[str, Any]], Hashable]
_Entry = tuple[tuple[Any, ...], Any]
_MOST = 16_384
"""`most` of functions that are cached by identity."""


class ResultCaches:
    """Caches of several functions that share their periods: a result that was not asked for in a
    whole period is dropped at its end. A period also ends for a function that has `most` new
    results, if nothing ends it before."""

    def __init__(self) -> None:
        self._drop_old: list[Callable[[], None]] = []

    def next_period(self) -> None:
        """End the present period of all caches."""
        for drop_old in self._drop_old:
            drop_old()

    def by_value(self, most: int) -> Callable[[Function], Function]:
        """Decorator of functions of hashable arguments."""

        def key_of(args: tuple[Any, ...], named: dict[str, Any]) -> Hashable:
            return (args, tuple(named.items())) if named else args

        return lambda function: self._cached(function, key_of, most)

    def by_identity(self, function: Function) -> Function:
        """Decorator; arguments are positional and match if they are identical objects or equal
        ints. Hashing half an hour of counts would take longer than most of the functions."""

        def key_of(args: tuple[Any, ...], _: dict[str, Any]) -> Hashable:
            # An int is wrapped in a tuple, so that it cannot equal the id of another argument.
            return tuple([(arg,) if type(arg) is int else id(arg) for arg in args])

        return self._cached(function, key_of, _MOST)

    def _cached(self, function: Function, key_of: _Key, most: int) -> Function:
        recent: dict[Hashable, _Entry] = {}
        older: dict[Hashable, _Entry] = {}

        def drop_old() -> None:
            nonlocal recent, older
            recent, older = {}, recent

        @wraps(function)
        def cached(*args: Any, **named: Any) -> Any:
            key = key_of(args, named)
            entry = recent.get(key)
            if entry is None:
                entry = older.get(key)
                if entry is None:
                    # The entry keeps the arguments alive, so that their ids remain unique.
                    entry = args, function(*args, **named)
                if len(recent) >= most:
                    drop_old()
                recent[key] = entry
            return entry[1]

        self._drop_old.append(drop_old)
        return cached  # type: ignore[return-value]


TICK_CACHES = ResultCaches()
"""Their period is a tick of the controller."""
PLAN_CACHES = ResultCaches()
"""Their period is the time between two full plans."""
