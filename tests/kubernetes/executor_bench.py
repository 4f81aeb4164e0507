"""An executor on Kubernetes in this process, without Kafka. The test gives it assignments."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp

from executors.kubernetes.kube_client import KubeApi
from executors.kubernetes.kubernetes_config import parse_kubernetes_config
from executors.kubernetes.slot_workers import SlotWorkers
from executors.node.engine_probes import ProbeTimeouts
from executors.node.executor_metrics import Metrics
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status
from topics.keys import Keys

STUB = Path(__file__).parent / "plane" / "engine_stub.py"
TEMPLATE = """
metadata: {labels: {team: serving}}
spec:
  containers:
  - name: engine
    image: engine
    readinessProbe: {httpGet: {path: /health, port: 8000}}
"""


def write_engine(folder: Path) -> tuple[Path, Path]:
    """Write a folder of pod templates and an executable `vllm`, the stub; returns both."""
    templates, vllm = folder / "templates", folder / "vllm"
    templates.mkdir(exist_ok=True)
    (templates / "pod.yaml").write_text(TEMPLATE)
    vllm.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {STUB} "$@"\n')
    vllm.chmod(0o755)
    return templates, vllm


def config_file(folder: Path, pools: dict[str, Any], slots: int = 2, **more: Any) -> dict[str, Any]:
    """The configuration of an executor for `pools`, with `slots` slots of 4 GPUs each."""
    templates, vllm = write_engine(folder)
    nodes = [
        {"node": f"{pool.replace('/', '.')}.{n}", "pool": pool, "gpu": "L4", "gpus": 4}
        for pool in pools
        for n in range(slots)
    ]
    engine = {"kind": "vllm", "executable": str(vllm), "weights": [str(folder)], "stop_s": 1.0}
    executor = {
        "executor": "ex", "region": "us", "broker": "127.0.0.1:9", "state_dir": str(folder),
        "time_base": "1.0,0,0", "nodes": nodes, "engines": {"default": engine},
        "models": {"m": {"source": "m", "max_len": 100, "weights": str(folder)}},
        "drain_timeout_s": 60.0,
    }  # fmt: skip
    return {"executor": executor, "kubernetes": {
        "pools": pools, "templates": str(templates), **more,
    }}  # fmt: skip


def wish(name: str, *gpus: int, drain: bool = False) -> DesiredInstance:
    """An instance of model m."""
    return DesiredInstance(name, "m", "aggregated", f"g:{name}", gpus or (0,), drain=drain)


class Bench:
    """Steps all slots ten times a second. statuses: the latest by slot."""

    def __init__(self, file: dict[str, Any], api: KubeApi) -> None:
        self.config = parse_kubernetes_config(file)
        self.api = api
        self.statuses: dict[str, Status] = {}
        self.metrics = Metrics()
        self._generation = 0
        self._tasks: list[asyncio.Task[Any]] = []

    async def __aenter__(self) -> Bench:
        self._client = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        timeouts = ProbeTimeouts()
        self.slots = SlotWorkers(
            self.config, Keys(), self.api, self._client, self.metrics, timeouts
        )
        self.slots.build(self._publish, "boot", "here", "")
        self.slots.start()
        async with asyncio.timeout(30):
            assert await self.slots.wait_synced(asyncio.Event())
        self.adopted = sum(worker.restore() for worker in self.slots.workers.values())
        self._tasks = [asyncio.create_task(self._step()),
                       asyncio.create_task(self.slots.watch_notices())]  # fmt: skip
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self.slots.workers.values():
            await worker.close()
        await self.slots.close()
        await self._client.close()

    def assign(self, slot: str, *wishes: DesiredInstance) -> None:
        """Put an assignment in force."""
        self._generation += 1
        pool = self.slots.workers[slot].state.pool
        self.slots.workers[slot].accept(
            Assignment(slot, pool, self._generation, 1, 0, tuple(wishes))
        )

    def drain(self, slot: str, *names: str) -> None:
        """Ask instances to drain."""
        state = self.slots.workers[slot].state
        desired = state.assignment.instances if state.assignment else ()
        self.assign(slot, *(replace(w, drain=w.drain or w.instance in names) for w in desired))

    def instance(self, slot: str, name: str) -> ObservedInstance | None:
        """An instance in the latest status."""
        status = self.statuses.get(slot)
        return next((i for i in status.instances if i.instance == name), None) if status else None

    def is_in(self, slot: str, name: str, state: InstanceState) -> bool:
        found = self.instance(slot, name)
        return found is not None and found.state is state

    def ready(self, slot: str, names: Iterable[str]) -> bool:
        """Whether all instances are ready."""
        return all(self.is_in(slot, name, InstanceState.READY) for name in names)

    async def until(self, condition: Callable[[], object], limit_s: float = 60.0) -> float:
        """Wait for `condition`; returns the seconds that it took."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    await asyncio.sleep(0.03)
        except TimeoutError:
            raise AssertionError(f"not within {limit_s} s: {self.statuses}") from None
        return time.monotonic() - began_s

    async def _publish(self, status: Status) -> bool:
        self.statuses[status.node] = status
        return True

    async def _step(self) -> None:
        while True:
            now_ms = self.config.executor.time_base.now_ms(time.monotonic_ns())
            for worker in self.slots.workers.values():
                worker.step(now_ms, time.monotonic(), set())
            await asyncio.sleep(0.1)
