"""The executor's process with a broker: started, killed with SIGKILL, started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from executors.kafka_client import KafkaClient
from executors.kubernetes.kube_client import KubeClient
from executors.kubernetes.lease import Lease
from tests.kubernetes.executor_bench import config_file, wish
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from topics.records import Assignment, InstanceState, Leadership, Status

PODS = "/api/v1/namespaces/serving/pods"
POOL = {"us/l4/owned": {"mode": "pods", "nodes": {"pool": "l4"}}}
SLOT = "us.l4.owned.0"


@pytest.fixture
def bootstrap() -> Iterator[str]:
    broker = subprocess.Popen([sys.executable, "-m", "streams.broker"], stdout=subprocess.PIPE)
    assert broker.stdout is not None
    yield json.loads(broker.stdout.readline())["bootstrap"]
    broker.terminate()
    broker.wait()
    broker.stdout.close()


def spawn(path: Path, log: Path) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "executors.kubernetes", "--config", str(path)],
            stdout=subprocess.PIPE, stderr=out, env=dict(os.environ),
        )  # fmt: skip
    assert process.stdout is not None
    hello = process.stdout.readline()
    assert hello, log.read_text()
    return process, json.loads(hello)


async def test_a_killed_executor_is_followed_by_one_that_serves_the_same_pods(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, bootstrap: str
) -> None:
    kubelets("x0", third=70)
    file = config_file(tmp_path, POOL, slots=1, kubeconfig=str(plane.kubeconfig("shoal-pods")))
    file["executor"]["broker"] = bootstrap
    file["executor"]["time_base"] = f"1.0,{time.time_ns() // 10**6},{time.monotonic_ns()}"
    path, log = tmp_path / "executor.json", tmp_path / "executor.log"
    path.write_text(json.dumps(file))
    latest: dict[str, Status] = {}

    def follow(_topic: str, _key: str, record: Status, _append_ms: int) -> None:
        latest[record.node] = record

    def state(name: str, boot: str = "") -> InstanceState | None:
        status = latest.get(SLOT)
        if status is None or status.boot == boot:
            return None
        return next((i.state for i in status.instances if i.instance == name), None)

    async def until(condition: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(60):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{latest} {log.read_text()}") from None

    async with KafkaClient(bootstrap, "test") as kafka:
        while not kafka.connected:
            await asyncio.sleep(0.05)
        claim = Leadership("c-1", uuid.uuid4().hex, "claim", 0)
        assert await kafka.publish("leadership", "claim", claim)
        kafka.follow(("status",), follow, only=(SLOT,))
        process, hello = await asyncio.to_thread(spawn, path, log)
        wishes = (wish("a", 0), wish("b", 1))
        record = Assignment(SLOT, "us/l4/owned", 1, 1, 0, wishes)
        assert await kafka.publish("assignments", SLOT, record)
        await until(lambda: state("a") is InstanceState.READY and state("b") is InstanceState.READY)
        metrics = await asyncio.to_thread(_read, hello["metrics"])
        assert 'shoal_executor_instances{state="ready"} 2.0' in metrics
        before = {p["metadata"]["uid"] for p in (await admin.get(PODS))["items"]}
        boot = latest[SLOT].boot
        process.send_signal(signal.SIGKILL)
        process.wait()
        again, _ = await asyncio.to_thread(spawn, path, log)
        await until(lambda: state("a", boot) is InstanceState.READY)
        await until(lambda: state("b", boot) is InstanceState.READY)
        assert {p["metadata"]["uid"] for p in (await admin.get(PODS))["items"]} == before
        began_s = time.monotonic()
        again.terminate()
        assert await asyncio.to_thread(again.wait, 10) == 0
        print("stopped within", round(time.monotonic() - began_s, 1), "s")
        after = (await admin.get(PODS))["items"]
        assert {p["metadata"]["uid"] for p in after} == before  # pods outlive the executor
        assert not any(p["metadata"].get("deletionTimestamp") for p in after)
        for one in (process, again):
            assert one.stdout is not None
            one.stdout.close()


async def test_a_standby_takes_over_the_pods_of_a_killed_a_stopped_and_an_ended_holder(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, bootstrap: str
) -> None:
    """Killed and stopped: within the Lease's duration of 15 s. Ended: at once. The stopped one ends
    when it runs again. The pod is the same all the time."""
    kubelets("x0", third=70)
    log = tmp_path / "executor.log"

    def started(holder: str) -> subprocess.Popen[bytes]:
        file = config_file(tmp_path, POOL, slots=1, kubeconfig=str(plane.kubeconfig("shoal-pods")))
        file["executor"] |= {
            "broker": bootstrap, "metrics_port": 0,
            "time_base": f"1.0,{time.time_ns() // 10**6},{time.monotonic_ns()}",
        }  # fmt: skip
        file["kubernetes"]["lease"] = f"shoal-executor/{holder}"
        path = tmp_path / f"{holder}.json"
        path.write_text(json.dumps(file))
        process, hello = spawn(path, log)
        assert "standby" in hello
        return process

    boots: list[str] = []
    ready: set[str] = set()

    def follow(_topic: str, _key: str, record: Status, _append_ms: int) -> None:
        if record.boot not in boots:
            boots.append(record.boot)
        if any(one.state is InstanceState.READY for one in record.instances):
            ready.add(record.boot)

    async def acts(count: int, limit_s: float) -> float:
        """Seconds until the `count`-th executor has reported a ready instance."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                while len(boots) < count or boots[count - 1] not in ready:
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"{boots} {ready} {log.read_text()}") from None
        return time.monotonic() - began_s

    async with KafkaClient(bootstrap, "test") as kafka:
        while not kafka.connected:
            await asyncio.sleep(0.05)
        claim = Leadership("c-1", uuid.uuid4().hex, "claim", 0)
        assert await kafka.publish("leadership", "claim", claim)
        kafka.follow(("status",), follow, only=(SLOT,))
        record = Assignment(SLOT, "us/l4/owned", 1, 1, 0, (wish("a", 0),))
        assert await kafka.publish("assignments", SLOT, record)
        while (await admin.get(PODS))["items"]:  # Pods of the last test are still leaving.
            await asyncio.sleep(0.1)
        killed = await asyncio.to_thread(started, "h0")
        await acts(1, 60)
        spare = await asyncio.to_thread(started, "spare")
        spare.terminate()
        assert await asyncio.to_thread(spare.wait, 20) == 0  # It never held the Lease.
        stopped = await asyncio.to_thread(started, "h1")
        before = {p["metadata"]["uid"] for p in (await admin.get(PODS))["items"]}
        killed.kill()
        took_s = [await acts(2, 60)]
        ended = await asyncio.to_thread(started, "h2")
        stopped.send_signal(signal.SIGSTOP)
        took_s.append(await acts(3, 60))
        stopped.send_signal(signal.SIGCONT)
        assert await asyncio.to_thread(stopped.wait, 20) == 0
        last = await asyncio.to_thread(started, "h3")
        ended.terminate()
        took_s.append(await acts(4, 60))
        assert len(boots) == 4, boots  # The stopped one reported nothing after its successor.
        print("took over within", [round(one, 1) for one in took_s], "s")
        after = {p["metadata"]["uid"] for p in (await admin.get(PODS))["items"]}
        assert after == before, log.read_text()
        last.terminate()
        for one in (killed, spare, stopped, ended, last):
            await asyncio.to_thread(one.wait, 20)
            assert one.stdout is not None
            one.stdout.close()
    lease = await admin.get("/apis/coordination.k8s.io/v1/namespaces/serving/leases/shoal-executor")
    assert lease["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("account", ["shoal-scale", "shoal-pods"])
async def test_the_rights_of_a_mode_suffice_for_a_lease(plane: ControlPlane, account: str) -> None:
    api, end = KubeClient(str(plane.kubeconfig(account)), "serving"), asyncio.Event()
    api.open()
    lease = Lease(api, f"lease-{account}", "one")
    assert await lease.acquire(end) and await lease.acquire(end)
    await lease.release()
    assert await Lease(api, f"lease-{account}", "other").acquire(end)
    await api.close()


def _read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310  loopback
        return str(answer.read().decode())
