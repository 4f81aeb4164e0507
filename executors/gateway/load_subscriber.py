"""Hears from executors how busy engines are, and tells the routers.

Owns the ZeroMQ sockets. A load that is older than 1.5 s is forgotten: requests go by weights and by
what this gateway has in flight itself, as they do where there are no feeds at all.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import zmq
import zmq.asyncio

from autoscaler.serving.routing import Router
from executors.gateway.gateway_metrics import Metrics
from executors.gateway.route_table import RouteTable
from executors.load_feed import MAX_BYTES, EngineLoad, decode, parse_feed
from topics.records import Endpoint

log = logging.getLogger(__name__)

_FRESH_S = 1.5
_LOOK_S = 0.5


@dataclass(slots=True)
class _Listening:
    socket: zmq.asyncio.Socket
    task: asyncio.Task[None]


class LoadSubscriber:
    """The feeds that the routes name."""

    def __init__(self, table: RouteTable, metrics: Metrics) -> None:
        self._table = table
        self._metrics = metrics
        self._context = zmq.asyncio.Context()
        self._feeds: dict[str, _Listening] = {}
        self._heard_s: dict[tuple[str, Endpoint], float] = {}
        self._ends: dict[str, list[tuple[str, Endpoint]]] = {}
        metrics.show("loads_known", "Instances whose load is known", lambda: len(self._heard_s))

    async def run(self) -> None:
        """For ever: listen where the routes say, forget what is old."""
        try:
            while True:
                self.look(asyncio.get_running_loop().time())
                await asyncio.sleep(_LOOK_S)
        finally:
            for feed in list(self._feeds):
                self._leave(feed)
            self._context.destroy(linger=0)

    def look(self, now_s: float) -> None:
        """Follow the routes as they are now."""
        routers = self._table.routers
        wanted = {
            feed for router in routers.values() if router.routes for feed in router.routes.feeds
        }
        for feed in self._feeds.keys() - wanted:
            self._leave(feed)
        for feed in wanted - self._feeds.keys():
            self._join(feed)
        self._ends = _by_address(routers)
        for known in [known for known, at_s in self._heard_s.items() if now_s - at_s > _FRESH_S]:
            model, endpoint = known
            del self._heard_s[known]
            if model in routers:
                routers[model].forget_load(endpoint)
                self._table.wake(model)

    def heard(self, loads: list[EngineLoad], now_s: float) -> None:
        """One message of an executor."""
        woken = set()
        for load in loads:
            for model, endpoint in self._ends.get(load.address, ()):
                router = self._table.routers.get(model)
                if router is not None:
                    router.report_load(endpoint, load.running + load.waiting, load.held_kv)
                    self._heard_s[model, endpoint] = now_s
                    woken.add(model)
        for model in woken:
            self._table.wake(model)

    def _join(self, text: str) -> None:
        feed = parse_feed(text)
        if feed is None:
            return
        public, secret = zmq.curve_keypair()
        socket = self._context.socket(zmq.SUB)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.CONFLATE, 1),  # of one executor only the last word counts
            (zmq.MAXMSGSIZE, MAX_BYTES),
            (zmq.RECONNECT_IVL_MAX, 5_000),
            (zmq.CURVE_SERVERKEY, feed.key),
            (zmq.CURVE_PUBLICKEY, public),
            (zmq.CURVE_SECRETKEY, secret),
            (zmq.SUBSCRIBE, b""),
        ):
            socket.setsockopt(option, value)
        try:
            socket.connect(feed.url)
        except zmq.ZMQError as error:
            log.warning("load feed %s: %s", feed.url, error)
            socket.close()
            return
        task = asyncio.create_task(self._listen(socket))
        self._feeds[text] = _Listening(socket, task)

    def _leave(self, text: str) -> None:
        left = self._feeds.pop(text)
        left.task.cancel()
        left.socket.close()

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            loads = decode(await socket.recv())
            if loads is None:
                self._metrics.bad_loads.inc()
            else:
                self.heard(loads, loop.time())


def _by_address(routers: Mapping[str, Router]) -> dict[str, list[tuple[str, Endpoint]]]:
    found: dict[str, list[tuple[str, Endpoint]]] = {}
    for model, router in routers.items():
        for endpoint in router.endpoints():
            found.setdefault(endpoint.address, []).append((model, endpoint))
    return found
