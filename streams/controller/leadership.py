"""Write this controller's records on the `leadership` topic, and report whether this controller
leads.

This module decides when to write a record; `election` holds the rules. Each acknowledgement also
gives the broker's time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from aiokafka.errors import KafkaError

from streams.clock import Clock
from streams.loop.election import RENEW_S, TAKEOVER_S, Election
from topics.codec import encode
from topics.error_text import error_text
from topics.leadership import Leadership
from topics.topic_table import key_of

log = logging.getLogger(__name__)

_STEP_S = 0.1
_SEND_S = 3.0
_RESIGN_S = 0.5
_SAY_AGAIN_S = 10.0


class LeadershipClient:
    """Publishes and reads the records of the election. producer: not transactional, because a claim
    must succeed while another controller has the transactional id.

    on_append: called for each acknowledged record with its append time (ms of the broker's clock)
    and the time of the send (monotonic ns).
    """

    def __init__(
        self,
        producer: Any,
        topic: str,
        controller: str,
        election: Election,
        clock: Clock,
        on_append: Callable[[int, int], None],
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._controller = controller
        self.election = election
        self._clock = clock
        self._on_append = on_append
        self._said_s = float("-inf")
        self._claimed_s = float("-inf")
        self._warned_s = float("-inf")
        self._sending: asyncio.Task[None] | None = None

    def leads(self) -> bool:
        """Whether this controller may act now; checked before every tick and every send."""
        return self.election.leads(self._clock.now_s())

    async def introduce(self) -> None:
        """Publish one "standby" record; returns after success or failure."""
        self._said_s = self._clock.now_s()
        await self._send()

    async def run(self) -> None:
        """Watch the topic, claim leadership and renew the lease until cancelled."""
        while True:
            self.step(self._clock.now_s())
            await asyncio.sleep(_STEP_S)

    def step(self, now_s: float) -> None:
        """Send the record that is due at `now_s`, if there is one."""
        self.election.watch(now_s)
        sending = self._sending is not None and not self._sending.done()
        if sending or self.election.claiming(now_s):
            return
        due = now_s - self._said_s >= RENEW_S or self.election.yielded
        if self.election.may_claim(now_s) and now_s - self._claimed_s >= TAKEOVER_S:
            self._claimed_s = now_s
            self._say(now_s, claims=True)
        elif due:
            self._say(now_s)

    async def won(self) -> int:
        """Wait until this controller's claim is the highest; returns its token."""
        while not self.leads():
            await asyncio.sleep(_STEP_S / 2)
        return self.election.token

    async def lost(self, token: int) -> None:
        """Wait until the claim with `token` is no longer the highest."""
        while self.election.token == token:
            await asyncio.sleep(_STEP_S / 2)

    async def resign(self) -> None:
        """Publish a resignation, so that a standby takes over at once."""
        token = self.election.token
        if not token:
            return
        self.election.give_up()
        record = self._record("resignation", token)
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(_RESIGN_S):
                await self._producer.send_and_wait(self._topic, encode(record), key=key_of(record))

    def _say(self, now_s: float, claims: bool = False) -> None:
        self._said_s, self.election.yielded = now_s, False
        self._sending = asyncio.create_task(self._send(claims))

    async def _send(self, claims: bool = False) -> None:
        # Build the record only now, because the controller may have read back its claim meanwhile.
        token = 0 if claims else self.election.token
        kind = "claim" if claims else "renewal" if token else "standby"
        record = self._record(kind, token)
        sent_ns = self._clock.mono_ns()
        self.election.sent(kind, record.at_ms, sent_ns / 1e9)
        try:
            async with asyncio.timeout(_SEND_S):
                taken = await self._producer.send_and_wait(
                    self._topic, encode(record), key=key_of(record)
                )
        except (KafkaError, TimeoutError) as error:
            now_s = self._clock.now_s()
            if now_s - self._warned_s >= _SAY_AGAIN_S:
                self._warned_s = now_s
                what = "renew the lease" if kind == "renewal" else f"write a {kind}"
                log.warning("leadership: cannot %s: %s", what, error_text(error))
            return
        self._on_append(taken.timestamp, sent_ns)

    def _record(self, kind: str, token: int) -> Leadership:
        election = self.election
        base = election.next_base() if kind == "claim" else 0
        if base > election.base:
            log.warning(
                "leadership: the topic was deleted or created again; tokens continue above %d", base
            )
        return Leadership(
            self._controller, election.boot, kind, self._clock.now_ms(), base, token,
        )  # fmt: skip
