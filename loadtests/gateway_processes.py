"""Processes for the gateway's benchmarks: an engine, other proxies, our gateway.

This module starts and ends them. CPU seconds and memory come from /proc.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from autoscaler.serving.routing_policies import WithinCombo
from loadtests.gateway_targets import nginx_config
from streams.tools.up.host_resources import free_port
from topics.codec import encode
from topics.records import Endpoint, RouteGroup, Routes
from topics.storage.checked_lines import checked_line
from topics.time_base import TimeBase

_PART = (sys.executable, "-m", "loadtests.gateway_targets")
Process = subprocess.Popen[str]


@dataclass
class Target:
    """One route to the engine. pids: the proxy's processes, or the engine's for direct requests.
    workers: number of serving processes."""

    name: str
    address: str
    pids: tuple[int, ...]
    workers: int = 1
    plain: int = 0
    plain_cpu_s: float = 0.0
    even: int = 0
    even_cpu_s: float = 0.0
    streams: int = 0
    stream_cpu_s: float = 0.0
    late_ms: list[float] = field(default_factory=list)
    base_mib: float = 0.0
    open_mib: float = 0.0
    failed: int = 0


def cpu_s(pids: tuple[int, ...]) -> float:
    """User and system CPU seconds of the processes."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def rss_mib(pids: tuple[int, ...]) -> float:
    """Resident memory of the processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def peak_mib(pids: tuple[int, ...]) -> float:
    """Sum of each process's peak memory since `forget_peak`."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1])
    return total / 1024


def forget_peak(pids: tuple[int, ...]) -> None:
    """Reset the peak memory of the processes."""
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def children(pid: int) -> tuple[int, ...]:
    """Processes that `pid` started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return tuple(int(word) for word in text.split())


def said_port(process: Process) -> int:
    """Read the port from the first line of the process's output."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return int(json.loads(line)["url"].rsplit(":", 1)[1]) if "{" in line else int(line)


class Stand:
    """Starts an engine, and gateways and proxies that send requests to it. The context manager
    `started` ends all of them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._processes: list[Process] = []
        self.targets: list[Target] = []
        engine = self._run(*_PART, "engine")
        self._engine = f"127.0.0.1:{said_port(engine)}"
        self.targets.append(Target("direct", self._engine, (engine.pid,)))

    def bare(self, workers: int) -> None:
        """Start the aiohttp proxy with `workers` processes on one port."""
        command = (*_PART, "bare", "--upstream", self._engine)
        first = self._run(*command)
        port = said_port(first)
        others = [self._run(*command, "--port", str(port)) for _ in range(workers - 1)]
        assert all(said_port(other) == port for other in others)
        pids = tuple(process.pid for process in (first, *others))
        self._add("bare", port, pids, workers)

    def nginx(self) -> None:
        """Start nginx, if it is installed."""
        if not shutil.which("nginx"):
            return
        port = free_port()
        config = Path(self._folder, "nginx.conf")
        config.write_text(nginx_config(port, self._engine, self._folder))
        nginx = self._run("nginx", "-p", self._folder, "-c", str(config))
        time.sleep(0.5)
        self._add("nginx", port, (nginx.pid, *children(nginx.pid)), 1)

    def shoal(
        self, workers: int, inside: WithinCombo = WithinCombo.OPPORTUNISTIC, instances: int = 1
    ) -> None:
        """Start our gateway, with routes and without a broker. The engine stands for all
        instances."""
        state = Path(self._folder, f"shoal{len(self.targets)}")
        port = self._engine.rpartition(":")[2]
        ends = tuple(Endpoint(f"e{at}", f"127.0.0.{at}:{port}") for at in range(1, instances + 1))
        group = RouteGroup("g", 1.0, ends)
        routes = Routes("chat", 1, 1, 0, 2000.0, 60.0, (group,))
        for home in [f"w{n + 1}" for n in range(workers)] if workers > 1 else ["."]:
            Path(state, home).mkdir(parents=True)
            Path(state, home, "routes.jsonl").write_bytes(checked_line(encode(routes)))
        base = TimeBase(1.0, 0, time.monotonic_ns()).format()
        shoal = self._run(
            sys.executable, "-m", "executors.gateway", "--broker", "127.0.0.1:9",
            "--time-base", base, "--state-dir", str(state), "--drain-s", "1",
            f"--inside={inside}",
            *(("--workers", str(workers)) if workers > 1 else ()),
        )  # fmt: skip
        port = said_port(shoal)
        name = "shoal" if inside is WithinCombo.OPPORTUNISTIC else f"shoal {inside}"
        self._add(name, port, (shoal.pid, *children(shoal.pid)), workers)

    def _add(self, name: str, port: int, pids: tuple[int, ...], workers: int) -> None:
        name = f"{name}-{workers}" if workers > 1 else name
        self.targets.append(Target(name, f"127.0.0.1:{port}", pids, workers))

    def _run(self, *command: str) -> Process:
        made = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._processes.append(made)
        return made

    def end(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait(10)


@contextmanager
def started(gateways: Sequence[int], others: bool) -> Iterator[list[Target]]:
    """Start all processes, yield their targets, and end the processes.

    gateways: number of workers of each of our gateways. others: whether other proxies start too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the processes on SIGTERM as well
    with tempfile.TemporaryDirectory() as folder:
        stand = Stand(folder)
        try:
            if others:
                for workers in gateways:
                    stand.bare(workers)
                stand.nginx()
            for workers in gateways:
                stand.shoal(workers)
            yield stand.targets
        finally:
            stand.end()
