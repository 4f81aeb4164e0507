"""A broker for all tests of executors, and one node with its executor per test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from executors.kafka_client import KafkaClient
from executors.node.engine_environment import LaunchTag, read_tag
from executors.node.procfs import all_processes
from tests.hang_limit import HANG_S
from topics.records import Assignment, DesiredInstance, Leadership, ObservedInstance, Status
from topics.time_base import TimeBase

POOL = "r/h100/owned"
TOKEN = 1
DRAIN_TIMEOUT_MS = 9_000_000  # 180 real s, as a start after a kill may take long
TREE = str(Path(__file__).with_name("tree_executor.py"))
SIMULATED = "-m", "executors.node", "--log-level", "info", "--config"


class Harness:
    """One node with its executors, its assignments and its status."""

    def __init__(self, folder: Path, bootstrap: str, kafka: KafkaClient) -> None:
        self.folder = folder
        self.node = f"n-{uuid.uuid4().hex[:8]}"
        self.kafka = kafka
        self.bootstrap = bootstrap
        self.base = TimeBase(50.0, 1_700_000_000_000, time.monotonic_ns())
        self.log = folder / "executor.log"
        self.status: Status | None = None
        self.statuses: list[Status] = []
        self.metrics_url = ""
        self.supervised, self._supervisor = os.pipe()
        self._running: list[subprocess.Popen[bytes]] = []
        kafka.follow(("status",), self._heard, only=(self.node,))

    def _heard(self, _topic: str, _key: str, record: Status, _append_ms: int) -> None:
        self.status = record
        self.statuses.append(record)

    def config(self, state: str = "state", **more: object) -> Path:
        path = self.folder / f"{state}.json"
        value = {
            "executor": "ex-1", "region": "r", "broker": self.bootstrap,
            "state_dir": str(self.folder / state), "time_base": self.base.format(),
            "nodes": [{"node": self.node, "pool": POOL, "gpu": "H100-SXM", "gpus": 8}],
            "models": {"mini": {"source": "meta-llama/Llama-3.1-8B", "max_len": 8192}},
            "engines": {"default": {"kind": "simulated", "startup_s": 20.0}}, **more,
        }  # fmt: skip
        path.write_text(json.dumps(value))
        return path

    def spawn(
        self, config: Path | None = None, tree: str = "", leash: bool = False, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start an executor. tree: role-switch strategy of its two-process engines."""
        path = str(config or self.config())
        argv = [sys.executable, TREE, path, tree] if tree else [sys.executable, *SIMULATED, path]
        fds: tuple[int, ...] = ()
        if leash:
            env["SHOAL_SUPERVISION_FD"], fds = str(self.supervised), (self.supervised,)
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                argv, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **env}, pass_fds=fds
            )
        self._running.append(process)
        return process

    async def start(
        self, config: Path | None = None, tree: str = "", leash: bool = False, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start an executor as `spawn` does, and wait until it reports that it is ready."""
        process = self.spawn(config, tree, leash, **env)
        hello = await asyncio.to_thread(process.stdout.readline)
        if not hello:
            raise AssertionError(self.log.read_text())
        self.metrics_url = json.loads(hello)["metrics"]
        return process

    def assignment(
        self, generation: int, *wishes: DesiredInstance, token: int = TOKEN
    ) -> Assignment:
        now_ms = self.base.now_ms(time.monotonic_ns())
        return Assignment(
            self.node, POOL, generation, token, now_ms, wishes, drain_timeout_ms=DRAIN_TIMEOUT_MS
        )

    async def assign(self, generation: int, *wishes: DesiredInstance, token: int = TOKEN) -> None:
        record = self.assignment(generation, *wishes, token=token)
        assert await self.kafka.publish("assignments", self.node, record)

    def get(self, instance: str) -> ObservedInstance | None:
        found = self.status.instances if self.status else ()
        return next((i for i in found if i.instance == instance), None)

    async def until(self, true: Callable[[], object], what: str) -> None:
        for _ in range(int(HANG_S / 0.02)):
            if true():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never {what}; {self.status}")

    async def until_state(self, instance: str, state: str) -> ObservedInstance:
        await self.until(lambda: (i := self.get(instance)) and i.state == state, f"{state}")
        found = self.get(instance)
        assert found is not None
        return found

    async def until_ready(self, *instances: str) -> None:
        for instance in instances:
            await self.until_state(instance, "ready")

    def engines(self, state: str = "state") -> dict[str, list[int]]:
        """Living processes of this node's engines, by launch, with the leader first."""
        found: dict[str, list[int]] = {}
        for process in all_processes():
            tag = read_tag(process.pid, str(self.folder / state))
            if isinstance(tag, LaunchTag) and tag.node == self.node:
                ours = found.setdefault(f"{tag.desired.instance} {tag.launch}", [])
                ours.insert(0 if process.pid == process.group else len(ours), process.pid)
        return found

    def pids(self) -> dict[str, list[int]]:
        """Living engine processes by instance. Fails if an instance has two engines."""
        found = {}
        for key, pids in self.engines().items():
            instance = key.split()[0]
            assert instance not in found, f"{instance} runs twice"
            found[instance] = pids
        return found

    def metric(self, name: str) -> float:
        """The sum of one of the executor's series over all labels; 0 if it does not exist."""
        with urllib.request.urlopen(self.metrics_url) as answer:  # noqa: S310  loopback
            lines = answer.read().decode().splitlines()
        return sum(float(li.rpartition(" ")[2]) for li in lines if li.startswith(name))

    def close(self) -> None:
        os.close(self._supervisor)
        os.close(self.supervised)
        for process in self._running:
            process.kill()
            process.wait()
            process.stdout.close()
        for state in {path.stem for path in self.folder.glob("*.json")}:
            for pids in self.engines(state).values():
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    broker = subprocess.Popen([sys.executable, "-m", "streams.broker"], stdout=subprocess.PIPE)
    yield json.loads(broker.stdout.readline())["bootstrap"]
    broker.terminate()
    broker.wait()
    broker.stdout.close()


@pytest.fixture
async def harness(tmp_path: Path, bootstrap: str) -> AsyncIterator[Harness]:
    async with KafkaClient(bootstrap, "test") as kafka:
        while not kafka.connected:
            await asyncio.sleep(0.01)
        claim = Leadership("c-1", uuid.uuid4().hex, "claim", 0)
        assert await kafka.publish("leadership", "claim", claim)
        found = Harness(tmp_path, bootstrap, kafka)
        try:
            yield found
        finally:
            found.close()


def wish(
    name: str, *gpus: int, drain: bool = False, phase: str = "aggregated", group: str = "g:1"
) -> DesiredInstance:
    return DesiredInstance(name, "mini", phase, group, gpus, drain=drain)


def stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    return process.wait(HANG_S)


def alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
