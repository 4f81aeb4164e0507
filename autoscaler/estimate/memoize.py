"""Memoizes functions of immutable values by the identity of their arguments. Hashing half an hour
of counts would take longer than most of the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def memoize(max_entries: int) -> Callable[[Function], Function]:
    """Decorator that caches the results of about the last `max_entries` calls.

    Arguments are positional. They match if they are identical objects or equal ints.
    """

    def decorate(function: Function) -> Function:
        entries: dict[tuple[object, ...], tuple[tuple[Any, ...], Any]] = {}

        def memoized(*args: Any) -> Any:
            # An int is wrapped in a tuple, so that it cannot equal the id of another argument.
            key = tuple([(arg,) if type(arg) is int else id(arg) for arg in args])
            entry = entries.get(key)
            if entry is None:
                if len(entries) >= max_entries:
                    entries.clear()
                # The entry keeps the arguments alive, so that their ids remain unique.
                entry = entries[key] = args, function(*args)
            return entry[1]

        memoized.__doc__ = function.__doc__
        memoized.__name__ = function.__name__
        return memoized  # type: ignore[return-value]

    return decorate
