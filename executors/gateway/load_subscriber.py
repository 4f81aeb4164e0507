"""Receive the load of engines from executors and pass it to the routers.

Loads older than 1.5 s are dropped; routing then uses weights and the gateway's own requests in
flight, as without feeds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import zmq
import zmq.asyncio

from autoscaler.serving.request_router import Router
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.route_table import RouteTable
from executors.load_feed import MAX_BYTES, EngineLoad, decode, parse_feed
from topics.records import Endpoint

log = logging.getLogger(__name__)

_MAX_AGE_S = 1.5
_REFRESH_S = 0.5


@dataclass(slots=True)
class _Subscription:
    socket: zmq.asyncio.Socket
    task: asyncio.Task[None]


class LoadSubscriber:
    """Subscribes to the ZeroMQ feeds that the routes name."""

    def __init__(self, table: RouteTable, metrics: GatewayMetrics) -> None:
        self._table = table
        self._metrics = metrics
        self._context = zmq.asyncio.Context()
        self._feeds: dict[str, _Subscription] = {}
        self._received_s: dict[tuple[str, Endpoint], float] = {}
        self._endpoints: dict[str, list[tuple[str, Endpoint]]] = {}
        metrics.add_gauge(
            "loads_known", "Instances with a fresh load", lambda: len(self._received_s)
        )

    async def run(self) -> None:
        """Follow the routes and forget old loads. Never returns."""
        try:
            while True:
                self.refresh(asyncio.get_running_loop().time())
                await asyncio.sleep(_REFRESH_S)
        finally:
            for feed in list(self._feeds):
                self._unsubscribe(feed)
            self._context.destroy(linger=0)

    def refresh(self, now_s: float) -> None:
        """Subscribe to the feeds of the current routes and forget old loads."""
        routers = self._table.routers
        routed_feeds = {
            feed for router in routers.values() if router.routes for feed in router.routes.feeds
        }
        for feed in self._feeds.keys() - routed_feeds:
            self._unsubscribe(feed)
        for feed in routed_feeds - self._feeds.keys():
            self._subscribe(feed)
        self._endpoints = _by_address(routers)
        for key in [key for key, at_s in self._received_s.items() if now_s - at_s > _MAX_AGE_S]:
            model, endpoint = key
            del self._received_s[key]
            if model in routers:
                routers[model].forget_load(endpoint)
                self._table.notify(model)

    def on_loads(self, loads: list[EngineLoad], now_s: float) -> None:
        """Report the loads of one message to the routers."""
        models = set()
        for load in loads:
            for model, endpoint in self._endpoints.get(load.address, ()):
                router = self._table.routers.get(model)
                if router is not None:
                    router.report_load(endpoint, load.running + load.waiting, load.held_kv)
                    self._received_s[model, endpoint] = now_s
                    models.add(model)
        for model in models:
            self._table.notify(model)

    def _subscribe(self, text: str) -> None:
        feed = parse_feed(text)
        if feed is None:
            return
        public, secret = zmq.curve_keypair()
        socket = self._context.socket(zmq.SUB)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IPV6, 1),
            (zmq.CONFLATE, 1),  # keep only the newest message of an executor
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
        task = asyncio.create_task(self._receive(socket))
        self._feeds[text] = _Subscription(socket, task)

    def _unsubscribe(self, text: str) -> None:
        subscription = self._feeds.pop(text)
        subscription.task.cancel()
        subscription.socket.close()

    async def _receive(self, socket: zmq.asyncio.Socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            loads = decode(await socket.recv())
            if loads is None:
                self._metrics.bad_loads.inc()
            else:
                self.on_loads(loads, loop.time())


def _by_address(routers: Mapping[str, Router]) -> dict[str, list[tuple[str, Endpoint]]]:
    endpoints: dict[str, list[tuple[str, Endpoint]]] = {}
    for model, router in routers.items():
        for endpoint in router.endpoints():
            endpoints.setdefault(endpoint.address, []).append((model, endpoint))
    return endpoints
