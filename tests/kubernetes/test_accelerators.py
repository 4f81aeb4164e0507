"""Accelerators of several vendors, slices, network devices and claims, on a real control plane."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from executors.kubernetes.cluster_report import report
from executors.kubernetes.kube_client import KubeClient
from executors.kubernetes.kubernetes_config import KubePool, PoolMode
from streams.cli.main import main
from streams.files.shoal_yaml import load_config
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import STRATEGIC, RawApi
from tests.kubernetes.test_scale_mode import APPS, PODS, replicas, workload

TYPE, PRODUCT = "node.kubernetes.io/instance-type", "nvidia.com/gpu.product"
NODES: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "efa": ({TYPE: "p5.48xlarge", PRODUCT: "NVIDIA-H100-80GB-HBM3"},
            {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "32", "rdma/ib": "1000",
             "vpc.amazonaws.com/pod-eni": "107"}),
    "cpu": ({TYPE: "m5.large"}, {"vpc.amazonaws.com/pod-eni": "9"}),
    "mig": ({TYPE: "p4d.24xlarge", PRODUCT: "NVIDIA-A100-SXM4-40GB"},
            {"nvidia.com/gpu": "4", "nvidia.com/mig-3g.20gb": "8"}),
    "amd": ({TYPE: "gpu-mi300x8", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
            {"amd.com/gpu": "8"}),
    "habana": ({TYPE: "dl1"}, {"habana.ai/gaudi": "8"}),
}  # fmt: skip
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/serving/resourceclaims"


@asynccontextmanager
async def nodes(admin: RawApi) -> AsyncIterator[None]:
    """The nodes, without a kubelet."""
    try:
        for name, (labels, devices) in NODES.items():
            meta = {"name": name, "labels": {"topology.kubernetes.io/region": "eu", **labels}}
            await admin.post("/api/v1/nodes", {"metadata": meta})
            devices = {"cpu": "96", "memory": "900Gi", "pods": "110", **devices}
            ready = {"type": "Ready", "status": "True", "reason": "x", "message": ""}
            status = {"capacity": devices, "allocatable": devices, "conditions": [ready]}
            await admin.patch(f"/api/v1/nodes/{name}/status", {"status": status}, STRATEGIC)
        yield
    finally:
        for name in NODES:
            await admin.delete(f"/api/v1/nodes/{name}")


async def test_the_first_file_for_a_mixed_cluster_is_valid_and_has_its_accelerators(
    plane: ControlPlane, admin: RawApi, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setitem(os.environ, "KUBECONFIG", str(plane.kubeconfig()))
    file = tmp_path / "shoal.yaml"
    words = ["config", "init", "--from-cluster", "--models", "m=Qwen/Qwen3-8B",
             "--slo", "2s,80ms", "--out", str(file)]  # fmt: skip
    async with nodes(admin):
        assert await asyncio.to_thread(main, words) == 0
    assert await asyncio.to_thread(main, ["config", "check", str(file)]) == 0
    found = {(pool.gpu.name, pool.per_node) for pool in load_config(file).cluster.pools}
    assert found == {("H100-SXM", 8), ("A100-SXM-40GB", 4), ("A100-SXM-40GB/3g.20gb", 1),
                     ("MI300X", 8)}, file.read_text()  # fmt: skip
    assert "# left out: " in file.read_text()  # Gaudi is not in the catalogue


async def test_network_devices_of_a_workload_are_no_gpus(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path
) -> None:
    kubelets("g0", third=96)
    devices = {"example.com/efa": "32", "rdma/ib": "8"}
    capacity = {"status": {"capacity": devices, "allocatable": devices}}
    made = workload(1)
    limits = made["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits |= {"nvidia.com/gpu": "2", "example.com/efa": "8", "rdma/ib": "2"}
    pool = {"us/l4/owned": {"mode": "scale", "nodes": {"pool": "l4"}}}
    api = KubeClient(str(plane.kubeconfig("shoal-scale")))
    api.open()

    async def offer() -> None:
        """The node's network devices, which the kubelet's report leaves out."""
        while True:
            await admin.patch("/api/v1/nodes/g0/status", capacity, STRATEGIC)
            await asyncio.sleep(0.5)

    offering = asyncio.create_task(offer())
    try:
        await admin.post(f"{APPS}/deployments", made)
        async with Bench(config_file(tmp_path, pool), api) as bench:
            slot = "us.l4.owned.0"
            bench.assign(slot, wish("a", 0, 1), wish("b", 2, 3))
            await bench.until(lambda: bench.ready(slot, "ab"))
            assert await replicas(admin) == 2
    finally:
        offering.cancel()
        await api.close()


async def test_the_devices_of_claims_count_without_other_drivers(
    plane: ControlPlane, kubelets: Any, admin: RawApi
) -> None:
    """The status of each claim is what a driver of devices would write."""
    kubelets("d0", third=97)
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    for driver in ("gpu.nvidia.com", "dra.net"):
        await admin.post(classes, {"metadata": {"name": driver}, "spec": {}})
    request = [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com", "count": 2}}]
    await admin.post(
        CLAIMS, {"metadata": {"name": "two"}, "spec": {"devices": {"requests": request}}}
    )
    results = [
        {"request": "r", "driver": driver, "pool": "p", "device": f"d{number}"}
        for number, driver in enumerate(("gpu.nvidia.com", "gpu.nvidia.com", "dra.net"))
    ]
    labels = {"app": "claims", "model": "chat"}
    container = {"name": "e", "image": "e", "resources": {"claims": [{"name": "gpu"}]}}
    pod = {
        "metadata": {"name": "claims", "labels": labels},
        "spec": {"containers": [container], "nodeName": "d0",
                 "resourceClaims": [{"name": "gpu", "resourceClaimName": "two"}]},
    }  # fmt: skip
    await admin.post(PODS, pod)
    uid = (await admin.get(f"{PODS}/claims"))["metadata"]["uid"]
    reserved = [{"resource": "pods", "name": "claims", "uid": uid}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    await admin.patch(f"{CLAIMS}/two/status", {"status": status})
    api = KubeClient(str(plane.kubeconfig("shoal-observe")))
    api.open()
    pools = {"us/l4/owned": KubePool(PoolMode.OBSERVE, {"pool": "l4"})}
    expected = [("chat", 2, 1)]
    try:
        async with asyncio.timeout(30):
            while True:
                rows = json.loads(await report("serving", api, pools, {}))
                if [(row["model"], row["gpus"], row["pods"]) for row in rows] == expected:
                    break
                await asyncio.sleep(0.2)
    finally:
        await api.close()
        await admin.delete(f"{PODS}/claims", 0)
        await admin.delete(f"{CLAIMS}/two")
        for driver in ("gpu.nvidia.com", "dra.net"):
            await admin.delete(f"{classes}/{driver}")
