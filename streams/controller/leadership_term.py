"""Terms of leadership: the steps at the begin and at the end of a term.

Order: fence the previous leader, read the remaining records, hear the nodes if no assignment is
known, restore the state from the topics, start the ticks. `leadership` and `election` decide which
controller leads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Sequence

from aiokafka.errors import KafkaError

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.node_names import node_ids
from streams.clock import Clock
from streams.controller.control_topics import ControlTopics
from streams.controller.leader_producer import Fenced, LeaderProducer
from streams.controller.leadership import LeadershipClient
from streams.controller.outbox import Outbox
from streams.loop.control_state import ControlState
from streams.loop.tick_loop import Loop
from streams.ports.demand_source import DemandSource, Sink

log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_LOOK_S = 0.1


class Terms:
    """Begins and ends the terms of this controller as leader. before: called at the start of a
    term, before the first tick. on_standing: see `compose`. created: see `hear_nodes`."""

    def __init__(
        self,
        seat: LeadershipClient,
        loop: Loop,
        producer: LeaderProducer,
        outbox: Outbox,
        control: ControlTopics,
        before: Callable[[], None],
        sources: Sequence[tuple[DemandSource, Sink]],
        on_standing: Callable[[int, str], None],
        created: Collection[str] = (),
    ) -> None:
        self._seat = seat
        self._loop = loop
        self._producer = producer
        self._outbox = outbox
        self._control = control
        self._before = before
        self._sources = sources
        self._on_standing = on_standing
        self._created = created

    async def run(self) -> None:
        """Wait for leadership, lead until it is lost, and repeat until cancelled."""
        while True:
            token = await self._seated()
            self._loop.seated_s = self._loop.clock.now_s()
            log.info("leading with token %d", token)
            lost = asyncio.ensure_future(self._seat.lost(token))
            term = asyncio.ensure_future(self._term(token))
            try:
                await asyncio.wait({lost, term}, return_when=asyncio.FIRST_COMPLETED)
                if term.done():
                    term.result()
            except Fenced as error:
                log.warning("%s", error)
                self._seat.election.give_up()
            finally:
                for task in (lost, term):
                    task.cancel()
                await asyncio.gather(lost, term, return_exceptions=True)
                self._outbox.clear()
            leader = self._seat.election.leader
            log.warning("no longer leading; %s leads with token %d", leader,
                        self._seat.election.highest)  # fmt: skip

    async def _seated(self) -> int:
        """Wait until this controller leads. If another controller leads, report that once."""
        winning = asyncio.ensure_future(self._seat.won())
        try:
            told = False
            while not winning.done():
                if self._seat.election.heard_renewal and not told:
                    told = True
                    log.info("standby: %s leads", self._seat.election.leader)
                    self._on_standing(0, self._seat.election.leader)
                # A standby has no ticks, so advance the windows here; otherwise they would grow.
                self._loop.windows.advance(self._loop.clock.now_ms())
                await asyncio.wait({winning}, timeout=_LOOK_S)
            return winning.result()
        finally:
            winning.cancel()

    async def _term(self, token: int) -> None:
        await self._fence()
        # The previous leader is fenced, so the topics now hold its last record.
        await self._control.caught_up()
        latest, loop = self._loop.latest, self._loop
        await hear_nodes(latest, loop.declared(), loop.clock, self._created)
        latest.take_alerts()  # Discard older alerts: the first full plan already covers them.
        self._before()
        loop.begin(
            restore(
                loop.declared(),
                latest.desired.assignments,
                latest.desired.routes,
                latest.statuses,
                latest.decisions,
                loop.clock.now_ms(),
                leader_token=token,
                plan_number=latest.numbers.plan,
                next_serial=latest.numbers.serial,
                ledger=latest.desired.ledger.values(),
            )
        )
        both = [asyncio.ensure_future(self._outbox.run()), asyncio.ensure_future(self._tick(token))]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _tick(self, token: int) -> None:
        # Read the telemetry backlog before the first tick: unread records are not missing data.
        for source, _ in self._sources:
            await source.live()
        await self._loop.run(lambda: self._on_standing(token, ""))

    async def _fence(self) -> None:
        while True:
            with contextlib.suppress(KafkaError, OSError, TimeoutError):
                if self._seat.leads():
                    await self._producer.open()
                    return
            await asyncio.sleep(_PAUSE_S)


async def hear_nodes(
    latest: ControlState, cluster: Cluster, clock: Clock, created: Collection[str] = ()
) -> None:
    """If `latest` has no assignment, wait until every declared node has reported, at most for as
    long as a node may be silent. created: pools whose nodes exist only while they are assigned.

    The topics may have been lost, as those of the embedded broker are at its end. Then the running
    instances are known from the statuses alone, and the first plan must not start them again.
    """
    if latest.desired.assignments or not any(service.managed for service in cluster.services):
        return
    nodes = {node for pool in cluster.pools if pool.id not in created for node in node_ids(pool)}
    until_ms = clock.now_ms() + int(cluster.policy.node_silent_s * 1000)
    while not nodes <= latest.statuses.keys() and clock.now_ms() < until_ms:
        await asyncio.sleep(_LOOK_S)
