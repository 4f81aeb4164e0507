"""The Faust application: one agent per control topic, and services that run beside them.

Owns how Faust is set up. Knows nothing of decisions: what a record leads to is `on_record`, what
runs beside the agents is given as coroutines. An application is made per process and per test;
nothing here is global.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import faust
from faust.tables.manager import TableManager
from faust.transport.drivers import aiokafka as driver

from streams.controller.rebuild import FOLLOWED
from streams.poison import Poison
from topics.checks import InvalidRecord
from topics.codec import decode
from topics.table import PREFIX, Topic

log = logging.getLogger(__name__)

OnRecord = Callable[[Any, int], None]
"""(record, offset): a record of a control topic, in order within its partition."""

OnGone = Callable[[str, str], None]
"""(short topic name, key): the key was deleted."""


@dataclass(frozen=True, slots=True)
class AppSettings:
    """How the application joins. group: its consumer group, of this boot only (see `rebuild`).

    fetch_wait_ms: how long a broker may hold a fetch. A real Kafka answers at the first byte; the
    embedded one holds every fetch that long, so there it is the delay of a record.
    """

    bootstrap: str
    group: str
    prefix: str = PREFIX
    fetch_wait_ms: int = 500


def make_app(
    settings: AppSettings,
    on_record: OnRecord,
    on_poison: Callable[[Poison], None],
    on_gone: OnGone,
    services: Mapping[str, Callable[[], Awaitable[None]]] | None = None,
) -> faust.App:
    """An application that follows all partitions of the control topics.

    A record that is not understood goes to `on_poison` and the agent goes on. An exception in
    `on_record` is our bug: it crashes the application, and whoever supervises the process starts
    it again. No tables, no web server, no topics of Faust's own.
    """
    app = _App(
        settings.group,
        broker=f"kafka://{settings.bootstrap}",
        store="memory://",
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="earliest",
        broker_session_timeout=6.0,
        broker_heartbeat_interval=1.0,
        broker_commit_interval=0.5,
        broker_commit_every=100,
        stream_wait_empty=False,
        TableManager=_NoTables,
    )
    app.transport = _transport(app, settings.fetch_wait_ms)
    for topic in FOLLOWED:
        _add_agent(app, topic, settings.prefix, on_record, on_poison, on_gone)
    for name, run in (services or {}).items():
        _add_service(app, name, run)
    app.finalize()
    return app


class _NoTables(TableManager):  # type: ignore[misc]
    """Faust's own waits a second for tables to appear; without any, that only delays a restart."""

    async def on_start(self) -> None:
        await self._update_channels()
        await self.recovery.start()


class _App(faust.App):  # type: ignore[misc]
    """Without folders on disk: there are no tables, and the working folder is the user's."""

    def _create_directories(self) -> None:
        pass


def _add_agent(
    app: faust.App,
    topic: Topic,
    prefix: str,
    on_record: OnRecord,
    on_poison: Callable[[Poison], None],
    on_gone: OnGone,
) -> None:
    channel = app.topic(
        topic.wire_name(prefix),
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
    )

    async def follow(stream: Any) -> None:
        events: AsyncIterable[Any] = stream.events()
        async for event in events:
            message = event.message
            if message.value is None:  # a tombstone
                on_gone(topic.name, (message.key or b"").decode(errors="replace"))
                continue
            try:
                record = decode(topic.name, message.value)
            except InvalidRecord as error:
                on_poison(
                    Poison(topic.name, message.partition, message.offset, message.value, str(error))
                )
                continue
            try:
                on_record(record, message.offset)
            except Exception as error:
                await app.crash(error)  # Faust alone would start the agent again and go on
                raise

    app.agent(channel, name=f"follow-{topic.name}")(follow)


def _add_service(app: faust.App, name: str, run: Callable[[], Awaitable[None]]) -> None:
    class Beside(faust.Service):  # type: ignore[misc]
        """A loop that lives and dies with the application."""

        @property
        def shortlabel(self) -> str:
            return name

        @faust.Service.task  # type: ignore[untyped-decorator]
        async def _run(self) -> None:
            await run()

    app.service(Beside)


def _transport(app: faust.App, fetch_wait_ms: int) -> Any:
    """Faust's own transport holds fetches for 1.5 s and has no setting for it."""

    class Thread(driver.AIOKafkaConsumerThread):  # type: ignore[misc]
        def _create_worker_consumer(self, transport: Any) -> Any:
            consumer = super()._create_worker_consumer(transport)
            consumer._fetch_max_wait_ms = fetch_wait_ms
            return consumer

    class Consumer(driver.Consumer):  # type: ignore[misc]
        def _new_consumer_thread(self) -> Any:
            return Thread(self, loop=self.loop, beacon=self.beacon)

    class Transport(driver.Transport):  # type: ignore[misc]
        pass

    Transport.Consumer = Consumer
    return Transport(app.conf.broker_consumer, app)
