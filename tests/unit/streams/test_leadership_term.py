"""The begin of a term without assignments: the controller first hears the nodes."""

from __future__ import annotations

import asyncio

from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.domain.node_names import node_ids
from streams.clock import Clock
from streams.controller.leadership_term import hear_nodes
from streams.loop.control_state import ControlState
from tests.unit.decide.decide_catalogue import pool, service
from topics.fleet import Assignment, Status
from topics.time_base import TimeBase

POOL = pool(nodes=2, per_node=1)
FIRST, SECOND = node_ids(POOL)
ACTS = Cluster((POOL,), (service(),))


class Term:
    """The wait at the begin of a term, with a clock that the test moves."""

    def __init__(self, cluster: Cluster = ACTS, created: tuple[str, ...] = ()) -> None:
        self.now_s, self.latest = 100.0, ControlState()
        clock = Clock(TimeBase(1.0, 0, 0), lambda: int(self.now_s * 1e9))
        self.wait = asyncio.create_task(hear_nodes(self.latest, cluster, clock, created))

    async def waits(self) -> bool:
        done, _ = await asyncio.wait({self.wait}, timeout=0.3)
        return not done


async def test_it_begins_when_every_node_has_reported() -> None:
    term = Term()
    assert await term.waits()
    term.latest.take(Status(FIRST, POOL.id, "ex", 0, 1), 0)
    assert await term.waits()
    term.latest.take(Status(SECOND, POOL.id, "ex", 0, 1), 0)
    assert not await term.waits()


async def test_it_begins_when_a_node_is_silent_for_longer_than_it_may_be() -> None:
    term = Term()
    assert await term.waits()
    term.now_s += ACTS.policy.node_silent_s - 0.1
    assert await term.waits()
    term.now_s += 0.2
    assert not await term.waits()


async def test_it_begins_at_once_with_an_assignment_and_if_no_node_can_run_anything() -> None:
    """Nothing is managed, or a command creates all nodes."""
    assert not await Term(created=(POOL.id,)).waits()
    assert not await Term(Cluster((POOL,), (service(mode=Mode.RECOMMEND),))).waits()
    term = Term()
    term.latest.desired.assignments[FIRST] = Assignment(FIRST, POOL.id, 1, 1, 0)
    assert not await term.waits()
