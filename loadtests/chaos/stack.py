"""Processes under test: two controllers, an executor per region, two gateways, engines.

Each process reaches the broker through its own relay. Engines are simulated and start within
seconds. A killed process is restarted, as by an init system.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from autoscaler.domain.cluster import Mode
from loadtests.chaos.broker_relay import Relay
from streams.broker.child_broker import own_broker
from streams.broker.topic_admin import ensure_topics
from streams.files.shoal_yaml import Config, load_config
from streams.tools.up import process_list
from streams.tools.up.child_processes import Child, Children
from streams.tools.up.host_resources import free_port, remove_topics
from streams.tools.up.real_engines import RealEngines
from topics.edge.kafka_clients import producer
from topics.keys import CLUSTER_KEY, Keys
from topics.macs import Signer
from topics.time_base import TimeBase
from topics.topic_table import short_name

CONFIG = """
mode: act
defaults: {percentile: 95, utilization: 0.85, scale_in_after: 1m, max_disruption: 34%}
policy: {start_timeout: 2m, local_window: 1m, long_window: 10m}
regions:
  east: {l4: {gpu: L4, per_node: 2, max: 3, price: 1.7, spot_price: 0.64}}
  west: {l4: {gpu: L4, per_node: 1, max: 4, price: 0.85, spot_price: 0.32}}
models:
  chat: {source: meta-llama/Llama-3.1-8B-Instruct, engine: fp8, slo: {ttft: 5s, tpot: 200ms},
         workload: {req_per_s: 2, input: 32, output: 8}, min: 2, regions: [east], max_len: 2048}
  code: {source: meta-llama/Llama-3.2-3B-Instruct, engine: fp8, slo: {ttft: 5s, tpot: 200ms},
         workload: {req_per_s: 2, input: 32, output: 8}, min: 2, regions: [west], max_len: 2048}
engines:
  fp8: {args: [--quantization=fp8]}
