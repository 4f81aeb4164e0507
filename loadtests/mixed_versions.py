"""An upgrade of Shoal itself under load: `python -m loadtests.mixed_versions --former FOLDER
[--broker kafka://HOST:PORT] [--seed 1] [--users 40]`.

FOLDER is a working tree of an earlier commit. Two controllers, an executor, two gateways and
simulated engines begin in that version. In random order, each process is replaced by the present
version, and killed once; then all return to the former version in the same way. Sessions of Locust
stream answers all the time. As behind a load balancer, they repeat a failed request at the other
gateway. No request may be lost, no stream may break that a killed gateway does not explain, and no
engine may be started again. JSON keys:

    former, requests, lost, repeated, broken, engine_launches, steps: [[process, version, event,
    seconds]]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import orjson

from loadtests.arguments import number
from loadtests.chaos.stack import CONTROLLERS, GATEWAYS, Stack
from loadtests.chaos.watch import Topics
from loadtests.session_load import Request, SessionLoad
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.child_broker import own_broker
from streams.broker.topic_admin import ensure_topics
from streams.files.user_errors import UserError
from streams.tools.up.child_processes import Child
from streams.tools.up.host_resources import remove_topics
from topics.edge.supervision import SUPERVISION_VARIABLE as SUPERVISOR

EXECUTOR = "executor-east"
PARTS = (*CONTROLLERS, EXECUTOR, *GATEWAYS)
_INSTANCES = 4
_CONFIG = """mode: act
defaults: {percentile: 95, utilization: 0.85}
policy: {start_timeout: 2m, local_window: 1m, drain_timeout: 30s}
regions: {east: {l40s: {gpu: L40S, per_node: 4, nodes: 1, owned: true}}}
models:
  chat: {source: meta-llama/Llama-3.1-8B-Instruct, engine: fp8, max_len: 2048,
         slo: {ttft: 2s, tpot: 100ms}, min: 4, workload: {req_per_s: 2, input: 64, output: 64}}
engines:
  fp8: {args: [--quantization=fp8]}
"""
_NODE_FILE = """
import sys, pathlib, orjson
from autoscaler.domain.cluster import Mode
from streams.files.shoal_yaml import load_config
from streams.tools.up import process_list
from topics.time_base import TimeBase
path, folder, base, prefix, name, broker = sys.argv[1:]
config = load_config(pathlib.Path(path), Mode.ACT)
speed, origin, start = base.split(",")
time_base = TimeBase(float(speed), int(origin), int(start))
run = process_list.Run(config, pathlib.Path(path), pathlib.Path(folder), time_base, 0, 1, prefix)
found = process_list.node_file(run, name.removeprefix("executor-"), name, broker)
sys.stdout.buffer.write(orjson.dumps(found))
"""
_STARTUP_S = 6.0
_READY_S = 240.0
_TRIES = 5
_REFUSED = ConnectionRefusedError.__name__
_DRAIN_S = "60"
_HERE = Path(__file__).parents[1]


class TwoVersions(Stack):
    """Processes of the former or of the present version. former: its working tree."""

    def __init__(self, folder: Path, bootstrap: str, prefix: str, former: Path) -> None:
        super().__init__(folder, bootstrap, prefix, _CONFIG, CONTROLLERS, (EXECUTOR,))
        self.former = former

    async def replace(self, name: str, tree: Path) -> None:
        """End a process by SIGTERM; the next one runs the code in `tree`."""
        child, pid = self.parts[name], self.pid(name)
        child.argv = [*_code(tree), *child.argv[len(_code(tree)) :]]
        if name == EXECUTOR:
            self._write_node_file(tree)
        self.signal(name, signal.SIGTERM)
        async with asyncio.timeout(_READY_S):
            while not child.up or self.pid(name) in (0, pid):
                await asyncio.sleep(0.1)

    def _executor(self, name: str) -> Child:
        self._write_node_file(self.former)
        return self._child(name, "executors.node", "--config", str(self.folder / f"{name}.json"))

    def _write_node_file(self, tree: Path) -> None:
        """The executor's file as the code in `tree` writes it."""
        argv = [
            *_code(tree), sys.executable, "-c", _NODE_FILE, str(self.path), str(self.folder),
            self.base.format(), self.prefix, EXECUTOR, self.relays[EXECUTOR].address,
        ]  # fmt: skip
        found = orjson.loads(subprocess.run(argv, check=True, capture_output=True).stdout)
        for engine in found["engines"].values():
            engine["startup_s"] = _STARTUP_S
        (self.folder / f"{EXECUTOR}.json").write_bytes(orjson.dumps(found))

    def _child(self, name: str, module: str, *options: str) -> Child:
        made = super()._child(name, module, *options)
        argv = [_DRAIN_S if one == "0.5" else one for one in made.argv]
        made.argv = [*_code(self.former), *argv]
        return made


def _code(tree: Path) -> list[str]:
    """The command that runs its arguments with the code in `tree`. It removes the variable of the
    supervisor, because an executor with a supervisor ends its engines at SIGTERM."""
    return ["env", f"--unset={SUPERVISOR}", f"--chdir={tree}", f"PYTHONPATH={tree}"]


