"""A topic that was deleted and created again is noticed and read again."""

from __future__ import annotations

import random

from loadtests.invariants.clients import SimConsumer
from loadtests.invariants.log import Link, Log
from loadtests.invariants.virtual import Process
from streams.broker.consumer_lag import ConsumerLag
from streams.controller.control_topics import ControlTopics
from topics.codec import encode
from topics.controls import Control
from topics.topic_table import CONTROLS, PREFIX


def pause(scope: str) -> Control:
    return Control(scope, "pause", True, "ann", "a test", 1)


class Reading:
    """A reader of `controls` in virtual time, and the scopes that it has read."""

    def __init__(self) -> None:
        self.process = Process(0.0)
        self.log = Log(lambda: self.process.now_s, transactional=True)
        self.scopes: list[str] = []
        self.created: list[str] = []
        self.read_at_the_end: list[str] = []
        link = Link(random.Random(1))

        def now() -> float:
            return self.process.now_s

        self.control = ControlTopics(
            "", PREFIX, {},
            lambda _topic, record, *_: self.scopes.append(record.scope),
            print, print,
            topics=(CONTROLS,),
            on_created=self.created.append,
            open_consumer=lambda *_, **__: SimConsumer(self.log, link, now),
            monotonic_s=now,
        )  # fmt: skip
        self.control.behind = ConsumerLag(PREFIX, now, now)
        for scope in ("a", "b", "c"):
            self.write(scope)
        self.process.start(self._run())
        self.process.run_until(1.0)

    async def _run(self) -> None:
        await self.control.start()
        await self.control.follow()

    def write(self, scope: str) -> None:
        record = pause(scope)
        self.log.append("controls", record.key.encode(), encode(record))

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
