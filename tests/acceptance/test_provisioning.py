"""A controller with a command that creates its nodes (deploy/examples/local_nodes.py).

The first node serves the minimum of a model. When it gets a reclaim notice, another node starts.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from executors.kafka_client import KafkaClient
from tests.hang_limit import HANG_S
from topics.fleet import InstanceState, Status
from topics.time_base import TimeBase

ROOT = Path(__file__).parents[2]
CONFIG = """
mode: act
policy: {{drain_timeout: 60s}}
regions:
  eu: {{l4: {{gpu: L4, per_node: 1, max: 2, spot_price: 0.3, provision: {hook}}}}}
models:
  mini:
    source: openai/gpt-oss-20b
    slo: {{ttft: 2s, tpot: 80ms}}
    workload: {{input: 200, output: 60}}
    max_len: 16384
    min: 1
    spot: 100%
"""


def node_file(node: str, bootstrap: str, folder: Path, base: TimeBase, hook: list[str]) -> str:
    return json.dumps(
        {
            "executor": f"x-{node}", "region": "eu", "broker": bootstrap,
            "state_dir": str(folder / node), "time_base": base.format(),
            "nodes": [{"node": node, "pool": "eu/l4/spot", "gpu": "L4", "gpus": 1}],
            "models": {"mini": {"source": "openai/gpt-oss-20b", "max_len": 16384}},
            "engines": {"default": {"kind": "simulated", "startup_s": 10.0}},
            "reclaim_command": hook,
        }
    )  # fmt: skip


async def test_a_command_creates_nodes_and_replaces_a_reclaimed_one_in_time(tmp_path: Path) -> None:
    broker = subprocess.Popen([sys.executable, "-m", "streams.broker"], stdout=subprocess.PIPE)
    bootstrap = json.loads(broker.stdout.readline())["bootstrap"]
    base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    there = tmp_path / "nodes"
    there.mkdir()
    hook = [sys.executable, str(ROOT / "deploy/examples/local_nodes.py"), "--folder", str(there)]
    hook += ["--", sys.executable, "-m", "executors.node", "--config", f"{tmp_path}/{{node}}.json"]
    names = [f"eu.l4.spot.{n}" for n in range(2)]
    for node in names:
        (tmp_path / f"{node}.json").write_text(node_file(node, bootstrap, tmp_path, base, hook))
    config = tmp_path / "shoal.yaml"
    config.write_text(CONFIG.format(hook=json.dumps(shlex.join(hook))))
    argv = ["--config", str(config), "--broker", bootstrap, "--time-base", base.format()]
    controller = subprocess.Popen(
        [sys.executable, "-m", "streams.controller", *argv], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    statuses: dict[str, Status] = {}

    def serving() -> set[str]:
        ready = InstanceState.READY
        return {n for n, s in statuses.items() if any(i.state is ready for i in s.instances)}

    async def until(true: Callable[[], bool], what: str) -> None:
        for _ in range(int(HANG_S / 0.05)):
            if true():
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"never {what}: {statuses}")

    try:
        async with KafkaClient(bootstrap, "test") as kafka:
            kafka.follow(("status",), lambda _t, node, record, _ms: statuses.update({node: record}))
            await until(lambda: len(serving()) == 1, "one node served")
            (first,) = serving()
            (second,) = set(names) - {first}
            (there / f"{first}.notice").write_text("24")
            given_s = time.monotonic()
            least = []

            def replaced() -> bool:
                least.append(len(serving()))
                return serving() == {second}

            await until(replaced, "another node took over")
            assert time.monotonic() - given_s < 24.0
            assert min(least) >= 1, "there was always one that served"
            assert statuses[first].reclaim_ms > 0
    finally:
        controller.kill()
        controller.wait()
        for node in names:
            question = json.dumps({"action": "delete", "node": node})
            subprocess.run(hook, input=question, text=True, stdout=subprocess.DEVNULL, check=True)
        broker.kill()
        broker.wait()
        broker.stdout.close()
