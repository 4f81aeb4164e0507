"""Metrics of an executor, and its /metrics endpoint on loopback."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.metadata import version

from aiohttp import web
from aiohttp.http import HttpVersion11
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from topics.http_origin import HostRule

_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_HOST = "127.0.0.1"
_IDLE_S = 30.0
_LONG_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Metrics:
    """All metrics of one executor."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        build = Gauge("shoal_build_info", "Version of Shoal", ["version"], registry=self.registry)
        build.labels(version("shoal")).set(1.0)
        self.refused = Counter(
            "shoal_executor_refused_assignments",
            "Refused assignments by reason: leader token, generation, node, unclaimed token",
            ("reason",),
            registry=self.registry,
        )
        self.forged = Gauge(
            "shoal_executor_forged_records",
            "Records since the start without a valid signature",
            registry=self.registry,
        )
        self.launches = Counter(
            "shoal_executor_launches", "Engines started", ("engine",), registry=self.registry
        )
        self.failed_launches = Counter(
            "shoal_executor_failed_launches",
            "Engines that did not start, or ended before they served",
            ("engine",),
            registry=self.registry,
        )
        self.orphans = Counter(
            "shoal_executor_orphans",
            "Engine processes that the executor had not recorded, adopted or killed",
            ("done",),
            registry=self.registry,
        )
        self.instances = Gauge(
            "shoal_executor_instances", "Instances by state", ("state",), registry=self.registry
        )
        self.switches = Histogram(
            "shoal_role_switch_seconds",
            "Domain seconds of a role switch, until the new phase is served or the switch fails",
            ("engine", "strategy", "outcome"),
            buckets=_LONG_S,
            registry=self.registry,
        )
        self.wakes = Histogram(
            "shoal_executor_wake_seconds",
            "Domain seconds from waking a standby until it generates a token or is restarted",
            ("engine", "outcome"),
            buckets=_LONG_S,
            registry=self.registry,
        )
        self.stops = Histogram(
            "shoal_executor_stop_seconds",
            "Real seconds from SIGTERM until the last process of an engine was gone",
            ("engine",),
            buckets=_LONG_S,
            registry=self.registry,
        )
        self.faults = Gauge(
            "shoal_executor_faults", "Faults in the current status", registry=self.registry
        )


async def serve(metrics: Metrics, port: int, host: str = _HOST) -> web.AppRunner:
    """Serve /metrics and /livez, on loopback by default. `addresses` of the result holds the
    address. Raises OSError if the port is in use."""

    async def show(_: web.Request) -> web.Response:
        body = generate_latest(metrics.registry)
        return web.Response(body=body, headers={"Content-Type": _TEXT})

    async def live(_: web.Request) -> web.Response:
        """Answers while the event loop runs, also without Kafka and without the API server."""
        return web.Response(text="ok\n")

    app = web.Application(middlewares=[_for_this_host])
    app.router.add_get("/livez", live)
    app.router.add_get("/metrics", show)
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=_IDLE_S)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner


@web.middleware
async def _for_this_host(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse other host names, so that a web page cannot read metrics through DNS rebinding."""
    hosts = request.headers.getall("Host", [])
    refused = HostRule(_HOST).refusal(hosts, request.version < HttpVersion11)
    if refused is not None:
        return web.Response(status=refused[0], text=f"{refused[1]}\n")
    return await handler(request)
