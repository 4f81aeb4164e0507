"""One run of the whole loop on this machine, from the first process to the summary.

Owns the order of things: broker, topics, the parts side by side, the first fleet, then the load;
at the end the load first, then everything else. Clean-up runs whatever happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from autoscaler.domain.cluster import Mode
from streams.broker.admin import BrokerUnreachable, TopicsUnusable, ensure_topics
from streams.files.config import Config
from streams.files.errors import UserError
from streams.ports.seal import read_keys
from streams.up import parts
from streams.up.children import Child, ChildFailed, Children
from streams.up.follow import follow
from streams.up.overhead import harness_overhead_ms
from streams.up.picture import Picture
from streams.up.summary import summarize
from streams.up.view import Facts, View
from topics.signing import CLUSTER_KEY
from topics.table import PREFIX
from topics.timebase import TimeBase

_START_TIMEOUT_S = 60.0
_FIRST_FLEET_REAL_S = 60.0
_SETTLED_S = 0.5
_REDRAW_S = 0.25


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for. for_s: real seconds for the whole run, 0 = the whole trace."""

    config: Config
    config_path: Path
    trace: Path
    trace_s: float
    speed: float
    for_s: float
    broker: str
    gateway_port: int
    seed: int


class Session:
    """Run with `await Session(wishes).run()`; `interrupt()` ends it early but cleanly."""

    def __init__(self, wishes: Wishes, view: View) -> None:
        self._wishes = wishes
        self._view = view
        self._children = Children(_keys())
        self._picture = Picture(wishes.config.cluster)
        self._interrupted = asyncio.Event()
        self._progress: Mapping[str, Any] = {}
        self._headline = "starting"
        self._warning = ""
        self._overhead: Mapping[str, float | None] = {"p50": None, "p99": None}

    @property
    def lost(self) -> str:
        """Parts that failed under way and could not be started again, "" where all is well."""
        return ", ".join(self._children.lost)

    def interrupt(self) -> None:
        """End the run now: no more load, everything down, summary."""
        self._interrupted.set()

    async def run(self) -> dict[str, Any]:
        """The whole run; returns the summary. Raises UserError when it cannot be started."""
        wishes = self._wishes
        if wishes.gateway_port:
            _check_port(wishes.gateway_port)
        started = time.monotonic()
        deadline = started + wishes.for_s if wishes.for_s else float("inf")
        folder = Path(tempfile.mkdtemp(prefix="shoal-up-"))
        time_base = TimeBase(wishes.speed, int(time.time() * 1000), time.monotonic_ns())
        port = wishes.gateway_port or _free_port()
        embedded = not wishes.broker
        prefix = PREFIX if embedded else f"shoal-up-{folder.name.rsplit('-', 1)[1]}."
        run = parts.Run(
            wishes.config, wishes.config_path, folder, time_base, port, wishes.seed, prefix
        )
        self._children.open()
        bootstrap = ""
        keep_logs = False
        report: dict[str, Any] = {}
        tasks: list[asyncio.Task[None]] = []
        try:
            bootstrap = await self._broker(run)
            tasks.append(asyncio.create_task(follow(bootstrap, prefix, self._picture)))
            self._view.start()
            tasks.append(asyncio.create_task(self._draw(time_base, started)))
            url = await self._serve(run, bootstrap)
            if await self._first_fleet(time_base, deadline):
                ready_s = time.monotonic() - started
                self._headline = self._describe(port, ready_s)
                report = await self._load(run, url, deadline)
            self._overhead = await harness_overhead_ms(url, self._picture.endpoints())
        except ChildFailed:
            keep_logs = True
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._view.stop()
            await self._children.close()
            if bootstrap and not embedded:
                await _remove_topics(bootstrap, prefix)
            if not keep_logs:
                shutil.rmtree(folder, ignore_errors=True)
        now_ms = time_base.now_ms(time.monotonic_ns())
        return summarize(
            report,
            self._picture,
            self._picture.bill(now_ms),
            self._overhead,
            wishes.speed,
            time.monotonic() - started,
            {child.name: child.restarts for child in self._children.all()},
        )

    async def _broker(self, run: parts.Run) -> str:
        bootstrap = self._wishes.broker
        if not bootstrap:
            child = await self._children.start(parts.broker(run))
            hello = await self._children.wait_ready(child, _START_TIMEOUT_S)
            bootstrap = str(hello["bootstrap"])
        try:
            await ensure_topics(bootstrap, run.prefix)
        except (BrokerUnreachable, TopicsUnusable) as error:
            raise UserError(f"--broker {bootstrap}: {error}") from error
        return bootstrap

    async def _serve(self, run: parts.Run, bootstrap: str) -> str:
        """Start controller, executors and gateway side by side; returns the gateway's URL."""
        self._headline = "starting the controller, the executors and the gateway"
        gateway = await self._children.start(parts.gateway(run, bootstrap))
        others = [parts.controller(run, bootstrap), *parts.executors(run, bootstrap)]
        children = [gateway, *[await self._children.start(child) for child in others]]
        for child in children:
            if self._interrupted.is_set():
                break
            await self._children.wait_ready(child, _START_TIMEOUT_S)
        return str(gateway.hello.get("url", f"http://{parts.HOST}:{run.gateway_port}"))

    async def _first_fleet(self, time_base: TimeBase, deadline: float) -> bool:
        """Wait until what is first wanted of every model with a floor or a declared rate is ready,
        or cannot be had; False if the run ends before.

        The wait has a limit. When it strikes the load starts, unless some model has nothing at all.
        """
        cluster = self._wishes.config.cluster
        awaited = {
            s.model
            for s in cluster.services
            if s.mode is Mode.ACT and (s.min_instances or s.req_per_s > 0.0)
        }
        limit_s = _FIRST_FLEET_REAL_S + cluster.policy.start_timeout_s / self._wishes.speed
        give_up = time.monotonic() + limit_s
        settled_at = float("inf")
        while True:
            if self._interrupted.is_set() or time.monotonic() >= deadline:
                return False
            self._raise_if_failed()
            progress = self._picture.progress(awaited)
            unmet = self._picture.unmet(time_base.now_ms(time.monotonic_ns()))
            done = f"{progress.ready} of {_several(progress.wanted, 'instance')} ready"
            so_far = f": {done}" if progress.wanted else ""
            self._headline = f"waiting for the first fleet{so_far}"
            now = time.monotonic()
            if awaited <= progress.settled | (unmet.keys() - progress.started):
                # What is decided arrives over several topics; look twice.
                settled_at = min(settled_at, now)
                if now - settled_at >= _SETTLED_S:
                    return True
            else:
                settled_at = float("inf")
            if now >= give_up:
                missing = ", ".join(sorted(awaited - progress.started - unmet.keys()))
                if missing:
                    raise ChildFailed(f"no instance of {missing} was ready within {limit_s:.0f} s")
                self._warning = f"first fleet incomplete after {limit_s:.0f} s: {done}"
                return True
            await asyncio.sleep(0.1)

    async def _load(self, run: parts.Run, url: str, deadline: float) -> dict[str, Any]:
        """Replay the trace; returns the replayer's report."""
        wishes = self._wishes
        start_mono_ns = time.monotonic_ns() + 1_500_000_000  # it imports and reads the trace
        for_s = wishes.trace_s / wishes.speed
        if deadline != float("inf"):
            left_s = deadline - start_mono_ns / 1e9
            for_s = min(for_s, max(0.5, left_s - _tail_s(wishes.for_s)))
        report = run.folder / "replay.json"
        child = parts.replayer(
            run, url, wishes.trace,
            run.time_base.now_ms(start_mono_ns), int(for_s * wishes.speed * 1000), report,
        )  # fmt: skip
        done = asyncio.Event()

        def on_line(said: Mapping[str, object]) -> None:
            progress = said.get("progress")
            if isinstance(progress, dict):
                self._progress = progress
            if said.get("done"):
                done.set()

        child.on_line = on_line
        await self._children.start(child)
        await self._until_over(child, done, deadline)
        await self._children.stop(child, wait_s=6.0)
        if not report.exists():
            return {}
        found: dict[str, Any] = orjson.loads(report.read_bytes())
        return found

    async def _until_over(self, child: Child, done: asyncio.Event, deadline: float) -> None:
        while not done.is_set() and not self._interrupted.is_set():
            if time.monotonic() >= deadline - 2.0 or not child.running:
                return
            self._raise_if_failed()
            await asyncio.sleep(0.1)

    def _raise_if_failed(self) -> None:
        if self._children.failed is not None and self._children.failed.done():
            raise ChildFailed(self._children.failed.result())

    async def _draw(self, time_base: TimeBase, started: float) -> None:
        while True:
            now_ms = time_base.now_ms(time.monotonic_ns())
            late = self._progress.get("late_p99_ms")
            lost = f"\nlost: {self.lost}; what runs goes on as it is" if self.lost else ""
            facts = Facts(
                headline=self._headline + lost,
                elapsed_s=time.monotonic() - started,
                sent=int(self._progress.get("sent", 0)),
                served=int(self._progress.get("served", 0)),
                usd_per_h=self._picture.usd_per_h(),
                usd=self._picture.bill(now_ms).usd,
                late_p99_ms=None if late is None else float(late),
            )
            self._view.update(self._picture, now_ms, facts)
            await asyncio.sleep(_REDRAW_S)

    def _describe(self, port: int, ready_s: float) -> str:
        cluster = self._wishes.config.cluster
        regions = len({pool.region for pool in cluster.pools})
        nodes = sum(pool.max_nodes for pool in cluster.pools)
        return (
            f"shoal on {parts.HOST}: {_several(len(cluster.services), 'model')}, "
            f"{_several(regions, 'region')}, {_several(nodes, 'simulated node')}, "
            f"{self._wishes.trace.name} at {self._wishes.speed:g}x\n"
            f"API :{port}/v1 | ready in {ready_s:.0f} s | Ctrl-C stops everything"
            + (f"\n{self._warning}" if self._warning else "")
        )


def _keys() -> Mapping[str, str]:
    """A key of this run's own for signatures, unless the user has named one."""
    if read_keys():
        return {}
    return {CLUSTER_KEY: secrets.token_hex(32)}


def _tail_s(for_s: float) -> float:
    """Real seconds at the end of a bounded run without new requests, so that the last can end."""
    return min(12.0, max(4.0, 0.08 * for_s))


def _several(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((parts.HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((parts.HOST, port))
        except OSError as error:
            raise UserError(
                f"--port {port}: {parts.HOST}:{port} is in use ({error.strerror}); "
                "another port, or 0 for any free one"
            ) from None


async def _remove_topics(bootstrap: str, prefix: str) -> None:
    """A run on somebody's Kafka takes its topics away again."""
    from aiokafka.admin import AIOKafkaAdminClient

    from topics.table import TABLE

    with contextlib.suppress(Exception):
        async with asyncio.timeout(5.0):
            admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, client_id="shoal-up")
            await admin.start()
            try:
                await admin.delete_topics([topic.wire_name(prefix) for topic in TABLE])
            finally:
                await admin.close()
