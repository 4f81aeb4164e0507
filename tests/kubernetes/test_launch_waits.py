"""The status has the reason of a waiting launch within five seconds, on a real control plane."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import TEMPLATE, Bench, config_file, wish
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.test_scale_mode import APPS, PODS, replicas, workload
from topics.fleet import InstanceState, LaunchCode

ACCOUNT = "shoal-pods"
CORE = "/api/v1/namespaces/serving"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
PRIORITIES = "/apis/scheduling.k8s.io/v1/priorityclasses"
OWN = {"us/w/owned": {"mode": "pods", "nodes": {"pool": "waits"}}}
SCALED = {"us/l4/owned": {"mode": "scale", "nodes": {"pool": "waits"}}}
SLOT, SCALE_SLOT = "us.w.owned.0", "us.l4.owned.0"
LIMIT_S = 5.0


@pytest.fixture(scope="module", autouse=True)
def kubelet(plane: ControlPlane) -> Any:
    name = plane.start_kubelet(["w0"], third=95, labels=("pool=waits",))
    yield name
    plane.stop_process(name)


@pytest.fixture
async def scaling(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    made = KubeClient(str(plane.kubeconfig("shoal-scale")))
    made.open()
    yield made
    await made.close()


async def until_code(bench: Bench, slot: str, name: str, code: LaunchCode) -> float:
    """Seconds until the status has `code`."""

    def has_code() -> bool:
        seen = bench.instance(slot, name)
        return seen is not None and seen.code == code

    return await bench.until(has_code, LIMIT_S)


async def warnings(admin: RawApi, code: LaunchCode) -> list[str]:
    """The objects of the Events with `code`; waits until there is one."""
    async with asyncio.timeout(5):
        while True:
            found = (await admin.get(f"{CORE}/events"))["items"]
            about = [e["involvedObject"]["kind"] for e in found if e["reason"] == code]
            if about:
                return about
            await asyncio.sleep(0.1)


async def quota(admin: RawApi, hard: dict[str, str]) -> None:
    await admin.post(f"{CORE}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    async with asyncio.timeout(20):
        while not ((await admin.get(f"{CORE}/resourcequotas/q")).get("status") or {}).get("hard"):
            await asyncio.sleep(0.1)


async def test_an_admission_that_refuses_fails_the_pool_at_the_first_answer(
    plane: ControlPlane, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """A quota of memory refuses pods without a limit of memory, and a LimitRange large ones."""

    def creates() -> int:
        return plane.count_requests("shoal-pods")["create pods"]

    limits = [{"type": "Container", "max": {"nvidia.com/gpu": "1"}}]
    large = {"metadata": {"name": "large"}, "spec": {"limits": limits}}
    for make, remove, words in (
        (
            lambda: quota(admin, {"limits.memory": "9Gi"}),
            f"{CORE}/resourcequotas/q",
            "must specify",
        ),
        (
            lambda: admin.post(f"{CORE}/limitranges", large),
            f"{CORE}/limitranges/large",
            "maximum nvidia",
        ),
    ):
        await make()
        try:
            async with Bench(config_file(tmp_path, OWN), client) as bench:
                before = creates()
                bench.assign(SLOT, wish("a", 0, 1))
                took_s = await until_code(bench, SLOT, "a", LaunchCode.REFUSED)
                await asyncio.sleep(1)
                seen = bench.instance(SLOT, "a")
                assert seen is not None and seen.state is InstanceState.FAILED
                assert words in seen.reason and seen.pool_full
                assert creates() - before == 1
                print("refused", words, f"{took_s:.2f} s")
            assert set(await warnings(admin, LaunchCode.REFUSED)) == {"Pod"}
        finally:
            await admin.delete(remove)


async def test_the_security_level_of_the_namespace_fails_the_pool_at_the_first_answer(
    plane: ControlPlane, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    level = "pod-security.kubernetes.io/enforce"
    path = "/api/v1/namespaces/serving"
    await admin.patch(path, {"metadata": {"labels": {level: "restricted"}}})
    try:
        async with asyncio.timeout(20):  # the server reads the label
            probe = {"metadata": {"name": "probe"},
                     "spec": {"containers": [{"name": "e", "image": "e"}]}}  # fmt: skip
            while (await admin.call("POST", f"{PODS}?dryRun=All", probe))[0] != 403:
                await asyncio.sleep(0.1)
        async with Bench(config_file(tmp_path, OWN), client) as bench:
            before = plane.count_requests("shoal-pods")["create pods"]
            bench.assign(SLOT, wish("a"))
            took_s = await until_code(bench, SLOT, "a", LaunchCode.REFUSED)
            seen = bench.instance(SLOT, "a")
            assert seen is not None and seen.state is InstanceState.FAILED
            assert "PodSecurity" in seen.reason and seen.pool_full
            assert plane.count_requests("shoal-pods")["create pods"] - before == 1
            print("refused PodSecurity", f"{took_s:.2f} s")
    finally:
        await admin.patch(path, {"metadata": {"labels": {level: None}}})


async def test_a_webhook_that_is_down_is_the_reason_until_it_is_gone(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
            "operations": ["CREATE"], "scope": "*"}  # fmt: skip
    hook = {"name": "down.example.com", "failurePolicy": "Fail", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "rules": [rule], "timeoutSeconds": 5,
            "clientConfig": {"url": "https://127.0.0.1:9/"},
            "objectSelector": {"matchLabels": {"shoal.dev/managed": "true"}}}  # fmt: skip
    await admin.post(HOOKS, {"metadata": {"name": "down"}, "webhooks": [hook]})
    try:
        await asyncio.sleep(3)  # the server reads its webhooks
        async with Bench(config_file(tmp_path, OWN), client) as bench:
            bench.assign(SLOT, wish("a"))
            took_s = await until_code(bench, SLOT, "a", LaunchCode.ADMISSION_AWAY)
            seen = bench.instance(SLOT, "a")
            assert seen is not None and "down.example.com" in seen.reason
            assert seen.state is InstanceState.STARTING
            assert await warnings(admin, LaunchCode.ADMISSION_AWAY) == ["Pod"]
            await admin.delete(f"{HOOKS}/down")
            await bench.until(lambda: bench.ready(SLOT, "a"))
            print("webhook down", f"{took_s:.2f} s")
    finally:
        await admin.delete(f"{HOOKS}/down")


async def test_a_scheduling_gate_is_the_reason_until_it_is_removed(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    file = config_file(tmp_path, OWN)
    gated = TEMPLATE.replace("spec:\n", "spec:\n  schedulingGates: [{name: example.com/queue}]\n")
    (tmp_path / "templates" / "pod.yaml").write_text(gated)
    async with Bench(file, client) as bench:
        bench.assign(SLOT, wish("a"))
        took_s = await until_code(bench, SLOT, "a", LaunchCode.GATED)
        seen = bench.instance(SLOT, "a")
        assert seen is not None and "example.com/queue" in seen.reason
        await asyncio.sleep(4)
        assert bench.is_in(SLOT, "a", InstanceState.STARTING)
        (pod,) = (await admin.get(PODS))["items"]
        path = f"{PODS}/{pod['metadata']['name']}"
        await admin.patch(path, {"spec": {"schedulingGates": None}})
        await bench.until(lambda: bench.ready(SLOT, "a"))
        print("gate", f"{took_s:.2f} s")


async def test_a_preemption_is_waited_for_and_its_pod_is_not_deleted(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """Four pods of low priority hold all GPUs, and need 8 s to end."""
    await admin.post(PRIORITIES, {"metadata": {"name": "high"}, "value": 1000})
    low = workload(4)
    low["metadata"] = {"name": "low"}
    pod = low["spec"]["template"]["spec"]
    pod |= {"terminationGracePeriodSeconds": 30, "nodeSelector": {"pool": "waits"}}
    pod["containers"][0]["env"] = [{"name": "STUB_SHUTDOWN_S", "value": "8"}]
    await admin.post(f"{APPS}/deployments", low)
    file = config_file(tmp_path, OWN)
    urgent = TEMPLATE.replace("spec:\n", "spec:\n  priorityClassName: high\n")
    (tmp_path / "templates" / "pod.yaml").write_text(urgent)
    try:
        async with asyncio.timeout(30):
            while (await admin.get(f"{APPS}/deployments/low"))["status"].get("readyReplicas") != 4:
                await asyncio.sleep(0.2)
        ips = [pod["status"]["podIP"] for pod in (await admin.get(PODS))["items"]]
        streams = [asyncio.create_task(_stream(ip)) for ip in ips]
        await asyncio.sleep(0.5)
        async with Bench(file, client) as bench:
            bench.assign(SLOT, wish("a"))
            took_s = await until_code(bench, SLOT, "a", LaunchCode.PREEMPTING)
            began_s = time.monotonic()
            await bench.until(lambda: bench.ready(SLOT, "a"))
            seen = bench.instance(SLOT, "a")
            assert seen is not None and seen.restarts == 0
            print("preemption", f"{took_s:.2f} s, ready after {time.monotonic() - began_s:.1f} s")
        await asyncio.gather(*streams, return_exceptions=True)
    finally:
        await admin.delete(f"{APPS}/deployments/low")
        await admin.delete(f"{PRIORITIES}/high")


async def _stream(ip: str) -> None:
    """Keep an engine busy for 6 s, so that it does not end at once."""
    reader, writer = await asyncio.open_connection(ip, 8000)
    writer.write(b"POST /v1/completions?s=6 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    await reader.read(-1)
    writer.close()


async def test_a_plan_above_the_owners_maximum_is_told_and_the_others_serve(
    scaling: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    await admin.post(f"{APPS}/deployments", workload(1, max="2"))
    async with Bench(config_file(tmp_path, SCALED), scaling) as bench:
        bench.assign(SCALE_SLOT, wish("a", 0), wish("b", 1), wish("c", 2))
        await until_code(bench, SCALE_SLOT, "c", LaunchCode.AT_MAXIMUM)
        await bench.until(lambda: bench.ready(SCALE_SLOT, "ab"))
        assert await replicas(admin) == 2
        assert await warnings(admin, LaunchCode.AT_MAXIMUM) == ["Deployment"]


async def test_a_quota_on_the_owners_pods_gives_the_replicas_back(
    scaling: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    await admin.post(f"{APPS}/deployments", workload(1))
    async with Bench(config_file(tmp_path, SCALED), scaling) as bench:
        bench.assign(SCALE_SLOT, wish("a", 0))
        await bench.until(lambda: bench.ready(SCALE_SLOT, "a"))
        await quota(admin, {"requests.nvidia.com/gpu": "1"})
        try:
            bench.assign(SCALE_SLOT, wish("a", 0), wish("b", 1))
            took_s = await bench.until(
                lambda: bench.is_in(SCALE_SLOT, "b", InstanceState.FAILED), LIMIT_S
            )
            seen = bench.instance(SCALE_SLOT, "b")
            assert seen is not None and seen.code == LaunchCode.NO_PODS
            assert "exceeded quota" in seen.reason and seen.pool_full
            async with asyncio.timeout(10):
                while await replicas(admin) != 1:
                    await asyncio.sleep(0.1)
            assert bench.ready(SCALE_SLOT, "a")
            print("owner's quota", f"{took_s:.2f} s")
        finally:
            await admin.delete(f"{CORE}/resourcequotas/q")
