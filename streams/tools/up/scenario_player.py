"""Play a scenario into a run: publish prices and availability, and write the executors' faults."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

import orjson
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from streams.tools.up.console_notes import ConsoleNotes
from streams.tools.up.run_state import Picture
from streams.tools.up.scenario_script import ScenarioScript
from topics.codec import encode
from topics.edge.kafka_clients import producer as new_producer
from topics.keys import Keys
from topics.macs import Signer
from topics.storage.durable_files import replace_file
from topics.supply import Availability, Price
from topics.topic_table import key_of, topic_of

log = logging.getLogger(__name__)

_STEP_S = 0.1


class ScenarioPlayer:
    """Plays `script` until cancelled.

    faults: file that the executors read. keys: sign the records. now_ms: domain time. script_s:
    second of the trace, negative before its start. notes: for the console.
    """

    def __init__(
        self,
        script: ScenarioScript,
        picture: Picture,
        faults: Path,
        keys: Keys,
        now_ms: Callable[[], int],
        script_s: Callable[[], float],
        notes: ConsoleNotes,
    ) -> None:
        self._script = script
        self._picture = picture
        self._faults = faults
        self._signer = Signer(keys, lambda: time.time_ns() // 1_000_000)
        self._now_ms = now_ms
        self._script_s = script_s
        self._notes = notes
        self._published: dict[tuple[str, str], Price | Availability] = {}

    async def run(self, bootstrap: str, prefix: str) -> None:
        """Play until cancelled. Raises KafkaError if the broker cannot be reached at the start."""
        producer = new_producer(bootstrap, "shoal-up-scenario")
        await producer.start()
        try:
            while True:
                events = self._step()
                try:
                    await self._publish(producer, prefix)
                except KafkaError as error:
                    log.warning("prices and availability are not published yet: %s", error)
                await self._notes.send(events)
                await asyncio.sleep(_STEP_S)
        finally:
            await producer.stop()

    def _step(self) -> list[str]:
        """Advance the scenario. Returns the texts of its new events."""
        now_ms = self._now_ms()
        done = self._script.step(self._script_s(), now_ms)
        self._picture.story.add(done.lines)
        for node in done.lost:
            self._picture.lose(node, now_ms)
        if done.faults:
            replace_file(self._faults, orjson.dumps(self._script.faults()), sync=False)
        return [event.text for event in done.lines]

    async def _publish(self, producer: AIOKafkaProducer, prefix: str) -> None:
        """Publish the records that changed since their last publication."""
        for record in self._script.records():
            topic, key = topic_of(record), key_of(record)
            place = topic.name, record.pool
            if self._published.get(place) == record:
                continue
            value = encode(record)
            headers = self._signer.headers(topic.name, key, value)
            await producer.send_and_wait(topic.wire_name(prefix), value, key=key, headers=headers)
            self._published[place] = record
