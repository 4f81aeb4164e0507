"""The groups that leave under a plan."""

from __future__ import annotations

from autoscaler.planning.named_change import full_change
from autoscaler.planning.planner_messages import RunningGroup

COMBO = "m:a1@r/a/spot"


def test_groups_of_a_replaced_version_leave_first_even_before_groups_that_start() -> None:
    """Otherwise a rollout starts a group, a plan removes it, and this repeats."""
    groups = (
        RunningGroup(f"{COMBO}:1", COMBO, is_ready=False, created_ms=9),
        RunningGroup(f"{COMBO}:2", COMBO, created_ms=1, neighbours=3, outdated=True),
        RunningGroup(f"{COMBO}:3", COMBO, created_ms=5),
    )
    for left, gone in ((2, (2,)), (1, (1, 2))):
        change = full_change(groups, {COMBO: 3}, {COMBO: left}, ())
        assert {*change.leaves} == {f"{COMBO}:{serial}" for serial in gone}
