"""Answers of engines to probes, ports of an executor, and the removal of containers."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest

from executors.engines.engine_protocol import LaunchLine, Load
from executors.node import engine_ports, executor_metrics
from executors.node.containers import Container
from executors.node.engine_environment import LaunchTag
from executors.node.engine_ports import EnginePorts, NoFreePort
from executors.node.engine_probes import EngineProbe, ProbeResult, ProbeTimeouts
from executors.node.os_processes import start_engine

LOAD = Load(2, 1, held_kv=0, tokens=7.0)
LIMITS = ProbeTimeouts(0.01, 0.01, 0.01, 5.0, 5.0)


class Kind:
    """Answers each question with its value in `says`; "never" gives no answer."""

    def __init__(self, **says: object) -> None:
        self.says: dict[str, object] = {
            "ready": True, "alive": True, "sleep": True, "wake": True, "load": LOAD, **says,
        }  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        async def answer(_: object) -> object:
            if self.says[name] == "never":
                await asyncio.Event().wait()
            return self.says[name]

        return answer


def probe(**says: object) -> EngineProbe:
    return EngineProbe(cast(Any, Kind(**says)), cast(Any, None), LIMITS)


@pytest.mark.parametrize("no", [False, "never"])
async def test_an_engine_is_ready_if_it_says_so_and_generates_a_token(no: object) -> None:
    assert await probe().check_ready() == ProbeResult(True)
    assert await probe(ready=no).check_ready() == ProbeResult(None)
    assert await probe(alive=no).check_ready() == ProbeResult(None)


@pytest.mark.parametrize("no", [False, "never"])
async def test_an_engine_wakes_if_it_says_so_and_generates_a_token(no: object) -> None:
    assert await probe().wake_up() == ProbeResult(True)
    assert await probe(wake=no).wake_up() == ProbeResult(None)
    assert await probe(alive=no).wake_up() == ProbeResult(None)


@pytest.mark.parametrize("no", [False, "never"])
async def test_an_engine_that_does_not_sleep_yet_reports_its_load(no: object) -> None:
    assert await probe().put_to_sleep() == ProbeResult(None, None, True)
    assert await probe(sleep=no).put_to_sleep() == ProbeResult(None, LOAD, False)
    assert await probe(load="never").load() is None


async def test_a_closed_probe_asks_for_no_token() -> None:
    made = probe(alive="never", load=None)
    made._alive_s = -100.0
    assert (await made.check_live()).healthy is None
    task = made._token_task
    assert task is not None
    made.close()
    await asyncio.wait({task})
    assert task.cancelled()
    probe().close()


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Ports that other processes use. Nothing is bound."""
    taken: list[tuple[str, int]] = []
    monkeypatch.setattr(engine_ports, "_is_free", lambda host, port: (host, port) not in taken)
    monkeypatch.setattr(EnginePorts, "_lock_block", _first_block)
    return taken


def _first_block(self: EnginePorts) -> Any:
    self._first = 20_000
    return type("Lock", (), {"close": lambda _self: None})()


def test_ports_rotate_through_the_block(ports: list[tuple[str, int]]) -> None:
    """Clients may still send to a recently freed port."""
    made = EnginePorts("h")
    assert [made.take(()) for _ in range(3)] == [(20_001,), (20_002,), (20_003,)]
    assert made.take((), 3) == (20_004, 20_005, 20_006)
    ports.append(("h", 20_008))
    assert made.take((20_007,), 2) == (20_009, 20_010)
    for port in range(20_011, 20_200):
        assert made.take(()) == (port,)
    assert made.take(()) == (20_001,), "the first port is the lock"
    made.close()
    made.close()


def test_a_block_without_enough_ports_in_a_row_is_refused(ports: list[tuple[str, int]]) -> None:
    made = EnginePorts("h")
    odd = set(range(20_001, 20_200, 2))
    assert made.take(odd) == (20_002,)
    with pytest.raises(NoFreePort, match="no free port from 20000 to 20199"):
        made.take(odd, 2)
    with pytest.raises(NoFreePort):
        made.take(range(20_001, 20_200))
    assert len(made.take((), 199)) == 199


