"""Reading of a control topic: after it was created again, and with forged records."""

from __future__ import annotations

import random

from loadtests.invariants.clients import SimConsumer
from loadtests.invariants.log import Link, Log
from loadtests.invariants.virtual import Process
from streams.broker.consumer_lag import ConsumerLag
from streams.controller.control_topics import NO_KEYS, ControlTopics
from streams.invalid_records import Poison
from topics.codec import encode
from topics.controls import Control
from topics.keys import Keys
from topics.macs import Signer, Verifier
from topics.topic_table import CONTROLS, PREFIX


def pause(scope: str) -> Control:
    return Control(scope, "pause", True, "ann", "a test", 1)


class Reading:
    """A reader of `controls` in virtual time, and the scopes that it has read."""

    def __init__(self, keys: Keys = NO_KEYS, forged: int = 0) -> None:
        self.process = Process(0.0)
        self.log = Log(lambda: self.process.now_s, transactional=True)
        self.scopes: list[str] = []
        self.created: list[str] = []
        self.poison: list[Poison] = []
        self.read_at_the_end: list[str] = []
        link = Link(random.Random(1))

        def now() -> float:
            return self.process.now_s

        self.control = ControlTopics(
            "", PREFIX, {},
            lambda _topic, record, *_: self.scopes.append(record.scope),
            print, self.poison.append,
            topics=(CONTROLS,),
            verifier=Verifier(keys),
            on_created=self.created.append,
            open_consumer=lambda *_, **__: SimConsumer(self.log, link, now),
            monotonic_s=now,
        )  # fmt: skip
        self.control.behind = ConsumerLag(PREFIX, now, now)
        self._signer = Signer(keys, lambda: 1)
        for scope in ("a", "b", "c"):
            self.write(scope)
        for _ in range(forged):
            self.log.append("controls", pause("b").key.encode(), encode(pause("b")))
        self.process.start(self._run())
        self.process.run_until(1.0)

    async def _run(self) -> None:
        await self.control.start()
        await self.control.follow()

    def write(self, scope: str) -> None:
        key, value = pause(scope).key.encode(), encode(pause(scope))
        self.log.append("controls", key, value, self._signer.headers("controls", key, value))

    async def catch_up(self) -> None:
        await self.control.caught_up()
        self.read_at_the_end = list(self.scopes)


def test_a_topic_that_was_created_again_is_reported_and_read() -> None:
    """The old position is beyond the end of the new topic. Nothing of it counts as read."""
    reading = Reading()
    assert reading.scopes == ["a", "b", "c"] and not reading.created
    reading.log.delete("controls")
    reading.log.create()
    reading.write("d")
    reading.process.start(reading.catch_up())
    reading.process.run_until(5.0)
    assert reading.read_at_the_end == ["a", "b", "c", "d"]
    assert reading.created == ["controls"]
    reading.process.kill()


def test_forged_records_hide_no_valid_one_from_a_controller_that_starts() -> None:
    """Only the last records of a key are decoded, and ten forged ones follow the valid one."""
    reading = Reading(Keys("c" * 32), forged=10)
    assert reading.scopes == ["a", "b", "c"] and reading.poison
    reading.process.kill()
