"""Workers of slots on an in-memory cluster. The test steps them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from executors.engines.engine_protocol import LaunchLine, LaunchSpec, Load, RoleSwitch
from executors.kubernetes.kubernetes_config import parse_kubernetes_config
from executors.kubernetes.slot_workers import SlotWorkers
from executors.node.engine_probes import ProbeTimeouts
from executors.node.executor_metrics import Metrics
from tests.unit.kubernetes.fake_cluster import FakeCluster
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status
from topics.keys import Keys

SLOT, OTHER = "us.l4.owned.0", "us.l4.owned.1"
POOL = "us/l4/owned"


@dataclass(frozen=True)
class FakeKind:
    """An engine whose answers the test sets. running: its requests in flight; None = no answer."""

    running: list[int | None] = field(default_factory=lambda: [0])
    image: str = ""
    ports: int = 1
    role_switch: RoleSwitch = RoleSwitch.RELAUNCH
    sleeps: bool = False
    stop_s: float = 5.0

    def launch_line(self, spec: LaunchSpec) -> LaunchLine:
        words = ["engine", f"--host={spec.host}", f"--phase={spec.phase}"]
        if spec.gang is not None:
            words.append(f"--join={spec.gang.rendezvous}")
        return LaunchLine(tuple(words))

    def startup_s(self, spec: LaunchSpec) -> float:
        return 1.0

    async def ready(self, engine: object) -> bool:
        return self.running[0] is not None

    async def alive(self, engine: object) -> bool:
        return self.running[0] is not None

    async def sleep(self, engine: object) -> bool:
        return False

    async def wake(self, engine: object) -> bool:
        return False

    async def load(self, engine: object) -> Load | None:
        return None if self.running[0] is None else Load(self.running[0], 0)


def wish(name: str, *gpus: int, drain: bool = False) -> DesiredInstance:
    return DesiredInstance(name, "m", "aggregated", f"g:{name}", gpus or (0,), drain=drain)


class SlotBench:
    """Two slots of 4 GPUs. statuses: the latest by slot."""

    def __init__(
        self, folder: Path, cluster: FakeCluster, client: aiohttp.ClientSession,
        mode: str = "pods", template: str = "image: e", **more: Any,
    ) -> None:  # fmt: skip
        (folder / "pod.yaml").write_text(f"spec: {{containers: [{{name: engine, {template}}}]}}")
        nodes = [{"node": n, "pool": POOL, "gpu": "L4", "gpus": 4} for n in (SLOT, OTHER)]
        file = {
            "executor": {
                "executor": "ex", "region": "us", "broker": "127.0.0.1:9", "state_dir": "x",
                "time_base": "1.0,0,0", "nodes": nodes, "engines": {},
                "models": {"m": {"source": "m", "max_len": 10}},
            },
            "kubernetes": {
                "pools": {POOL: {"mode": mode, "nodes": {"pool": "l4"}}},
                "templates": str(folder), **more,
            },
        }  # fmt: skip
        config = parse_kubernetes_config(file)
        self.kind = FakeKind()
        executor = replace(config.executor, engines={"default": self.kind})
        self.cluster = cluster
        self.statuses: dict[str, Status] = {}
        self.slots = SlotWorkers(
            replace(config, executor=executor), Keys(), cluster, client, Metrics(), ProbeTimeouts()
        )
        self.slots.build(self._publish, "boot", "here", "")
        self._now_ms = 1_000
        self._generation = 0

    async def open(self) -> int:
        """Sync with the cluster and adopt pods; returns their number."""
        self.slots.start()
        await settle()
        return sum(worker.restore() for worker in self.slots.workers.values())

    def assign(self, slot: str, *wishes: DesiredInstance) -> None:
        self._generation += 1
        assignment = Assignment(slot, POOL, self._generation, 1, 0, wishes)
        self.slots.workers[slot].accept(assignment)

    async def steps(self, count: int = 5, step_ms: int = 1_000) -> None:
        """Step all slots, each step `step_ms` of domain time later."""
        for _ in range(count):
            self._now_ms += step_ms
            for worker in self.slots.workers.values():
                worker.step(self._now_ms, self._now_ms / 1000, set())
            await settle()

    def instance(self, slot: str, name: str) -> ObservedInstance:
        return next(i for i in self.statuses[slot].instances if i.instance == name)

    def state(self, slot: str, name: str) -> InstanceState:
        return self.instance(slot, name).state

    async def close(self) -> None:
        for worker in self.slots.workers.values():
            await worker.close()
        await self.slots.close()

    async def _publish(self, status: Status) -> bool:
        self.statuses[status.node] = status
        return True


async def settle() -> None:
    """Let all tasks run that are ready."""
    for _ in range(60):
        await asyncio.sleep(0)
