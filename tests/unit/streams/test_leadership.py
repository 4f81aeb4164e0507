"""The records about leadership that a controller writes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from streams.clock import Clock
from streams.controller.leadership import LeadershipClient
from streams.loop.election import Election
from topics.codec import decode
from topics.leadership import Leadership
from topics.time_base import TimeBase


class Log:
    """The leadership topic, for a single writer."""

    def __init__(self) -> None:
        self.records: list[Leadership] = []

    async def send_and_wait(self, _topic: str, value: bytes, **_more: Any) -> Any:
        self.records.append(decode("leadership", value))
        return SimpleNamespace(timestamp=0)


async def test_a_controller_that_wins_before_its_standby_record_reports_that_it_leads() -> None:
    """The controller reads its own claim just before it writes its next record. If that record said
    "standby", readers would elect a second leader.
    """
    log, now_s = Log(), 100.0
    clock = Clock(TimeBase(1.0, 1_000_000, 0), lambda: round(now_s * 1e9), lambda: 0)
    election = Election("boot")
    seat = LeadershipClient(log, "leadership", "one", election, clock, lambda *_: None)
    await seat.introduce()
    election.apply(log.records[0], 0)
    now_s += 0.1
    seat.step(now_s)
    await asyncio.sleep(0)
    assert [one.kind for one in log.records] == ["standby", "claim"]
    now_s += 3.5
    seat.step(now_s)  # The next record is due, and the loop will write it.
    election.apply(log.records[1], 1)
    assert election.token
    await asyncio.sleep(0)
    assert (log.records[2].kind, log.records[2].token) == ("renewal", election.token)
    assert seat.leads()