"""
Raw = tuple[str, bytes | None, bytes]
MODELS = ("chat", "code")
CONTROLLERS = ("controller-a", "controller-b")
GATEWAYS = ("gateway-a", "gateway-b")
EXECUTORS = ("executor-east", "executor-west")
_STARTUP_S = 6.0
_READY_S = 120.0
_POLL_S = 0.1


class Stack:
    """All processes of one run. folder: for logs and state. bootstrap: the broker's own address.
    real: real engines to use instead of simulated ones. env: further environment variables."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        prefix: str,
        config: str = CONFIG,
        controllers: Sequence[str] = CONTROLLERS,
        executors: Sequence[str] = EXECUTORS,
        gateways: Sequence[str] = GATEWAYS,
        real: RealEngines | None = None,
        env: Mapping[str, str] = {},
    ) -> None:
        self._real = real
        self._controllers, self._executors, self._gateways = controllers, executors, gateways
        self.folder, self.bootstrap, self.prefix = folder, bootstrap, prefix
        self.path = folder / "shoal.yaml"
        self.path.write_text(config)
        self.config: Config = load_config(self.path, Mode.ACT)
        self.base = TimeBase(1.0, time.time_ns() // 1_000_000, time.monotonic_ns())
        self.key = secrets.token_hex(32)
        self.token = secrets.token_hex(16)
        self._env = {CLUSTER_KEY: self.key, "OMP_NUM_THREADS": "1", **env}
        self.children = Children(self._env)
        self.relays: dict[str, Relay] = {}
        self.parts: dict[str, Child] = {}
        self.ports: dict[str, int] = {}
        self._waited_s: dict[tuple[str, int], float] = {}
        self.leads_since: dict[str, tuple[int, float]] = {}

    async def open(self) -> None:
        """Start all processes except the fleet's engines, which the controllers order."""
        (self.folder / "token").write_text(self.token)
        self.children.open()
        for name in (*self._controllers, *self._executors, *self._gateways):
            self.relays[name] = Relay(self.bootstrap)
            await self.relays[name].open()
        for name in self._executors:
            await self._start(name, self._executor(name))
        for name in self._controllers:
            self.ports[name] = free_port()
            await self._start(name, self.controller(name))
        for name in self._gateways:
            self.ports[name] = free_port()
            await self._start(name, self._gateway(name))
        for child in self.parts.values():
            await self.children.wait_ready(child, _READY_S)

    async def close(self) -> None:
        """End everything."""
        for child in self.parts.values():
            self.signal(child.name, signal.SIGCONT)
        await self.children.close()
        for relay in self.relays.values():
            await relay.close()

    async def _start(self, name: str, child: Child) -> None:
        self.parts[name] = child
        await self.children.start(child)

    def pid(self, name: str) -> int:
        """Process id of a part; 0 if the part is not running."""
        process = self.parts[name].process
        return process.pid if process is not None and process.returncode is None else 0

    def signal(self, name: str, what: signal.Signals) -> None:
        """Send a signal to the process of a part, if there is one."""
        pid = self.pid(name)
        if pid:
            os.kill(pid, what)

    def use_key(self, key: str) -> None:
        """Processes that start from now on get this cluster key, two lines during a rotation."""
        self.key = self._env[CLUSTER_KEY] = key

    async def restart(self, name: str) -> None:
        """Kill a part, and wait until its next process is ready."""
        child, pid = self.parts[name], self.pid(name)
        self.signal(name, signal.SIGKILL)
        async with asyncio.timeout(_READY_S):
            while not child.up or self.pid(name) in (0, pid):
                await asyncio.sleep(_POLL_S)

    async def write(self, records: Sequence[Raw]) -> list[Any]:
        """Write each (topic, key, value) with a valid signature of its usual writer.

        Readers ignore unsigned records. Returns the broker's answers.
        """
        signer = Signer(Keys(self.key), lambda: time.time_ns() // 1_000_000, "chaos")
        writer = producer(self.bootstrap, "chaos")
        await writer.start()
        try:
            return [
                await writer.send_and_wait(
                    topic,
                    value,
                    key=key,
                    headers=signer.headers(short_name(topic, self.prefix), key, value),
                )
                for topic, key, value in records
            ]
        finally:
            await writer.stop()

    def leader(self) -> str:
        """Name of the controller that became leader last, by the reports of controllers.

        "" before the first leader.
        """
        return max(self.leads_since, key=lambda n: self.leads_since[n][0], default="")

    def controller(self, name: str) -> Child:
        """Process of the controller `name`."""
        child = self._child(
            name, "streams.controller", "--config", str(self.path),
            "--broker", self.relays[name].address, "--time-base", self.base.format(),
            "--controller-id", name, "--prefix", self.prefix, "--default-mode", "act",
            "--default-capacity", "predicted",
            "--http", f"127.0.0.1:{self.ports[name]}",
            "--alert-token-file", str(self.folder / "token"),
        )  # fmt: skip

        def note_leadership(line: Mapping[str, object]) -> None:
            token = line.get("leader_token")
            if line.get("ready") and isinstance(token, int) and token and "standby_of" not in line:
                self.leads_since[name] = token, time.monotonic()

        child.on_line = note_leadership
        return child

    def _gateway(self, name: str) -> Child:
        state = self.folder / f"{name}-state"
        state.mkdir(exist_ok=True)
        return self._child(
            name, "executors.gateway", "--broker", self.relays[name].address,
            "--port", str(self.ports[name]), "--gateway-id", name, "--prefix", self.prefix,
            "--time-base", self.base.format(), "--state-dir", str(state), "--drain-s", "0.5",
        )  # fmt: skip

    def _executor(self, name: str) -> Child:
        run = process_list.Run(
            self.config, self.path, self.folder, self.base, 0, 1, self.prefix, real=self._real
        )
        region = name.removeprefix("executor-")
        found: dict[str, Any] = dict(
            process_list.node_file(run, region, name, self.relays[name].address)
        )
        if self._real is None:
            found["engines"] = {
                engine: {**settings, "startup_s": _STARTUP_S}
                for engine, settings in found["engines"].items()
            }
        path = self.folder / f"{name}.json"
        path.write_bytes(orjson.dumps(found))
        return self._child(name, "executors.node", "--config", str(path))

    def _child(self, name: str, module: str, *options: str) -> Child:
        argv = [sys.executable, "-m", module, *options]
        return Child(name=name, argv=argv, log=self.folder / f"{name}.log")

    def waited_s(self) -> float:
        """CPU seconds for which the main threads of the parts were ready but waited for a CPU.

        The kernel counts them. They measure the stall of the host: of the controllers together, or
        of another part if it waited longer. Processes that have ended count as they were last seen.
        """
        for name in self.parts:
            pid = self.pid(name)
            try:
                text = Path(f"/proc/{pid}/schedstat").read_text()
                self._waited_s[name, pid] = int(text.split()[1]) / 1e9
            except (OSError, IndexError, ValueError):
                continue
        by_part: Counter[str] = Counter()
        for (name, _), waited_s in self._waited_s.items():
            by_part[name] += waited_s
        together = sum(by_part[name] for name in self._controllers)
        return max(together, *by_part.values(), 0.0)


async def open_stack(closing: AsyncExitStack, folder: Path, broker: str, **parts: Any) -> Stack:
    """A running stack on the broker at address `broker`, "" for an embedded one, with topics of its
    own. `closing` ends both. parts: see `Stack`."""
    prefix = f"chaos-{secrets.token_hex(4)}."
    bootstrap = broker or await closing.enter_async_context(own_broker(prefix))
    await ensure_topics(bootstrap, prefix)
    if broker:
        closing.push_async_callback(remove_topics, bootstrap, prefix)
    stack = Stack(folder, bootstrap, prefix, **parts)
    closing.push_async_callback(stack.close)
    await stack.open()
    return stack


def shifted(base: TimeBase, by_s: float) -> TimeBase:
    """`base` on a host whose clock is `by_s` ahead."""
    return replace(base, origin_ms=base.origin_ms + int(by_s * 1000))
