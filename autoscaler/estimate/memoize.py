"""Remember what was worked out of a value that is asked about again and again.

Owns the memory. Values never change, so the very objects are the key: nothing is hashed or
compared, which for half an hour of counts costs more than most of what is worked out of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Asked = TypeVar("Asked", bound=Callable[..., Any])


def remembered(kept: int) -> Callable[[Asked], Asked]:
    """A decorator: the same arguments (the same objects or equal whole numbers, by position) get
    the same result, as long as they are among the last `kept` or so."""

    def of(function: Asked) -> Asked:
        known: dict[tuple[object, ...], tuple[tuple[Any, ...], Any]] = {}

        def asked(*args: Any) -> Any:
            # A number is no id: in a tuple of its own it is not taken for one.
            key = tuple([(arg,) if type(arg) is int else id(arg) for arg in args])
            found = known.get(key)
            if found is None:
                if len(known) >= kept:
                    known.clear()
                # The arguments are kept too: their ids are nobody else's for as long.
                found = known[key] = args, function(*args)
            return found[1]

        asked.__doc__ = function.__doc__
        asked.__name__ = function.__name__
        return asked  # type: ignore[return-value]

    return of
