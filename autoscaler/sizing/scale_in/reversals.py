"""Reversals: changes of direction between adding and removing capacity, and their limit.

If load swings faster than instances start, the fleet would otherwise follow it endlessly. The limit
delays only scale-in, never scale-out: after each allowed scale-in, demand may return, which is
another reversal.
"""

from __future__ import annotations

from autoscaler.state.model_state import Reversals

_WITHIN_H = 2
"""Span in hours over which changes of direction are counted; a single hour would allow a burst of
changes at its end."""
_WITHIN_MS = _WITHIN_H * 3_600_000  # the same span in ms


def after_move(turns: Reversals, move: str, now_ms: int) -> Reversals:
    """`turns` after a move "out" or "in"."""
    kept = tuple(at for at in turns.at_ms if now_ms - at < _WITHIN_MS)
    turned = turns.last not in ("", move)
    return Reversals(move, (*kept, now_ms) if turned else kept)


def scale_in_within_limit(turns: Reversals, now_ms: int, most_per_h: int) -> bool:
    """Whether a scale-in keeps within the limit even if demand returns right after it.

    A scale-in and the return are two reversals: a limit of two an hour allows one scale-in after a
    scale-out.
    """
    return turns.last == "in" or _recent(turns, now_ms) + 2 <= most_per_h * _WITHIN_H


def _recent(turns: Reversals, now_ms: int) -> int:
    return sum(1 for at in turns.at_ms if now_ms - at < _WITHIN_MS)
