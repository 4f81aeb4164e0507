"""Publishes the load of this executor's engines to gateways while any gateway subscribes.

The loads are read four times a second, or less often if reading takes more than a twentieth of the
time. A load that cannot be read is left out; gateways then balance by weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import aiohttp
import zmq
import zmq.asyncio

from executors.engines.engine_protocol import Contact, EngineKind
from executors.load_feed import EngineLoad, encode, feed_text
from executors.node.node_state import InstanceRecord
from topics.fleet import InstanceState

log = logging.getLogger(__name__)

_EVERY_S = 0.25
_SHARE = 0.05
_LIMIT_S = 1.0
_BACKLOG = 16  # maximum of queued messages per gateway, small because old loads are useless
_ASKED = (InstanceState.READY, InstanceState.DRAINING)


class LoadPublisher:
    """The load feed of one executor. address_of: returns "host:port" at which this process reaches
    an instance's engine; records: returns all instances."""

    def __init__(
        self,
        kinds: Mapping[str, EngineKind],
        client: aiohttp.ClientSession,
        address_of: Callable[[InstanceRecord], str],
        records: Callable[[], list[InstanceRecord]],
    ) -> None:
        self._kinds = kinds
        self._client = client
        self._address_of = address_of
        self._records = records
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._listeners = 0

    def open(self, bind: str, advertise: str) -> str:
        """Listen on a free port of `bind`. Returns the feed's address for records, "" on
        failure."""
        public, secret = zmq.curve_keypair()
        socket = self._socket
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, _BACKLOG)
        socket.setsockopt(zmq.IPV6, int(":" in bind))
        socket.setsockopt(zmq.XPUB_VERBOSER, 1)
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, secret)
        try:
            shown = f"[{bind}]" if ":" in bind else bind
            port = socket.bind_to_random_port(f"tcp://{shown}")
        except zmq.ZMQError as error:
            log.warning("%s: no load feed: %s", bind, error)
            return ""
        return feed_text(advertise, port, public)

    async def run(self) -> None:
        """Read and publish loads until cancelled."""
        listening = asyncio.create_task(self._count_listeners())
        loop = asyncio.get_running_loop()
        try:
            while True:
                took_s = 0.0
                if self._listeners > 0:
                    began_s = loop.time()
                    loads = await self._loads()
                    took_s = loop.time() - began_s
                    await self._socket.send(encode(loads))
                await asyncio.sleep(max(_EVERY_S, took_s / _SHARE))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    def close(self) -> None:
        """Close the socket."""
        self._context.destroy(linger=0)

    async def _count_listeners(self) -> None:
        while True:
            word: bytes = await self._socket.recv()
            self._listeners += {1: 1, 0: -1}.get(word[0] if word else 2, 0)

    async def _loads(self) -> list[EngineLoad]:
        questions: list[Coroutine[Any, Any, EngineLoad | None]] = []
        for item in self._records():
            kind = self._kinds.get(item.desired.engine)
            if kind is not None and item.state in _ASKED and item.ports and item.endpoint:
                questions.append(self._read_load(item, kind))
        return [load for load in await asyncio.gather(*questions) if load is not None]

    async def _read_load(self, item: InstanceRecord, kind: EngineKind) -> EngineLoad | None:
        contact = Contact(self._client, self._address_of(item), item.desired.model)
        try:
            load = await asyncio.wait_for(kind.load(contact), _LIMIT_S)
        except TimeoutError:
            return None
        if load is None:
            return None
        return EngineLoad(item.endpoint, load.running, load.waiting, load.held_kv)
