"""Broker times decide which of two executors holds a node; the clocks of hosts do not."""

from __future__ import annotations

import pytest

from executors.node.node_lock import NodeLock
from tests.unit.executors.test_node_worker import POOL
from topics.fleet import Status

NOW_MS, BROKER_MS, HOUR_MS = 1_700_000_000_000, 1_900_000_000_000, 3_600_000


def status_of(boot: str, place: str, at_ms: int) -> Status:
    return Status("n0", POOL, f"executor-{boot}", 0, at_ms, boot=boot, place=place)


@pytest.mark.parametrize("theirs_ahead_h", [-1, 0, 1])
@pytest.mark.parametrize(("silent_s", "held"), [(20, True), (40, False)])
def test_the_executor_of_the_last_status_holds_the_node_whatever_the_clocks_show(
    theirs_ahead_h: int, silent_s: int, held: bool
) -> None:
    """The status of the other executor is read during the start. Our own status arrives `silent_s`
    later.
    """
    ours = NodeLock("n0", "b1", "here")
    theirs = status_of("b2", "there", NOW_MS + theirs_ahead_h * HOUR_MS)
    ours.on_status(theirs, BROKER_MS, NOW_MS, live=False)
    now_ms, append_ms = NOW_MS + 31_000, BROKER_MS + silent_s * 1000
    ours.on_status(status_of("b1", "here", now_ms), append_ms, now_ms, live=True)
    assert ours.claimed is not held
    assert ours.contested(now_ms) is held
    later_ms = now_ms + 31_000
    ours.on_status(status_of("b1", "here", later_ms), append_ms + 31_000, later_ms, live=True)
    assert ours.claimed


def test_a_broker_clock_that_was_set_back_does_not_block_a_node() -> None:
    ours = NodeLock("n0", "b1", "here")
    ours.on_status(status_of("b2", "there", NOW_MS - HOUR_MS), BROKER_MS, NOW_MS, live=False)
    ours.on_status(status_of("b1", "here", NOW_MS), BROKER_MS - HOUR_MS, NOW_MS, live=True)
    assert ours.claimed
