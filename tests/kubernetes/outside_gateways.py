"""Gateways outside of the single pod, as the chart makes them, and the Services before them.

The test takes the place of kubelet and Services for Shoal's own pods: they need no image.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp

from tests.kubernetes.stream_load import StreamLoad
from tests.kubernetes.test_single_restart import free_port
from topics.codec import decode
from topics.records import Routes
from topics.storage.checked_lines import read_lines

PRE_STOP_S = 5.0


class Gateways:
    """Two gateways, and streams to them. counts: finished streams by outcome."""

    def __init__(self, folder: Path, config: Path, tls: Path, broker: int) -> None:
        self._folder, self._config, self._broker = folder, config, broker
        files = {"CA_FILE": "tls.crt", "CERT_FILE": "tls.crt", "KEY_FILE": "tls.key"}
        self._env = os.environ | {"SHOAL_KAFKA_PROTOCOL": "SSL"}
        self._env |= {f"SHOAL_KAFKA_{name}": str(tls / file) for name, file in files.items()}
        self._ports = [free_port(), free_port()]
        self._endpoints = list(self._ports)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._load = StreamLoad(lambda: [f"127.0.0.1:{port}" for port in self._endpoints], "m")
        self.counts = self._load.counts

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start both, and end them like containers."""
        for number in range(2):
            await self._start(number)
        try:
            yield
        finally:
            for number in range(2):
                await self._stop(number)

    async def _start(self, number: int) -> None:
        with self._log(number).open("ab") as log:
            self._processes[number] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "streams.cli.entry", "gateway", f"--config={self._config}",
                f"--broker=127.0.0.1:{self._broker}", f"--port={self._ports[number]}",
                f"--id=gateway-{number}", f"--state-dir={self._state(number)}", "--drain-s=20",
                stdout=log, stderr=log, env=self._env,
            )  # fmt: skip

    async def _stop(self, number: int) -> None:
        self._processes[number].send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await self._processes[number].wait() == 0, self.log()

    async def roll(self) -> None:
        """Replace them as a StatefulSet does: one at a time, each without the former's files."""
        for number in (1, 0):
            self._endpoints.remove(self._ports[number])
            await asyncio.sleep(PRE_STOP_S)
            await self._stop(number)
            shutil.rmtree(self._state(number))
            await self._start(number)
            async with asyncio.timeout(120):
                while (await self.ready())[number] != 200:
                    await asyncio.sleep(0.2)
            self._endpoints.append(self._ports[number])

    def _state(self, number: int) -> Path:
        return self._folder / f"gateway-{number}"

    def _log(self, number: int) -> Path:
        return self._folder / f"gateway-{number}.log"

    def log(self) -> str:
        """The ends of their logs."""
        return "\n".join(self._log(number).read_text()[-3000:] for number in range(2))

    async def ready(self) -> list[int]:
        """Status of each readiness probe."""
        found = []
        async with aiohttp.ClientSession() as http:
            for port in self._ports:
                try:
                    async with http.get(f"http://127.0.0.1:{port}/readyz") as answer:
                        found.append(answer.status)
                except aiohttp.ClientError:
                    found.append(0)
        return found

    def routes(self) -> list[Routes]:
        """The saved routes of model m, of each gateway that has some."""
        found = []
        for number in range(2):
            file = self._state(number) / "routes.jsonl"
            if file.exists():
                found += [decode("routes", line) for line in read_lines(file) if line is not None]
        return found

    def load(self, per_s: float) -> AbstractAsyncContextManager[None]:
        """Begin `per_s` streams a second."""
        return self._load.sending(per_s)
