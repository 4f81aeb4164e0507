"""Controller processes for contract tests."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.contract.brokers import Broker
from tests.hang_limit import HANG_S
from topics.time_base import TimeBase

CONFIG = """
mode: act
regions:
  here:
    l4: {gpu: L4, per_node: 1, nodes: 2, owned: true}
models:
  tiny:
    source: meta-llama/Llama-3.1-8B-Instruct
    engine: fp8
    slo: {ttft: 2s, tpot: 100ms}
    min: 1
engines:
  fp8: {args: [--quantization=fp8]}
"""


class Controller:
    """A controller process."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name

    @classmethod
    async def start(
        cls, broker: Broker, config: Path, time_base: TimeBase, name: str = "controller-1"
    ) -> Controller:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "streams.controller",
                "--config",
                str(config),
                "--broker",
                broker.bootstrap,
                "--time-base",
                time_base.format(),
                "--prefix",
                broker.prefix,
                "--controller-id",
                name,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            ),
            name,
        )

    async def says(self) -> dict[str, Any]:
        """The next line of the process.

        It prints one when it is ready, and one at each gain or loss of leadership.
        """
        assert self.process.stdout is not None
        async with asyncio.timeout(HANG_S):
            said: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return said

    async def end(self) -> None:
        """Send SIGTERM and assert exit code 0 in time."""
        self.process.terminate()
        async with asyncio.timeout(HANG_S):
            assert await self.process.wait() == 0

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
