"""The level of a condition: how urgent it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from topics.reason_codes import ReasonCode as Code


class Level(StrEnum):
    """How urgent a condition is. broken: requests fail or miss the SLO. at_risk: requests may soon
    miss it, or there is no telemetry. attention: an operator should look. ok: no action is
    needed."""

    OK = "ok"
    ATTENTION = "attention"
    AT_RISK = "at_risk"
    BROKEN = "broken"

    @property
    def urgency(self) -> int:
        """0 for ok, 3 for broken."""
        return tuple(Level).index(self)


LEVEL_OF: Mapping[Code, Level] = {
    Code.NOTHING_READY: Level.BROKEN,
    Code.NOT_SERVED: Level.BROKEN,
    Code.PROMISE_BROKEN: Level.BROKEN,
    Code.CAPACITY_SHORT: Level.AT_RISK,
    Code.FLOOR_SHORT: Level.AT_RISK,
    Code.NO_TELEMETRY: Level.AT_RISK,
    Code.OVER_SPOT_LIMIT: Level.AT_RISK,
    Code.PROMISE_WAS_BROKEN: Level.ATTENTION,
    Code.PROPOSAL_WAITS: Level.ATTENTION,
    Code.PAUSED: Level.ATTENTION,
    Code.RELEASED: Level.ATTENTION,
    Code.SERVERS_UNCOUNTED: Level.ATTENTION,
}
"""The level of each condition. Other conditions are `Level.OK`."""


def level(codes: Iterable[Code]) -> Level:
    """The most urgent level of conditions."""
    return max(
        (LEVEL_OF.get(code, Level.OK) for code in codes),
        key=lambda one: one.urgency,
        default=Level.OK,
    )
