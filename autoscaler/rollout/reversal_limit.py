"""Reversals: how often capacity went up after down, or down after up.

Owns the count, what it asks of a scale-in, and its limit. Load that swings faster than instances
start would otherwise be followed up and down for ever. Only scale-in is ever held back: a reversal
that is counted may be followed by one more, when demand returns, and scale-out never waits for
this.
"""

from __future__ import annotations

from dataclasses import dataclass

_WITHIN_H = 2
_WITHIN_MS = _WITHIN_H * 3_600_000


@dataclass(frozen=True, slots=True)
class Reversals:
    """The last move ("out", "in" or "" for none) and when reversals were, in ms: of two hours."""

    last: str = ""
    at_ms: tuple[int, ...] = ()


def moved(turns: Reversals, move: str, now_ms: int) -> Reversals:
    """`turns` after a move "out" or "in"."""
    kept = tuple(at for at in turns.at_ms if now_ms - at < _WITHIN_MS)
    turned = turns.last not in ("", move)
    return Reversals(move, (*kept, now_ms) if turned else kept)


def turned_lately(turns: Reversals, now_ms: int) -> bool:
    """Whether a scale-in would turn the fleet round again: then an excess must last longer, for
    demand has returned before. A swing that falls for good is followed all the same."""
    return turns.last == "out" and _recent(turns, now_ms) > 0


def returned(turns: Reversals, now_ms: int) -> int:
    """How often demand has returned lately after a scale-in: every second reversal."""
    return _recent(turns, now_ms) // 2


def may_go_in(turns: Reversals, now_ms: int, most_per_h: int) -> bool:
    """Whether a scale-in keeps within the limit even if demand returns right after it.

    That makes two reversals: where two an hour are allowed, one scale-in after a scale-out is.
    """
    return turns.last == "in" or _recent(turns, now_ms) + 2 <= most_per_h * _WITHIN_H


def _recent(turns: Reversals, now_ms: int) -> int:
    return sum(1 for at in turns.at_ms if now_ms - at < _WITHIN_MS)
