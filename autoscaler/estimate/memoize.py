"""Memoizes functions of immutable values by the identity of their arguments. Hashing half an hour
of counts would take longer than most of the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_Entries = dict[tuple[object, ...], tuple[tuple[Any, ...], Any]]


def memoize(calls: int) -> Callable[[Function], Function]:
    """Decorator that caches results. A result that was not asked for in `calls` calls is dropped
    before as many more, so a small fleet keeps few results and a large one all of its own.

    Arguments are positional. They match if they are identical objects or equal ints.
    """

    def decorate(function: Function) -> Function:
        recent: _Entries = {}
        older: _Entries = {}
        made = 0

        def memoized(*args: Any) -> Any:
            nonlocal recent, older, made
            # An int is wrapped in a tuple, so that it cannot equal the id of another argument.
            key = tuple([(arg,) if type(arg) is int else id(arg) for arg in args])
            entry = recent.get(key)
            if entry is None:
                known = older.get(key)
                # The entry keeps the arguments alive, so that their ids remain unique.
                entry = recent[key] = known if known is not None else (args, function(*args))
            made += 1
            if made >= calls:
                recent, older, made = {}, recent, 0
            return entry[1]

        memoized.__doc__ = function.__doc__
        memoized.__name__ = function.__name__
        return memoized  # type: ignore[return-value]

    return decorate