@dataclass(slots=True)
class Judge:
    """Requests by their tries. killed_s: times of kills by gateway. answered: number of requests
    with a whole answer. lost: reasons of the last tries of the others. repeated, broken: reasons of
    failed tries, and of those that no killed gateway explains."""

    killed_s: dict[str, list[float]] = field(default_factory=dict)
    answered: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    repeated: Counter[str] = field(default_factory=Counter)
    broken: Counter[str] = field(default_factory=Counter)

    async def kill(self, stack: Stack, name: str) -> None:
        """Kill a process, and wait until its next one is ready."""
        self.killed_s.setdefault(name, []).append(time.monotonic())
        await stack.restart(name)

    def judge(self, requests: Iterable[Request]) -> None:
        """Count `requests`, all tries of a run."""
        for one in requests:
            if not one.why:
                self.answered += 1
                continue
            self.repeated[one.why] += 1
            if one.why != _REFUSED and not self._was_killed(one):
                self.broken[f"{one.gateway}: {one.why}"] += 1
            if one.tried == _TRIES - 1:
                self.lost[one.why] += 1

    def _was_killed(self, one: Request) -> bool:
        until_s = one.sent_s + one.took_s
        return any(one.sent_s <= at_s <= until_s for at_s in self.killed_s.get(one.gateway, ()))


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 all held, 1 a request was lost, a stream broke or an engine was started again,
    2 the run failed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.mixed_versions")
    parser.add_argument("--former", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--broker", default="", metavar="kafka://HOST:PORT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--users", type=int, default=40, help="sessions at a time (40)")
    parser.add_argument("--parts", default=",".join(PARTS), help="processes to replace (all)")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the logs here")
    parser.add_argument("--pause", type=number(0.0, 600.0), default=5.0, help="s between steps (5)")
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)
    try:
        return asyncio.run(_run(options))
    except (UserError, BrokerUnreachable, TimeoutError) as error:
        print(f"mixed_versions: {error or 'too slow'}", file=sys.stderr)
        return 2


async def _run(options: argparse.Namespace) -> int:
    prefix, rng = f"mixed-{secrets.token_hex(4)}.", random.Random(options.seed)
    former, parts = options.former.resolve(), options.parts.split(",")
    async with contextlib.AsyncExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(prefix="shoal-mixed-"))
        bootstrap = options.broker.removeprefix("kafka://")
        embedded = not bootstrap
        if embedded:
            bootstrap = await closing.enter_async_context(own_broker(prefix))
        await ensure_topics(bootstrap, prefix)
        if not embedded:
            closing.push_async_callback(remove_topics, bootstrap, prefix)
        stack = TwoVersions(Path(folder), bootstrap, prefix, former)
        closing.push_async_callback(stack.close)
        if options.logs:
            closing.callback(_keep_logs, Path(folder), options.logs)
        topics = Topics()
        following = asyncio.create_task(topics.follow(stack, embedded))
        await stack.open()
        async with asyncio.timeout(_READY_S):
            while len(getattr(topics.routes.get("chat"), "groups", ())) < _INSTANCES:
                await asyncio.sleep(0.2)
        judge = Judge()
        gateways = {name: f"http://127.0.0.1:{stack.ports[name]}" for name in GATEWAYS}
        load = SessionLoad(
            gateways, ("chat",), options.users, Path(folder) / "locust.log", tokens=(32, 96),
            tries=_TRIES, seed=options.seed,
        )  # fmt: skip
        loading = asyncio.create_task(load.run())
        steps: list[tuple[str, str, str, float]] = []

        async def step(
            name: str, version: str, what: str, act: Callable[[], Awaitable[None]]
        ) -> None:
            await asyncio.sleep(options.pause)
            began_s = time.monotonic()
            await act()
            steps.append((name, version, what, round(time.monotonic() - began_s, 1)))
            print(*steps[-1], file=sys.stderr, flush=True)

        for version, tree in (("present", _HERE), ("former", former)):
            for name in rng.sample(parts, len(parts)):
                await step(name, version, "replaced", partial(stack.replace, name, tree))
                await step(name, version, "killed", partial(judge.kill, stack, name))
        await asyncio.sleep(options.pause)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        if differs := load.unread():
            raise UserError(differs)
        judge.judge(load.requests)
        following.cancel()
        launches = sum(len(times) for times in topics.launches.values())
        found = {
            "former": former.name,
            "requests": judge.answered + judge.lost.total(),
            "lost": dict(judge.lost),
            "repeated": dict(judge.repeated),
            "broken": dict(judge.broken),
            "engine_launches": launches,
            "steps": steps,
        }
        print(json.dumps(found, indent=1))
        return int(bool(judge.lost or judge.broken or launches != _INSTANCES))


def _keep_logs(folder: Path, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.log"):
        shutil.copy(path, to)


if __name__ == "__main__":
    sys.exit(main())
