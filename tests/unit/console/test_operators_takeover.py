"""Two operators answer proposals while their leader is killed and a standby takes over."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from autoscaler.decide import restore
from loadtests.linearizability import Call, explains
from streams.console.operator_endpoint import OperatorEndpoint
from streams.health.operators import NO_OPERATORS, Identity
from streams.loop.tick_loop import Ports
from tests.unit.console.console_world import World, world
from topics.records import Control, Decision

MODELS = tuple(f"m{number}" for number in range(6))
SEEDS = range(3)


@dataclass
class Topics:
    """The records in the broker's order. Each controller reads them late. left: number of records
    that the leader may still write; None for any number."""

    records: list[Any] = field(default_factory=list)
    left: int | None = None
    sent: int = 0
    dropped: int = 0

    def put(self, record: Any) -> None:
        """Write a record of the leader, unless it is dead."""
        if self.left is not None:
            self.left -= 1
        if self.left is None or self.left >= 0:
            self.records.append(record)

    apply = put


@dataclass
class Reader:
    """Position of one controller in the topics."""

    at: World
    topics: Topics
    read: int = 0

    def step(self) -> bool:
        """Read one record; False if there is none."""
        if self.read >= len(self.topics.records):
            return False
        self.at.loop.latest.take(self.topics.records[self.read], self.read)
        self.read += 1
        return True


async def steps(rng: random.Random, most: int) -> None:
    for _ in range(rng.randrange(most)):
        await asyncio.sleep(0)


def take_over(at: World, reader: Reader) -> None:
    """The standby reads all topics, restores the state, and leads."""
    while reader.step():
        pass
    latest = at.loop.latest
    at.loop.begin(
        restore(
            at.cluster,
            latest.desired.assignments,
            latest.desired.routes,
            latest.statuses,
            latest.decisions,
            at.tick_ms,
            leader_token=4,
            ledger=latest.desired.ledger.values(),
        )
    )
    at.leads = True


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_proposal_has_one_answer_although_its_leader_is_killed(seed: int) -> None:
    """The leader is killed at any step, also between two records of a tick. Operators repeat
    unanswered commands at the other controller."""
    rng = random.Random(seed)
    topics = Topics()
    calls: list[Call] = []
    async with world(models=MODELS) as one, world(models=MODELS) as two:
        for at in (one, two):
            solver = at.loop.ports.solver
            at.loop.ports = Ports(topics, topics, solver)  # type: ignore[arg-type]
        two.leads = False
        readers = {id(at): Reader(at, topics) for at in (one, two)}
        for _ in range(5):
            one.run(1)
            while readers[id(one)].step():
                pass
        while readers[id(two)].step():
            pass
        two.tick_ms, two.now_s = one.tick_ms, one.now_s
        opened = [d.number for d in one.loop.latest.decisions if d.expires_ms]
        assert len(opened) >= 3
        ended: set[int] = set()
        clock, dead = iter(range(10**9)), asyncio.Event()

        async def publish(record: Control) -> None:
            await steps(rng, 6)
            topics.records.append(record)
            await steps(rng, 6)

        endpoints = {
            id(at): OperatorEndpoint(at.loop, NO_OPERATORS, publish, answer_s=60.0)
            for at in (one, two)
        }

        async def read(reader: Reader) -> None:
            while True:
                await steps(rng, 6)
                await asyncio.sleep(0 if reader.step() else 0.001)

        async def ticks() -> None:
            while True:
                await asyncio.sleep(0.01)
                (one if one.leads else two).run(1)

        async def give(asked: dict[str, Any], name: str) -> tuple[int, dict[str, Any]]:
            """The answer of the controller that the operator asks, or of the other one."""
            if not dead.is_set() and rng.random() < 0.7:
                call = asyncio.ensure_future(endpoints[id(one)].give(asked, Identity(name, True)))
                killed = asyncio.ensure_future(dead.wait())
                await asyncio.wait((call, killed), return_when=asyncio.FIRST_COMPLETED)
                killed.cancel()
                if call.done():
                    return call.result()
                call.cancel()
            return await endpoints[id(two)].give(asked, Identity(name, True))

        async def person(name: str) -> None:
            for number in rng.sample(opened, len(opened)):
                asked = {"command": rng.choice(("approve", "reject")), "proposal": number,
                         "why": "w", "id": f"{name}-{number}"}  # fmt: skip
                began = next(clock)
                status, found = await give(asked, name)
                assert status in (200, 409), found
                if status == 409 and "first" not in found:  # another answer ended its proposal
                    ended.add(number)
                    continue
                named = found["id"] if status == 200 else found["first"]["id"]
                subject = f"verdict/3.{number}"
                calls.append(Call(subject, name, began, next(clock), 0, asked["id"], named))

        async def kill() -> None:
            await steps(rng, 100)
            topics.left = rng.randrange(4)
            one.run(1)
            one.leads = False
            reading[0].cancel()
            dead.set()
            await steps(rng, 30)
            topics.left = None
            take_over(two, readers[id(two)])

        reading = [asyncio.ensure_future(read(readers[id(at)])) for at in (one, two)]
        ticking = asyncio.ensure_future(ticks())
        async with asyncio.timeout(150):
            await asyncio.gather(person("ann"), person("bob"), kill())
        ticking.cancel()
        reading[1].cancel()
        while readers[id(two)].step():
            pass
        two.run(2)
        in_force = two.loop.latest.controls
    answered = [number for number in opened if number not in ended]
    assert len(answered) >= 3
    for number in answered:
        own = [call for call in calls if call.subject == f"verdict/3.{number}"]
        assert len(own) == 2 and explains(own), own
        assert {call.named for call in own} == {in_force[f"verdict/3.{number}"].command_id}
    ends = Counter(d.proposal for d in topics.records if isinstance(d, Decision) and d.proposal)
    assert set(answered) <= set(ends) and set(ends.values()) == {1}
