"""Sentences for the parts of a change: its cause, its cost, and the time at which it takes
effect."""

from __future__ import annotations

from collections.abc import Callable

from autoscaler.domain.reason import Reason
from autoscaler.explain.quantity_texts import duration, money, rate
from topics.reason_codes import ReasonCode as Code

Text = Callable[[Reason], str]
_MOST_NODES = 3


def _replanned(reason: Reason, text: Text) -> str:
    return f"replanned: {', '.join(dict.fromkeys(map(text, reason.because)))}"


def _capacity_lost(reason: Reason, _: Text) -> str:
    if not reason.names:
        return "capacity was lost"
    shown, more = reason.names[:_MOST_NODES], len(reason.names) - _MOST_NODES
    rest = f" and {more} more" if more > 0 else ""
    return f"the capacity on {', '.join(shown)}{rest} was lost"


def _floor(reason: Reason, _: Text) -> str:
    return f"floor of {reason.quantities[0]:.0f}"


def _lengths_worth(reason: Reason, _: Text) -> str:
    planned, target = map(rate, reason.quantities)
    return f"at the present request lengths the fleet can serve {planned} of {target} req/s"


def _cost(reason: Reason, _: Text) -> str:
    return money(reason.quantities[0])


def _moved_together(reason: Reason, _: Text) -> str:
    return f"moved to other nodes, which frees a node of {', '.join(reason.names)}"


def _serving_in(reason: Reason, _: Text) -> str:
    return f"serving in {duration(reason.quantities[0])}"


def _role_switches(reason: Reason, _: Text) -> str:
    many = reason.quantities[0]
    return f"{many:.0f} role switch{'es' if many > 1 else ''} in place"


def _plan_gap(reason: Reason, _: Text) -> str:
    return f"plan within {reason.quantities[0]:.1%} of the best"


def _unserved(reason: Reason, text: Text) -> str:
    short, sought = map(rate, reason.quantities)
    bound = "; ".join(dict.fromkeys(map(text, reason.because)))
    return f"{short} of {sought} req/s cannot be served: {bound}"


def _floor_unmet(reason: Reason, text: Text) -> str:
    floor, runs = reason.quantities
    bound = "; ".join(dict.fromkeys(map(text, reason.because)))
    return f"floor of {floor:.0f}: only {runs:.0f} can run: {bound}"


def _nothing_more(_reason: Reason, _: Text) -> str:
    return "no further capacity is available"


CHANGE_TEXTS = {
    Code.REPLANNED: _replanned,
    Code.CAPACITY_LOST: _capacity_lost,
    Code.FLOOR: _floor,
    Code.LENGTHS_WORTH: _lengths_worth,
    Code.COST: _cost,
    Code.MOVED_TOGETHER: _moved_together,
    Code.SERVING_IN: _serving_in,
    Code.ROLE_SWITCHES: _role_switches,
    Code.PLAN_GAP: _plan_gap,
    Code.UNSERVED: _unserved,
    Code.FLOOR_UNMET: _floor_unmet,
    Code.NOTHING_MORE: _nothing_more,
}
