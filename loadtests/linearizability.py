"""A check whether one order of concurrent calls explains their results (linearizability).

The calls are compare-and-set commands on one subject: a call that answers the present version wins
and makes the next one; any other call is refused, and its result names a winner of a version after
the answered one. Source of the search: Wing and Gong, "Testing and Verifying Concurrent Objects",
Journal of Parallel and Distributed Computing 17, 1993.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """One call. began, ended: its time. expected: the version that it answers. command: its id.
    named: the id in its result, the same if it has won; "" for a refusal that names none."""

    subject: str
    who: str
    began: float
    ended: float
    expected: int
    command: str
    named: str


def explains(calls: Sequence[Call]) -> bool:
    """Whether some order of `calls` gives their results, in which each call that ended before
    another began also comes before it."""
    tried: set[tuple[frozenset[int], tuple[str, ...]]] = set()

    def search(rest: frozenset[int], winners: tuple[str, ...]) -> bool:
        if not rest:
            return True
        if (rest, winners) in tried:
            return False
        tried.add((rest, winners))
        first_end = min(calls[one].ended for one in rest)
        for one in sorted(rest, key=lambda one: calls[one].began):
            if calls[one].began > first_end:
                return False
            after = _apply(calls[one], winners)
            if after is not None and search(rest - {one}, after):
                return True
        return False

    return search(frozenset(range(len(calls))), ())


def _apply(call: Call, winners: tuple[str, ...]) -> tuple[str, ...] | None:
    """The winners after `call`; None if it cannot have its result now."""
    if call.named == call.command:
        return (*winners, call.command) if call.expected == len(winners) else None
    return winners if not call.named or call.named in winners[call.expected :] else None
