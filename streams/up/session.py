"""One run of the whole loop on this machine, from the first process to the summary.

Owns the order of things: broker, topics, the parts side by side, the first fleet, then the load;
at the end the load first, then everything else. Clean-up runs whatever happened.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from autoscaler.domain.cluster import Mode
from autoscaler.domain.workload import Demand
from autoscaler.explain import reasons
from streams.broker.admin import TopicsUnusable, ensure_topics
from streams.broker.reach import BrokerUnreachable
from streams.files.config import Config
from streams.files.errors import UserError
from streams.ports.seal import read_keys
from streams.up import parts
from streams.up.children import Child, ChildFailed, Children
from streams.up.follow import follow
from streams.up.host import check_port, free_port, remove_topics
from streams.up.overhead import harness_overhead_ms
from streams.up.picture import Picture
from streams.up.real import RealEngines
from streams.up.screen import Facts
from streams.up.story import Event, clock
from streams.up.summary import Ended, summarize
from streams.up.traffic import Gap, Traffic
from streams.up.view import View
from topics.loglines import DEFAULT_LEVEL
from topics.signing import CLUSTER_KEY
from topics.table import PREFIX
from topics.timebase import TimeBase

_START_TIMEOUT_S = 60.0
_FIRST_FLEET_REAL_S = 60.0
_SETTLED_S = 0.5
_REDRAW_S = 0.25


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for. for_s: real seconds for the whole run, 0 = the whole trace.

    demands: of the trace's first minutes, for models that declare no rate; `config` has them.
    real: engines that are not simulated. operated: options of the controller.
    """

    config: Config
    config_path: Path
    trace: Path
    traffic: Traffic
    speed: float
    for_s: float
    broker: str
    gateway_port: int
    seed: int
    demands: Mapping[str, Demand] = field(default_factory=dict)
    log_level: str = DEFAULT_LEVEL
    real: RealEngines | None = None
    operated: tuple[str, ...] = ()


