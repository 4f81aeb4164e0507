"""Engines in containers, as real processes: started, adopted, and ended after their client is
killed.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.integration.executors.conftest import Harness, alive, wish
from tests.integration.executors.fake_docker import install
from topics.engine_profiles import profile_wire_name
from topics.fleet import DesiredInstance

IMAGE = "the/image:1"
ENGINE = profile_wire_name("boxed", IMAGE, ())


def boxed(name: str, *gpus: int, drain: bool = False) -> DesiredInstance:
    found = wish(name, *gpus, drain=drain)
    return DesiredInstance(name, found.model, found.phase, found.group, gpus, ENGINE, drain)


async def test_a_container_ends_with_its_client_and_executor(harness: Harness) -> None:
    """The docker client is killed, then the executor too. No part of the container remains, no
    engine runs twice, and a drain ends the container.
    """
    folder = harness.folder / "docker"
    install(folder)
    engines = {"boxed": {"kind": "simulated", "startup_s": 20.0, "image": IMAGE}}
    config = harness.config(engines=engines, containers="docker")
    path = {"PATH": f"{folder}:{os.environ['PATH']}", "SHOAL_ENGINE_KEY": "k" * 40}
    executor = await harness.start(config, **path)
    await harness.assign(1, boxed("a", 2, 5))
    await harness.until_ready("a")
    ran = (folder / "calls").read_text().splitlines()[0].split(" ")
    assert ran[0] == "run"
    assert '--gpus="device=2,5"' in ran
    assert "--env=CUDA_VISIBLE_DEVICES=0,1" in ran
    assert "--env=VLLM_API_KEY" in ran
    assert "k" * 40 not in " ".join(ran)

    (container,) = (int(p.read_text()) for p in folder.glob("shoal-*"))
    (pids,) = harness.engines().values()
    (client,) = (pid for pid in pids if pid != container)
    assert client != container
    os.kill(client, signal.SIGKILL)
    await harness.until(lambda: not alive(container), "the container was removed")
    await harness.until(lambda: (i := harness.get("a")) and i.restarts == 1, "started again")
    await harness.until_ready("a")
    assert "rm --force shoal-" in (folder / "calls").read_text()

    executor.kill()
    executor.wait()
    before = _containers(folder)
    await harness.start(config, **path)
    await harness.until_ready("a")
    assert _containers(folder) == before
    await harness.assign(2, boxed("a", 2, 5, drain=True))
    await harness.until_state("a", "stopped")
    assert _containers(folder) == set()
    assert not any(map(alive, before))


def _containers(folder: Path) -> set[int]:
    return {int(path.read_text()) for path in folder.glob("shoal-*")}
