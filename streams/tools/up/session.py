"""One run of the whole system on this machine, from the first process to the summary.

The start order is: broker, topics, the parts in parallel, the first fleet, the load. At the end the
load stops first, then everything else. Clean-up follows every error.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
from aiokafka.errors import KafkaError

from autoscaler.domain.cluster import Mode
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import TopicsUnusable, ensure_topics
from streams.files.keyfiles import console_token_file, run_key_file, write_key
from streams.files.user_errors import UserError
from streams.health.tokens import OPERATOR_TOKEN, read_token
from streams.machine_load import IdleTime
from streams.plain_text import several
from streams.tools.up import process_list
from streams.tools.up.child_processes import Child, ChildFailed, Children
from streams.tools.up.console_notes import ConsoleNotes
from streams.tools.up.host_resources import check_port, free_port, remove_topics
from streams.tools.up.live_view import View
from streams.tools.up.request_overhead import harness_overhead_ms
from streams.tools.up.run_options import Wishes
from streams.tools.up.run_state import Picture
from streams.tools.up.run_summary import Ended, summarize
from streams.tools.up.scenario_player import ScenarioPlayer
from streams.tools.up.scenario_script import ScenarioScript
from streams.tools.up.start_words import first_fleet_words, starting_words
from streams.tools.up.status_view import Shown
from streams.tools.up.topic_follower import follow
from streams.tools.up.trace_facts import Span
from topics.edge.key_files import read_keys
from topics.error_text import error_text
from topics.keys import CLUSTER_KEY, Keys, Principal, credential
from topics.time_base import TimeBase
from topics.topic_table import PREFIX

_START_TIMEOUT_S = 180.0  # the first start of a controller compiles code
_FIRST_FLEET_REAL_S = 60.0
_SETTLED_S = 0.5


class Session:
    """One run. `await Session(wishes).run()` performs it; `interrupt()` ends it early but
    cleanly."""

    def __init__(self, wishes: Wishes, view: View) -> None:
        self._wishes = wishes
        self._own_keys = _keys()
        self._children = Children(self._own_keys)
        self._key_files: list[Path] = []
        self.picture = Picture(wishes.config.cluster)
        self._shown = Shown(wishes, view, self.picture, self._children)
        self._interrupted = asyncio.Event()
        self._overhead: Mapping[str, float | None] = {"p50": None, "p99": None}
        self._bootstrap = ""
        self._windows = False  # Whether window workers take part, as on every real Kafka.
        self._following: asyncio.Task[None] | None = None
        self._drawing: asyncio.Task[None] | None = None
        self._playing: asyncio.Task[None] | None = None
        self.ended_ms = 0  # Domain time of the run's end, when the parts begin to end.
        self.logs: Path | None = None  # Kept if a part failed.

    @property
    def lost(self) -> str:
        """Parts that failed during the run and could not be restarted; "" if there are none."""
        return ", ".join(self._children.lost)

    def span(self, sent: int) -> Span | None:
        """The span of the run, after it ended; None if no request could be sent."""
        began_ms, first_ms = self._shown.trace_began_ms, self.picture.first_launch_ms
        if not sent or not began_ms or self.ended_ms <= began_ms:
            return None
        lead_s = max(0, began_ms - first_ms) / 1000.0 if first_ms else 0.0
        return Span(lead_s, (self.ended_ms - began_ms) / 1000.0, sent)

    def interrupt(self) -> None:
        """End the run now: stop the load, end all parts, and write the summary."""
        self._interrupted.set()
        self._shown.silent = True
        self._shown.stand("stopping...")

    async def run(self) -> dict[str, Any]:
        """Perform the run and return its summary. UserError: the run cannot be started."""
        wishes = self._wishes
        if wishes.gateway_port:
            check_port(wishes.gateway_port)
        started = time.monotonic()
        for_s = wishes.for_s or float("inf")
        # Real engines have no predictable start, so time counts from the first ready one.
        deadline = float("inf") if wishes.real else started + for_s
        folder = Path(tempfile.mkdtemp(prefix="shoal-up-"))
        time_base = TimeBase(wishes.speed, int(time.time() * 1000), time.monotonic_ns())
        self._shown.time_base = time_base
        port = wishes.gateway_port or free_port()
        embedded = not wishes.broker
        prefix = PREFIX if embedded else f"shoal-up-{folder.name.rsplit('-', 1)[1]}."
        run = process_list.Run(
            wishes.config, wishes.config_path, folder, time_base, port, wishes.seed, prefix,
            wishes.demands, wishes.log_options, wishes.real, wishes.operated,
            folder / "faults.json" if wishes.events and not wishes.real else None,
        )  # fmt: skip
        self._children.open()
        self._children.on_event = self._shown.say
        self.logs = folder
        report: dict[str, Any] = {}
        fine = False
        try:
            if await self._unless_interrupted(self._broker(run)):
                following = follow(self._bootstrap, prefix, self.picture)
                self._following = asyncio.create_task(following)
                if run.faults is not None:
                    self._playing = asyncio.create_task(self._play(run, run.faults))
                self._shown.begin()
                self._drawing = asyncio.create_task(self._shown.draw())
                serving = self._serve(run, self._bootstrap)
                if await self._unless_interrupted(serving) and await self._first_fleet(deadline):
                    self._shown.serves(port, time.monotonic() - started)
                    if wishes.real:
                        deadline = time.monotonic() + for_s
                    report = await self._load(run, self._url(run), deadline)
                self._overhead = await harness_overhead_ms(self._url(run), self.picture.endpoints())
            fine = True
        except UserError as error:
            fine = not isinstance(error, ChildFailed)
            raise
        finally:
            self.ended_ms = self._shown.stop()
            for task in (self._playing, self._following):
                if task is not None:
                    await _cancelled(task)
            await self._children.close()
            if self._drawing is not None:
                await _cancelled(self._drawing)
            self._shown.end()
            for path in self._key_files:
                path.unlink(missing_ok=True)
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
            Ended(
                wishes.traffic,
                wishes.for_s,
                self._interrupted.is_set(),
                {} if report else self._shown.last_counts(),
            ),
            time_base.origin_ms,
        )

    async def _unless_interrupted(self, work: Coroutine[Any, Any, object]) -> bool:
        """Whether `work` ended before the run was interrupted. An interrupt cancels `work`."""
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

    async def _broker(self, run: process_list.Run) -> None:
        bootstrap = self._wishes.broker
        if not bootstrap:
            child = await self._children.start(process_list.broker(run))
            hello = await self._children.wait_ready(child, _START_TIMEOUT_S)
            bootstrap = str(hello["bootstrap"])
        try:
            ensured = await ensure_topics(bootstrap, run.prefix)
        except (BrokerUnreachable, TopicsUnusable) as error:
            raise UserError(f"--broker {bootstrap}: {error}") from error
        self._bootstrap = bootstrap
        self._windows = not ensured.embedded
        self._leave_key(run.prefix)

    def _leave_key(self, prefix: str) -> None:
        """Store an operator's key, so that `shoal pause`, `apply` and other commands of this user
        can sign records for this run."""
        cluster = self._own_keys.get(CLUSTER_KEY)
        if cluster is None:
            return
        key = credential(cluster, Principal.OPERATOR)
        self._leave(run_key_file(self._bootstrap, prefix), key, "commands cannot sign for this run")

    def _leave(self, path: Path, text: str, otherwise: str) -> None:
        """Store `text` for other commands of this user until the end of the run."""
        try:
            write_key(path, text)
        except OSError as error:
            self._shown.say(f"{otherwise}: {error}", bad=True)
        else:
            self._key_files.append(path)

    async def _serve(self, run: process_list.Run, bootstrap: str) -> None:
        """Start controller, executors and gateway side by side."""
        run = replace(run, windows=self._windows)
        children = [process_list.gateway(run, bootstrap), process_list.controller(run, bootstrap)]
        children += process_list.executors(run, bootstrap)
        children += [process_list.windows(run, bootstrap)] if run.windows else []
        for child in children:
            await self._children.start(child)
        telling = asyncio.create_task(self._tell_start(children))
        try:
            for child in children:
                hello = await self._children.wait_ready(child, _START_TIMEOUT_S)
                if hello.get("http"):
                    self._show_console(str(hello["http"]))
        finally:
            await _cancelled(telling)

    async def _tell_start(self, children: Sequence[Child]) -> None:
        """Show the parts that are not ready, until cancelled."""
        began_s = time.monotonic()
        while True:
            waits = [child.name for child in children if not child.ready.is_set()]
            self._shown.state = starting_words(waits, time.monotonic() - began_s)
            await asyncio.sleep(0.2)

    def _show_console(self, url: str) -> None:
        """Show the console's address, with the token for commands if this run made one."""
        token = self._own_keys.get(OPERATOR_TOKEN, "")
        if token:
            self._leave(console_token_file(url), token, "shoal console cannot show the token")
        self._shown.console_url = url
        self._shown.say(f"console: {url}/{f'#operator={token}' if token else ''}")

    def _url(self, run: process_list.Run) -> str:
        return f"http://{process_list.HOST}:{run.gateway_port}"

    async def _first_fleet(self, deadline: float) -> bool:
        """Wait until the first planned instances of every model with a minimum or a declared rate
        are ready or unavailable. Returns False if the run ends before.

        The wait has a limit, which is longer on a loaded machine. At the limit the load starts,
        or ChildFailed names the models without any ready instance.
        """
        cluster = self._wishes.config.cluster
        awaited = {
            s.model
            for s in cluster.services
            if s.mode is Mode.ACT and (s.min_instances or s.req_per_s > 0.0)
        }
        limit_s = _FIRST_FLEET_REAL_S + process_list.longest_start_s(cluster) / self._wishes.speed
        waited = IdleTime()
        settled_at = float("inf")
        while True:
            if self._interrupted.is_set() or time.monotonic() >= deadline:
                return False
            self._raise_if_failed()
            unplanned, members = self._routed()
            awaited |= members
            progress = self.picture.progress(awaited)
            unmet = self.picture.unmet(self._shown.now_ms())
            done = f"{progress.ready} of {several(progress.wanted, 'instance')} ready"
            self._shown.state = first_fleet_words(progress, limit_s)
            now = time.monotonic()
            if not unplanned and awaited <= progress.settled | (unmet.keys() & progress.nothing):
                # The records of one decision arrive over several topics, so check twice.
                settled_at = min(settled_at, now)
                if now - settled_at >= _SETTLED_S:
                    return True
            else:
                settled_at = float("inf")
            if waited.passed_s() >= limit_s:
                missing = ", ".join(sorted((awaited | unplanned) - progress.started - unmet.keys()))
                if missing:
                    raise ChildFailed(f"no instance of {missing} was ready within {limit_s:.0f} s")
                self._shown.say(f"first fleet incomplete after {limit_s:.0f} s: {done}", bad=True)
                return True
            await asyncio.sleep(0.1)

    def _routed(self) -> tuple[set[str], set[str]]:
        """Two sets of names: the services of several models that have no thresholds yet, and the
        models to which services with thresholds send requests."""
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

    async def _load(self, run: process_list.Run, url: str, deadline: float) -> dict[str, Any]:
        """Replay the trace. Returns the replayer's report."""
        wishes = self._wishes
        start_mono_ns = time.monotonic_ns() + 1_500_000_000  # time to import and to read the trace
        for_ms: int | None = None
        if deadline != float("inf"):
            left_s = max(0.5, deadline - start_mono_ns / 1e9 - _tail_s(wishes.for_s))
            if left_s * wishes.speed <= wishes.traffic.duration_s:
                for_ms = int(left_s * wishes.speed * 1000)
        start_ms = run.time_base.now_ms(start_mono_ns)
        self._shown.trace_began_ms = start_ms
        report = run.folder / "replay.json"
        child = process_list.replayer(run, url, wishes, start_ms, for_ms, report)
        done = asyncio.Event()

        def on_line(said: Mapping[str, object]) -> None:
            progress = said.get("progress")
            if isinstance(progress, dict):
                self._shown.progress = progress
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

    def _play(self, run: process_list.Run, faults: Path) -> Coroutine[Any, Any, None]:
        """Play the scenario until cancelled."""
        pools = self._wishes.config.cluster.pools
        script = ScenarioScript(self._wishes.events, pools, self.picture.bill)
        keys = Keys(cluster=self._own_keys[CLUSTER_KEY]) if self._own_keys else read_keys()
        token = self._own_keys.get(OPERATOR_TOKEN) or read_token(os.environ, OPERATOR_TOKEN).read()
        notes = ConsoleNotes(lambda: self._shown.console_url, token)
        player = ScenarioPlayer(
            script, self.picture, faults, keys, self._shown.now_ms, self._shown.trace_s, notes
        )
        return player.run(self._bootstrap, run.prefix)

    def _raise_if_failed(self) -> None:
        if self._children.failed is not None and self._children.failed.done():
            raise ChildFailed(self._children.failed.result())
        if self._drawing is not None and self._drawing.done():
            self._drawing.result()
        for task, doing in ((self._following, "read from"), (self._playing, "written to")):
            if task is None or not task.done():
                continue
            try:
                task.result()
            except (KafkaError, OSError) as error:
                why = error_text(error)
                raise ChildFailed(f"records cannot be {doing} Kafka: {why}") from error


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _keys() -> Mapping[str, str]:
    """A new key for this run's signatures and a new token for commands in the console, each unless
    the user has named one."""
    made = {} if read_keys() else {CLUSTER_KEY: secrets.token_hex(32)}
    if not read_token(os.environ, OPERATOR_TOKEN):
        made[OPERATOR_TOKEN] = secrets.token_urlsafe(12)
    return made


def _tail_s(for_s: float) -> float:
    """Real seconds without new requests at the end of a bounded run, so that the last requests can
    end."""
    return min(12.0, max(4.0, 0.08 * for_s))