class Session:
    """Run with `await Session(wishes).run()`; `interrupt()` ends it early but cleanly."""

    def __init__(self, wishes: Wishes, view: View) -> None:
        self._wishes = wishes
        self._view = view
        self._children = Children(_keys())
        self.picture = Picture(wishes.config.cluster)
        self._interrupted = asyncio.Event()
        self._progress: Mapping[str, Any] = {}
        self._title: tuple[str, ...] = ()
        self._state = "starting"
        self._visible = False
        self._overhead: Mapping[str, float | None] = {"p50": None, "p99": None}
        self._time_base = TimeBase(wishes.speed, 0, 0)
        self._bootstrap = ""
        self._trace_began_ms = 0  # domain time at which trace time 0 is replayed; 0: not yet
        self._told_gaps = 0
        self.ended_ms = 0  # domain time at which the run was over and the parts were told to end
        self.logs: Path | None = None  # kept where something failed

    @property
    def lost(self) -> str:
        """Parts that failed under way and could not be started again, "" where all is well."""
        return ", ".join(self._children.lost)

    def interrupt(self) -> None:
        """End the run now: no more load, everything down, summary."""
        self._interrupted.set()
        self._stopping()

    async def run(self) -> dict[str, Any]:
        """The whole run; returns the summary. Raises UserError when it cannot be started."""
        wishes = self._wishes
        if wishes.gateway_port:
            check_port(wishes.gateway_port)
        started = time.monotonic()
        for_s = wishes.for_s or float("inf")
        # Real engines take as long to start as they take: the time counts from the first one on.
        deadline = float("inf") if wishes.real else started + for_s
        folder = Path(tempfile.mkdtemp(prefix="shoal-up-"))
        self._time_base = TimeBase(wishes.speed, int(time.time() * 1000), time.monotonic_ns())
        port = wishes.gateway_port or free_port()
        embedded = not wishes.broker
        prefix = PREFIX if embedded else f"shoal-up-{folder.name.rsplit('-', 1)[1]}."
        run = parts.Run(
            wishes.config, wishes.config_path, folder, self._time_base, port, wishes.seed, prefix,
            wishes.demands, wishes.log_level, wishes.real, wishes.operated,
        )  # fmt: skip
        self._children.open()
        self._children.on_event = self._say
        self.logs = folder
        report: dict[str, Any] = {}
        following: asyncio.Task[None] | None = None
        drawing: asyncio.Task[None] | None = None
        fine = False
        try:
            if await self._unless_interrupted(self._broker(run)):
                following = asyncio.create_task(follow(self._bootstrap, prefix, self.picture))
                self._view.start()
                self._visible = True
                self._tell_workloads()
                drawing = asyncio.create_task(self._draw())
                serving = self._serve(run, self._bootstrap)
                if await self._unless_interrupted(serving) and await self._first_fleet(deadline):
                    self._title, self._state = self._describe(port, time.monotonic() - started)
                    if wishes.real:
                        deadline = time.monotonic() + for_s
                    report = await self._load(run, self._url(run), deadline)
                self._overhead = await harness_overhead_ms(self._url(run), self.picture.endpoints())
            fine = True
        except UserError as error:
            fine = not isinstance(error, ChildFailed)
            raise
        finally:
            self.ended_ms = self._now_ms()
            self._stopping()
            if following is not None:
                await _cancelled(following)
            await self._children.close()
            if drawing is not None:
                await _cancelled(drawing)
            self._state = "ended"
            self._show()
            self._view.stop()
            if self._bootstrap and not embedded:
                await remove_topics(self._bootstrap, prefix)
            if fine and not self.lost:
                shutil.rmtree(folder, ignore_errors=True)
                self.logs = None
        return summarize(
            report,
            self.picture,
            self.ended_ms,
            self._overhead,
            wishes.speed,
            time.monotonic() - started,
            {child.name: child.restarts for child in self._children.all()},
            Ended(wishes.traffic, wishes.for_s, self._interrupted.is_set()),
        )

    def _now_ms(self) -> int:
        return self._time_base.now_ms(time.monotonic_ns())

    def _say(self, text: str, bad: bool = False) -> None:
        self.picture.story.append(Event(self._now_ms(), text, bad))
        self._show()

    def _stopping(self) -> None:
        self._state = "stopping..."
        self._show()

    async def _unless_interrupted(self, work: Coroutine[Any, Any, object]) -> bool:
        """Whether `work` was done before somebody ended the run; it is cancelled if not."""
        task = asyncio.ensure_future(work)
        interrupted = asyncio.ensure_future(self._interrupted.wait())
        either: set[asyncio.Future[Any]] = {task, interrupted}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        interrupted.cancel()
        if not task.done():
            await _cancelled(task)
            return False
        task.result()
        return True

    async def _broker(self, run: parts.Run) -> None:
        bootstrap = self._wishes.broker
        if not bootstrap:
            child = await self._children.start(parts.broker(run))
            hello = await self._children.wait_ready(child, _START_TIMEOUT_S)
            bootstrap = str(hello["bootstrap"])
        try:
            await ensure_topics(bootstrap, run.prefix)
        except (BrokerUnreachable, TopicsUnusable) as error:
            raise UserError(f"--broker {bootstrap}: {error}") from error
        self._bootstrap = bootstrap

    async def _serve(self, run: parts.Run, bootstrap: str) -> None:
        """Start controller, executors and gateway side by side."""
        self._state = "starting the controller, the executors and the gateway"
        children = [parts.gateway(run, bootstrap), parts.controller(run, bootstrap)]
        children += parts.executors(run, bootstrap)
        for child in children:
            await self._children.start(child)
        for child in children:
            await self._children.wait_ready(child, _START_TIMEOUT_S)

    def _url(self, run: parts.Run) -> str:
        return f"http://{parts.HOST}:{run.gateway_port}"

    async def _first_fleet(self, deadline: float) -> bool:
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
        limit_s = _FIRST_FLEET_REAL_S + parts.longest_start_s(cluster) / self._wishes.speed
        give_up = time.monotonic() + limit_s
        settled_at = float("inf")
        while True:
            if self._interrupted.is_set() or time.monotonic() >= deadline:
                return False
            self._raise_if_failed()
            unplanned, members = self._routed()
            awaited |= members
            progress = self.picture.progress(awaited)
            unmet = self.picture.unmet(self._now_ms())
            done = f"{progress.ready} of {_several(progress.wanted, 'instance')} ready"
            so_far = f": {done}" if progress.wanted else ""
            self._state = f"waiting for the first fleet{so_far}"
            now = time.monotonic()
            if not unplanned and awaited <= progress.settled | (unmet.keys() & progress.nothing):
                # What is decided arrives over several topics; look twice.
                settled_at = min(settled_at, now)
                if now - settled_at >= _SETTLED_S:
                    return True
            else:
                settled_at = float("inf")
            if now >= give_up:
                missing = ", ".join(sorted((awaited | unplanned) - progress.started - unmet.keys()))
                if missing:
                    raise ChildFailed(f"no instance of {missing} was ready within {limit_s:.0f} s")
                self._say(f"first fleet incomplete after {limit_s:.0f} s: {done}", bad=True)
                return True
            await asyncio.sleep(0.1)

    def _routed(self) -> tuple[set[str], set[str]]:
        """Services of several models without thresholds yet, and the models to which the others
        send requests."""
        known = self.picture.routes
        names = {route.name for route in self._wishes.config.cluster.routes}
        splits = [routes.split for name in names if (routes := known.get(name)) and routes.split]
        members = {
            model
            for split in splits
            for model, share in zip(split.models, split.shares, strict=False)
            if share > 0.0
        }
        return names - known.keys(), members

    async def _load(self, run: parts.Run, url: str, deadline: float) -> dict[str, Any]:
        """Replay the trace; returns the replayer's report."""
        wishes = self._wishes
        start_mono_ns = time.monotonic_ns() + 1_500_000_000  # it imports and reads the trace
        for_ms: int | None = None
        if deadline != float("inf"):
            left_s = max(0.5, deadline - start_mono_ns / 1e9 - _tail_s(wishes.for_s))
            if left_s * wishes.speed <= wishes.traffic.duration_s:
                for_ms = int(left_s * wishes.speed * 1000)
        start_ms = run.time_base.now_ms(start_mono_ns)
        self._trace_began_ms = start_ms
        report = run.folder / "replay.json"
        child = parts.replayer(run, url, wishes.trace, start_ms, for_ms, report)
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

    async def _draw(self) -> None:
        while True:
            self._tell_gaps()
            self._show()
            await asyncio.sleep(_REDRAW_S)

    def _show(self) -> None:
        """Draw what is now, once there is something to see."""
        if not self._visible:
            return
        now_ms = self._now_ms()
        late = self._progress.get("late_p99_ms")
        down, lost = ", ".join(self._children.down()), self.lost
        alerts = [f"! down: {down}; starting again"] if down else []
        alerts += [f"! lost: {lost}; what runs goes on as it is"] if lost else []
        gap = None if self._interrupted.is_set() else self._gap(now_ms)
        quiet = f"no requests in the trace until {self._clock_of(gap.end_s)} | " if gap else ""
        facts = Facts(
            title=self._title,
            state=quiet + self._state,
            alerts=tuple(alerts),
            began_ms=self._time_base.origin_ms,
            sent=int(self._progress.get("sent", 0)),
            served=int(self._progress.get("served", 0)),
            failed=int(self._progress.get("failed", 0)),
            usd=self.picture.bill(now_ms).usd,
            late_p99_ms=None if late is None else float(late),
        )
        self._view.update(self.picture, now_ms, facts)

    def _gap(self, now_ms: int) -> Gap | None:
        """The silence of the trace in which we are, if we are in one."""
        at_s = (now_ms - self._trace_began_ms) / 1000.0 if self._trace_began_ms else -1.0
        return next((g for g in self._wishes.traffic.gaps if g.start_s <= at_s < g.end_s), None)

    def _tell_workloads(self) -> None:
        """Of which models the trace says what to plan for at first."""
        for model, demand in self._wishes.demands.items():
            lengths = demand.lengths
            self._say(
                f"{model} declares no rate: planned for the start of the trace, "
                f"{reasons.rate(demand.req_per_s)} req/s of {lengths.input_tokens:.0f} tokens in "
                f"and {lengths.output_tokens:.0f} out"
            )

    def _tell_gaps(self) -> None:
        gap = self._gap(self._now_ms())
        if gap is not None and self._wishes.traffic.gaps.index(gap) >= self._told_gaps:
            self._told_gaps = self._wishes.traffic.gaps.index(gap) + 1
            until = self._clock_of(gap.end_s)
            self._say(f"the trace has no requests until {until} (a gap in the record)")

    def _clock_of(self, trace_s: float) -> str:
        """A time of the trace by the clock of the screen."""
        return clock(self._trace_began_ms + trace_s * 1000.0 - self._time_base.origin_ms)

    def _describe(self, port: int, ready_s: float) -> tuple[tuple[str, ...], str]:
        """The title of the run and what it does now."""
        cluster = self._wishes.config.cluster
        regions = len({pool.region for pool in cluster.pools})
        nodes = cluster.most_nodes
        kind = "real node" if self._wishes.real else "simulated node"
        title = (
            f"shoal: {self._wishes.trace.name} at {self._wishes.speed:g}x | "
            f"{_several(len(cluster.services), 'model')}, "
            f"{_several(regions, 'region')}, {_several(nodes, kind)}"
        )
        api = f"API http://{parts.HOST}:{port}/v1"
        return (title,), f"{api} | ready in {ready_s:.0f} s | Ctrl-C stops everything"


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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