def test_each_executor_of_a_host_has_its_own_block() -> None:
    one, two = EnginePorts("127.0.0.1"), EnginePorts("127.0.0.1")
    first, second = one.take(()), two.take(())
    assert abs(first[0] - second[0]) >= 198
    one.close()
    two.close()


def test_a_block_stays_locked_while_an_engine_of_it_lives(tmp_path: Path) -> None:
    """An engine that is still loading does not listen yet: after its executor's death only the
    inherited lock says that its port is taken."""
    dead, state = EnginePorts("127.0.0.1"), str(tmp_path)
    (port,) = dead.take(())
    tag = LaunchTag("launch", "node", cast(Any, None), (port,), 0)
    line = LaunchLine((sys.executable, "-c", "import time; time.sleep(600)"))
    loading = start_engine(line, tag, {}, state, tmp_path / "log", dead.lock_fds)
    dead.close()
    other = EnginePorts("127.0.0.1")
    try:
        assert abs(other.take(())[0] - port) >= 198
    finally:
        other.close()
        loading.kill()
        cast(subprocess.Popen[bytes], loading.child).wait()
    with socket.socket() as free:
        free.bind(("127.0.0.1", port - 1))


def runtime(folder: Path, script: str) -> Container:
    """A container whose runtime is a script."""
    path = folder / "docker"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return Container(str(path), "shoal-1")


def until_gone(container: Container) -> bool:
    """Whether the runtime confirms the removal at its next answer."""
    assert not container.remove(), "the runtime has just been asked"
    assert container._removal is not None
    container._removal.wait()
    return container.remove()


@pytest.mark.parametrize(
    ("script", "gone"),
    [
        ('[ "$1 $2 $3" = "rm --force shoal-1" ]', True),
        ("echo Error: No such container: shoal-1 >&2; exit 1", True),
        ("echo no container with name shoal-1 >&2; exit 1", True),
        ("echo permission denied >&2; exit 1", False),
    ],
)
def test_a_container_is_gone_when_its_runtime_says_so(
    tmp_path: Path, script: str, gone: bool
) -> None:
    assert until_gone(runtime(tmp_path, script)) is gone


def test_a_failed_removal_is_repeated_after_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    container = runtime(tmp_path, "exit 1")
    assert not until_gone(container)
    clock_s[0] = 104.9
    assert not container.remove() and container._removal is None
    clock_s[0] = 105.0
    assert not container.remove() and container._removal is not None
    container._removal.wait()
    assert not container.remove()


def test_a_removal_that_hangs_is_killed_after_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])
    container = runtime(tmp_path, "exec sleep 1000")
    container.remove()
    removal = container._removal
    assert removal is not None
    clock_s[0] = 160.0
    assert not container.remove() and removal.poll() is None
    clock_s[0] = 160.1
    assert not container.remove()
    removal.wait()
    assert not container.remove(), "a killed removal proves nothing"


async def test_an_executor_serves_metrics_and_its_liveness() -> None:
    metrics = executor_metrics.Metrics()
    metrics.forged.set(3)
    runner = await executor_metrics.serve(metrics, 0)
    host, port = runner.addresses[0][:2]
    try:
        async with aiohttp.ClientSession(f"http://{host}:{port}") as http:
            async with http.get("/livez") as live:
                assert (live.status, await live.text()) == (200, "ok\n")
            async with http.get("/metrics") as shown:
                assert "shoal_executor_forged_records 3.0" in await shown.text()
                assert "version=0.0.4" in shown.headers["Content-Type"]
            async with http.get("/metrics", headers={"Host": "evil.example"}) as refused:
                assert refused.status in (400, 403, 421)
    finally:
        await runner.cleanup()
    assert host == "127.0.0.1"
