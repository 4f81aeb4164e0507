"""Evidence that a version does not work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.versions import Version, runs
from autoscaler.state.rollout_state import RolloutState
from topics.reason_codes import ReasonCode

_RESTARTS = 2
"""Restarts of one instance during a rollout that count as a crash loop. A single one may be the
fault of the node."""
_FAILURES = 3
"""Failed launches of a proven version that end its rollout."""


def failure_of(
    state: RolloutState, goal: Version, own: Iterable[ServingGroup], fleet: TickFleet
) -> tuple[RolloutState, Reason | None]:
    """The state with the failures of this tick, and the reason to take `goal` back, if any. own:
    the model's groups."""
    new = [group for group in own if runs(group, goal)]
    for group in new:
        for placed in group.placed:
            seen = fleet.sight.fleet.instances.get(placed.instance)
            if seen is not None and seen.restarts >= _RESTARTS:
                figures = (float(seen.restarts),)
                return state, Reason(ReasonCode.CRASH_LOOP, placed.instance, quantities=figures)
    failed = [group for group in new if group.failed_ms == fleet.now_ms]
    if not failed:
        return state, None
    state = replace(state, failures=state.failures + len(failed))
    if state.proven == goal.digest and state.failures < _FAILURES:
        return state, None
    return state, fleet.sight.views[failed[0].name].broken
