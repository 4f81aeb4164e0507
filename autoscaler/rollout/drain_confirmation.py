"""Confirmation that gateways send no more requests to instances that are no longer in the
routes."""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.estimate.windows import GatewayReport
from autoscaler.rollout.serving_group import ServingGroup

CONFIRM_TIMEOUT_MS = 15_000
"""Time in ms after which a drain begins without confirmation, because a gateway that stopped never
confirms."""


def confirmed(group: ServingGroup, gateways: Sequence[GatewayReport], now_ms: int) -> bool:
    """Whether every live gateway applies routes without the leaving instances of `group`, or a
    time-out has passed. Older reports do not count: they may name a generation of the routes of a
    former embedded broker."""
    if now_ms - group.since_ms >= CONFIRM_TIMEOUT_MS:
        return True
    generation = group.exit.generation
    return bool(generation and gateways) and all(
        seen.route_generation >= generation and seen.reported_ms >= group.since_ms
        for seen in gateways
    )
