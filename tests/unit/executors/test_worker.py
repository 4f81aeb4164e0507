"""What an executor keeps and leaves alone when its folder or it itself fails."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import aiohttp
import pytest

from executors.engines.protocol import LaunchLine
from executors.node.__main__ import Executor, _run
from executors.node.config import ExecutorConfig, parse_config
from executors.node.processes import Ports, start
from executors.node.state import Rules
from executors.node.store import Store
from executors.node.worker import NodeWorker
from topics.fleet import Assignment, DesiredInstance, Status


def config(folder: Path) -> ExecutorConfig:
    node = {"node": "n0", "pool": "r/p/owned", "gpu": "H100-SXM", "gpus": 1}
    return parse_config(
        {
            "executor": "ex", "region": "r", "broker": "127.0.0.1:9", "state_dir": str(folder),
            "time_base": "1.0,1700000000000,0", "nodes": [node], "models": {}, "engines": {},
        }
    )  # fmt: skip


async def told(status: Status) -> bool:
    return True


async def test_a_node_that_could_not_be_written_is_written_once_it_can_be(tmp_path: Path) -> None:
    """Otherwise a restart would forget engines that were started while the disk was full."""
    folder = tmp_path / "state"
    folder.write_bytes(b"in the way")
    setup, store = config(folder), Store(folder)
    async with aiohttp.ClientSession() as client:
        worker = NodeWorker(setup.nodes[0], setup, Ports("127.0.0.1"), store, client, told, Rules())
        wish = DesiredInstance("a", "m", "aggregated", "g", (0,), drain=True)
        worker.accept(Assignment("n0", "r/p/owned", 1, 1, 0, (wish,)))
        worker.step(1_000, 1.0, set())
        assert store.broken
        folder.unlink()
        worker.step(1_100, 1.1, set())
        assert not folder.exists(), "not at every step"
        worker.step(10_000, 10.0, set())
        assert store.path("n0").exists()
        await worker.close()


async def test_an_executor_that_fails_leaves_its_engines_to_its_next_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Supervised, too: only who was asked to end takes them along."""
    reader, writer = os.pipe()
    monkeypatch.setenv("SHOAL_SUPERVISION_FD", str(reader))
    line = LaunchLine((sys.executable, "-c", "import time; time.sleep(60)"))
    engine = start(line, tmp_path / "log")

    async def fails(self: Executor, end: asyncio.Event) -> None:
        self.workers["n0"]._processes["a"] = engine
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Executor, "run", fails)
    try:
        with pytest.raises(RuntimeError):
            await _run(config(tmp_path))
        assert engine.ended() is None
    finally:
        engine.kill()
        assert engine.child is not None
        engine.child.wait()
        os.close(reader)
        os.close(writer)
