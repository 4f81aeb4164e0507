"""Free nodes, prices, pools and serving pods, as read from a cluster."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from executors.kubernetes import kube_names as names
from executors.kubernetes.accelerators import is_accelerator
from executors.kubernetes.cluster_report import parse_pools, report
from executors.kubernetes.cluster_supply import (
    available_nodes,
    empty_pools,
    found_pools,
    node_prices,
    pools_yaml,
)
from executors.kubernetes.kube_kinds import DEPLOYMENT, NODE, POD, RESOURCE_CLAIM
from executors.kubernetes.kubernetes_config import KubePool, PoolMode
from executors.kubernetes.node_claims import (
    NodePoolView,
    further_nodes,
    parse_claim,
    parse_node_pool,
    parse_overlay,
    supply_fault,
)
from executors.kubernetes.node_view import NodeView, parse_node
from executors.kubernetes.pod_view import PodView
from streams.files.shoal_yaml import load_config
from streams.ports.serving_pods import PodCount, parse_report
from tests.unit.kubernetes.fake_cluster import FakeCluster
from topics.checks import InvalidValue

TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"
POOL = KubePool(PoolMode.OBSERVE, {TYPE: "g6"})
NODE_A = NodeView("a", {TYPE: "g6"}, devices={GPU: 4})
POD_ON_A = PodView("p", "other", "u", 0.0, node="a", phase="Running", devices={GPU: 1})


def free(nodes: list[NodeView], pods: list[PodView], pool: KubePool = POOL) -> dict[str, int]:
    return available_nodes({"r/l4/owned": pool}, {"r/l4/owned": 4}, nodes, pods)


def test_a_foreign_pod_takes_a_node_and_a_pod_of_shoal_does_not() -> None:
    assert free([NODE_A], []) == {"r/l4/owned": 1}
    assert free([NODE_A], [POD_ON_A]) == {"r/l4/owned": 0}
    assert free([NODE_A], [replace(POD_ON_A, labels={names.MANAGED: "true"})]) == {"r/l4/owned": 1}
    assert free([NODE_A], [replace(POD_ON_A, phase="Succeeded")]) == {"r/l4/owned": 1}


@pytest.mark.parametrize(
    "node",
    [
        replace(NODE_A, usable=False),
        replace(NODE_A, labels={TYPE: "p5"}),
        replace(NODE_A, devices={GPU: 2}),
    ],
)
def test_nodes_that_cannot_take_a_slot_are_not_available(node: NodeView) -> None:
    assert free([node], []) == {"r/l4/owned": 0}


def test_present_nodes_are_no_limit_of_a_pool_that_gets_new_ones() -> None:
    assert free([NODE_A], [], replace(POOL, node_wait_s=300.0)) == {}


def test_a_price_comes_from_the_nodes_else_from_an_overlay_else_there_is_none() -> None:
    requirement = {"key": TYPE, "operator": "In", "values": ["g6", "g5"]}
    overlay = parse_overlay(
        {"metadata": {"name": "o"}, "spec": {"requirements": [requirement], "price": "1.25"}}
    )
    assert overlay is not None
    pools = {"r/l4/owned": POOL}
    assert node_prices(pools, [NODE_A], []) == {}
    assert node_prices(pools, [NODE_A], [overlay]) == {"r/l4/owned": 1.25}
    assert node_prices(pools, [replace(NODE_A, price=0.7)], [overlay]) == {"r/l4/owned": 0.7}
    other = {"r/h100/owned": KubePool(PoolMode.OBSERVE, {TYPE: "p5"})}
    assert node_prices(other, [NODE_A], [overlay]) == {}


def test_a_failed_node_claim_of_the_pool_says_why_no_node_comes() -> None:
    condition = {"type": "Launched", "status": "False", "reason": "InsufficientCapacity"}
    requirement = {"key": TYPE, "operator": "In", "values": ["g6"]}
    claim = parse_claim(
        {"metadata": {"name": "c1"}, "spec": {"requirements": [requirement]},
         "status": {"conditions": [condition]}}
    )  # fmt: skip
    assert supply_fault([claim], {TYPE: "g6"}) == "NodeClaim c1: InsufficientCapacity"
    assert supply_fault([claim], {TYPE: "p5"}) == ""
    assert supply_fault([replace(claim, failure="")], {TYPE: "g6"}) == ""


def karpenter_pool(limits: dict[str, Any], used: dict[str, Any], kind: str = "g6") -> NodePoolView:
    requirement = {"key": TYPE, "operator": "In", "values": [kind]}
    template = {"spec": {"requirements": [requirement]}, "metadata": {"labels": {"team": "a"}}}
    spec = {"template": template, "limits": limits}
    status = {"resources": used}
    return parse_node_pool({"metadata": {"name": "gpus"}, "spec": spec, "status": status})


@pytest.mark.parametrize(
    ("limits", "used", "expected"),
    [
        ({GPU: "16"}, {}, 4),  # from zero
        ({GPU: 18}, {GPU: "4", "cpu": "48"}, 3),
        ({GPU: "1k", "nodes": "3"}, {GPU: "4", "nodes": 1}, 2),
        ({GPU: "100", "cpu": "192"}, {GPU: "8", "cpu": "192500m"}, 0),
        ({"cpu": "0"}, {}, 0),  # closed
        ({GPU: "4"}, {GPU: "8"}, 0),  # lowered below its use
        ({"cpu": "1000"}, {"cpu": "48"}, None),
        ({}, {}, None),
    ],
)
def test_the_limits_of_a_karpenter_pool_leave_room_for_a_number_of_nodes(
    limits: dict[str, Any], used: dict[str, Any], expected: int | None
) -> None:
    found = karpenter_pool(limits, used)
    assert further_nodes([found], {TYPE: "g6"}, GPU, 4) == expected
    assert further_nodes([found], {"karpenter.sh/nodepool": "gpus"}, GPU, 4) == expected
    assert further_nodes([found], {TYPE: "g6", "team": "b"}, GPU, 4) is None
    assert further_nodes([], {TYPE: "g6"}, GPU, 4) is None


def test_availability_adds_the_room_of_all_karpenter_pools_unless_one_has_no_limit() -> None:
    pools, per_node = {"r/l4/on-demand": replace(POOL, node_wait_s=300.0)}, {"r/l4/on-demand": 4}
    limited, other = karpenter_pool({GPU: "8"}, {}), karpenter_pool({GPU: "80"}, {}, "p5")

    def nodes(*limits: NodePoolView) -> dict[str, int]:
        return available_nodes(pools, per_node, [NODE_A], [], limits)

    assert nodes(limited, other) == {"r/l4/on-demand": 3}
    assert nodes(limited, limited) == {"r/l4/on-demand": 5}
    assert nodes(limited, karpenter_pool({}, {})) == {}
    assert nodes(other) == nodes() == {}


def test_a_node_is_read_with_its_taints_devices_and_price() -> None:
    node = parse_node(
        {
            "metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {names.PRICE: "2.5"}},
            "spec": {"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]},
            "status": {
                "allocatable": {"cpu": "8", GPU: "4"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
    )
    assert (node.usable, node.notice, node.waits) == (False, "ToBeDeletedByClusterAutoscaler", True)
    assert (node.devices, node.price) == ({GPU: 4}, 2.5)
    assert parse_node({"metadata": {"name": "n", "labels": {names.PRICE: "much"}}}).price is None


def test_found_pools_are_a_section_that_shoal_reads(tmp_path: Path) -> None:
    spot = {"karpenter.sh/capacity-type": "spot"}
    product = {"nvidia.com/gpu.product": "NVIDIA-L4"}
    region = {"topology.kubernetes.io/region": "us-east"}
    nodes = [
        NodeView("a", {TYPE: "g6.12xlarge", **product, **region}, devices={GPU: 4}),
        NodeView("b", {TYPE: "g6.12xlarge", **product, **region}, devices={GPU: 4}),
        NodeView(
            "c", {TYPE: "g6.12xlarge", **product, **region, **spot}, devices={GPU: 4}, price=1.2
        ),
        NodeView("cpu", {TYPE: "m7"}),
    ]  # fmt: skip
    text = pools_yaml(found_pools(nodes))
    models = "models: {m: {source: Qwen/Qwen3-8B, slo: {ttft: 2s, tpot: 60ms}}}\n"
    path = tmp_path / "shoal.yaml"
    path.write_text(text + models)
    config = load_config(path)
    assert {(p.id, p.max_nodes, p.price_usd_per_h) for p in config.cluster.pools} == {
        ("us-east/g6-12xlarge/owned", 2, 0.0), ("us-east/g6-12xlarge-spot/spot", 1, 1.2),
    }  # fmt: skip
    assert config.kubernetes["us-east/g6-12xlarge-spot/spot"].nodes == {
        TYPE: "g6.12xlarge", **product, **spot,
    }  # fmt: skip
    assert yaml.safe_load(text)


MODELS = "models: {m: {source: Qwen/Qwen3-8B, slo: {ttft: 2s, tpot: 60ms}}}\n"
FULL = "NVIDIA-A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("labels", "devices", "expected"),
    [
        ({TYPE: "p4d.24xlarge", "nvidia.com/gpu.product": FULL}, {"nvidia.com/mig-3g.20gb": 8},
         ("A100-SXM-40GB/3g.20gb", 1, 8)),
        ({TYPE: "p4d.24xlarge"}, {"nvidia.com/mig-1g.5gb": 3}, ("A100-SXM-40GB/1g.5gb", 1, 3)),
        ({TYPE: "x", "nvidia.com/gpu.product": f"{FULL}-MIG-2g.10gb"}, {GPU: 3},
         ("A100-SXM-40GB/2g.10gb", 1, 3)),
        ({TYPE: "gpu-mi300x8", "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"},
         {"amd.com/gpu": 8}, ("MI300X", 8, 1)),
        ({TYPE: "Standard_ND96isr_MI300X_v5"}, {"amd.com/gpu": 8}, ("MI300X", 8, 1)),
        ({"cloud.google.com/gke-accelerator": "nvidia-l4"}, {GPU: 2}, ("L4", 2, 1)),
        ({TYPE: "p5.48xlarge"}, {GPU: 8, "vpc.amazonaws.com/efa": 32, "rdma/ib": 8},
         ("H100-SXM", 8, 1)),
        ({TYPE: "p5.48xlarge"}, {GPU: 4}, ("H100-SXM", 4, 1)),  # the others are in use as slices
        ({"kubernetes.io/os": "linux", "nvidia.com/gpu.product": "NVIDIA-L4"}, {GPU: 1},
         ("L4", 1, 1)),
        ({TYPE: "p5.48xlarge", "topology.kubernetes.io/region": "1e3"}, {GPU: 8},
         ("H100-SXM", 8, 1)),
        ({TYPE: "p5.48xlarge", "topology.kubernetes.io/region": "no"}, {GPU: 8},
         ("H100-SXM", 8, 1)),
    ],
)  # fmt: skip
def test_a_found_pool_names_the_accelerator_of_its_nodes(
    labels: dict[str, str], devices: dict[str, int], expected: tuple[str, int, int], tmp_path: Path
) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(pools_yaml(found_pools([NodeView("n", labels, devices=devices)])) + MODELS)
    (pool,) = load_config(path).cluster.pools
    assert (pool.gpu.name, pool.per_node, pool.max_nodes) == expected


@pytest.mark.parametrize(
    ("labels", "devices", "why"),
    [
        ({TYPE: "g"}, {"habana.ai/gaudi": 8}, "the catalogue does not know the GPU"),
        ({TYPE: "ct5"}, {"google.com/tpu": 4}, "the catalogue does not know the GPU"),
        ({TYPE: "x"}, {"gpu.intel.com/i915": 1}, "the catalogue does not know the GPU"),
        ({TYPE: "g6", "nvidia.com/gpu.product": "NVIDIA-L4-SHARED"}, {GPU: 4}, "shared by time"),
        ({TYPE: "p5.48xlarge"}, {GPU: 40}, "shared by time"),
        ({"amd.com/gpu.product-name": "AMD_Instinct_MI300X"}, {"amd.com/cpx_nps4": 64}, "shared"),
    ],
)  # fmt: skip
def test_a_pool_that_cannot_be_planned_is_a_comment_with_the_reason(
    labels: dict[str, str], devices: dict[str, int], why: str
) -> None:
    text = pools_yaml(found_pools([NodeView("n", labels, devices=devices)]))
    first, second = text.splitlines()
    assert first == "regions:"
    assert second.startswith("# left out: ") and why in second


ZONE = {"topology.kubernetes.io/region": "us-east"}


def karpenter(limits: dict[str, str], *kinds: str, markets: tuple[str, ...] = ()) -> Any:
    needs = [{"key": TYPE, "operator": "In", "values": kinds}]
    if markets:
        needs.append({"key": "karpenter.sh/capacity-type", "operator": "In", "values": markets})
    spec = {"limits": limits, "template": {"spec": {"requirements": needs}}}
    return parse_node_pool({"metadata": {"name": "gpus"}, "spec": spec})


def overlay(kind: str, price: str, **more: str) -> Any:
    needs = [{"key": TYPE, "operator": "In", "values": [kind]}]
    needs += [
        {"key": f"karpenter.sh/{k}", "operator": "In", "values": [v]} for k, v in more.items()
    ]
    return parse_overlay(
        {"metadata": {"name": kind}, "spec": {"price": price, "requirements": needs}}
    )


def test_pools_without_nodes_come_from_node_pools(tmp_path: Path) -> None:
    nodes = [NodeView("a", {TYPE: "g6.12xlarge", **ZONE}, devices={GPU: 4}, price=4.6)]
    limits = karpenter(
        {GPU: "16"}, "p5.48xlarge", "g6.12xlarge", "m7.large", markets=("spot", "on-demand")
    )
    text = pools_yaml(
        [*found_pools(nodes), *empty_pools([limits], nodes, [overlay("p5.48xlarge", "55")])]
    )
    path = tmp_path / "shoal.yaml"
    path.write_text(text + MODELS)
    config = load_config(path)
    assert {(p.id, p.gpu.name, p.max_nodes, p.price_usd_per_h) for p in config.cluster.pools} == {
        ("us-east/g6-12xlarge/on-demand", "L4", 1, 4.6),
        ("us-east/p5-48xlarge/on-demand", "H100-SXM", 2, 55.0),
        ("us-east/p5-48xlarge-spot/spot", "H100-SXM", 2, 55.0),
    }
    assert config.kubernetes["us-east/p5-48xlarge-spot/spot"].nodes == {
        TYPE: "p5.48xlarge", "karpenter.sh/capacity-type": "spot",
    }  # fmt: skip
    spot = "# left out: nvidia.com/gpu of node.kubernetes.io/instance-type=g6.12xlarge, "
    assert f"{spot}karpenter.sh/capacity-type=spot: NodePool gpus has no node and no price" in text


@pytest.mark.parametrize(
    ("limits", "overlays", "why"),
    [
        ({}, [], "has no node and no limit and no price"),
        ({}, [overlay("p5.48xlarge", "55")], "has no node and no limit"),
        (
            {GPU: "8"},
            [overlay("p5.48xlarge", "55", **{"capacity-type": "spot"})],
            "has no node and no price",
        ),
        ({GPU: "8"}, [overlay("p5.48xlarge", "55", **{"capacity-type": "on-demand"})], ""),
        ({GPU: "4"}, [overlay("p5.48xlarge", "55")], "the limits of NodePool gpus allow no node"),
        ({"cpu": "0"}, [], "the limits of NodePool gpus allow no node"),
    ],
)
def test_a_pool_without_nodes_needs_a_limit_and_a_price(
    limits: dict[str, str], overlays: list[Any], why: str
) -> None:
    (pool,) = empty_pools([karpenter(limits, "p5.48xlarge")], [], overlays)
    assert (pool.region, pool.spot, pool.per_node) == ("cluster", False, 8)
    assert why in pool.refusal and bool(why) == bool(pool.refusal)


@pytest.mark.parametrize(
    "resource",
    ["rdma/ib", "rdma/hca_shared", "vpc.amazonaws.com/efa", "vpc.amazonaws.com/pod-eni",
     "smarter-devices/fuse", "gpu.intel.com/i915_monitoring", "nvidia.com/gpu-feature",
     "mellanox.com/cx5_sriov", "hugepages-2Mi", "x.nvidia.com/gpu", "xnvidia.com/gpu"],
)  # fmt: skip
def test_other_devices_are_no_accelerators(resource: str) -> None:
    assert not is_accelerator(resource)
    assert found_pools([NodeView("n", {TYPE: "m5.large"}, devices={resource: 9})]) == []


LABEL = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9])?", fullmatch=True)
KEYS = [TYPE, "topology.kubernetes.io/region", "nvidia.com/gpu.product", "kubernetes.io/hostname",
        "karpenter.sh/capacity-type", "amd.com/gpu.product-name"]  # fmt: skip
KINDS = ["p5.48xlarge", "p4d.24xlarge", "NVIDIA-L4", FULL, f"{FULL}-MIG-1g.5gb", "spot", "no", "1"]
DEVICES = [GPU, "nvidia.com/mig-1g.5gb", "amd.com/gpu", "rdma/ib", "google.com/tpu"]


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(KEYS), LABEL | st.sampled_from(KINDS)),
            st.dictionaries(st.sampled_from(DEVICES), st.integers(0, 70)),
            st.none() | st.floats(0, 1e6),
        ),
        max_size=6,
    )
)
def test_the_section_of_any_nodes_can_be_read(nodes: list[Any]) -> None:
    views = [
        NodeView(str(number), labels, devices=devices, price=price)
        for number, (labels, devices, price) in enumerate(nodes)
    ]
    good = NodeView("good", {TYPE: "p5.48xlarge"}, devices={GPU: 8})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shoal.yaml"
        path.write_text(pools_yaml(found_pools([*views, good])) + MODELS)
        assert load_config(path).cluster.pools


def test_free_slices_of_a_node_count_one_by_one() -> None:
    mig = "nvidia.com/mig-3g.20gb"
    nodes = [NodeView("a", {TYPE: "g6"}, devices={mig: 4}), NodeView("b", {TYPE: "g6"})]
    taken = replace(POD_ON_A, devices={mig: 1})
    pool = replace(POOL, gpu_resource=mig)
    assert available_nodes({"r/m/owned": pool}, {"r/m/owned": 1}, nodes, [taken]) == {
        "r/m/owned": 3
    }


def pod(name: str, node: str, labels: dict[str, str], gpus: str = "1") -> dict[str, Any]:
    container = {"name": "e", "resources": {"limits": {GPU: gpus}}}
    ready = [{"type": "Ready", "status": "True"}]
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": ready},
    }


async def test_observe_counts_serving_pods_in_several_pools_and_writes_nothing() -> None:
    cluster = FakeCluster()
    for name, kind in (("n1", "g6"), ("n2", "p5")):
        cluster.put(NODE, {"metadata": {"name": name, "labels": {TYPE: kind}}})
    cluster.put(POD, pod("a", "n1", {"app": "llama"}))
    cluster.put(POD, pod("b", "n2", {"app": "llama"}))
    cluster.put(POD, pod("ours", "n1", {"app": "llama", names.INSTANCE: "i1"}))
    cluster.put(POD, pod("c", "n1", {"llm-d.ai/model": "qwen", "llm-d.ai/role": "decode"}, "2"))
    cluster.put(POD, pod("x", "n1", {"app": "training"}))
    multi = cluster.change(POD, "b", {})["spec"]["containers"][0]
    multi["resources"]["limits"] |= {"vpc.amazonaws.com/efa": "32", "rdma/ib": "1k"}
    cluster.put(POD, pod("cpu", "n1", {"model": "cpu"}))
    cluster.objects["pods", "cpu"]["spec"]["containers"][0]["resources"]["limits"] = {"rdma/ib": 1}
    notes = {names.MANAGED: "true", names.MODEL: "llama", names.POOL: "r/l4"}
    cluster.put(DEPLOYMENT, {"metadata": {"name": "llama", "annotations": notes},
                             "spec": {"selector": {"matchLabels": {"app": "llama"}}}})  # fmt: skip
    text = orjson.dumps(
        {
            "r/l4/owned": {"mode": "observe", "nodes": {TYPE: "g6"}, "per_node": 4},
            "r/h100/owned": {"mode": "observe", "nodes": {TYPE: "p5"}},
        }
    ).decode()
    pools, per_node = parse_pools(text)
    found = orjson.loads(await report("serving", cluster, pools, per_node))
    assert [tuple(row.values()) for row in found] == [
        ("llama", "aggregated", "r/h100/owned", 1, False, 1),
        ("llama", "aggregated", "r/l4/owned", 1, False, 1),
        ("llama", "aggregated", "r/l4/owned", 1, True, 1),
        ("qwen", "decode", "r/l4/owned", 2, False, 1),
    ]
    assert list(found[0]) == ["model", "role", "pool", "gpus", "managed", "pods"]
    assert cluster.writes == []
    # The controller reads what the report writes.
    assert parse_report(orjson.dumps(found))[2] == PodCount(
        "llama", "aggregated", "r/l4/owned", 1, True, 1
    )


async def test_pods_with_devices_by_claims_count_with_the_accelerators_of_their_claims() -> None:
    cluster = FakeCluster()
    cluster.put(NODE, {"metadata": {"name": "n1", "labels": {TYPE: "g6"}}})
    for name, drivers in (("c1", ["gpu.nvidia.com"] * 2 + ["dra.net"]), ("c2", ["dra.net"])):
        results = [{"driver": driver, "device": str(n)} for n, driver in enumerate(drivers)]
        results.append({"driver": "gpu.nvidia.com", "device": "m", "adminAccess": True})
        status = {"allocation": {"devices": {"results": results}}}
        cluster.put(RESOURCE_CLAIM, {"metadata": {"name": name}, "status": status})
    made = pod("a", "n1", {"model": "m"})
    made["spec"] |= {"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
                     "containers": [{"resources": {"claims": [{"name": "gpu"}]}}]}  # fmt: skip
    made["status"]["resourceClaimStatuses"] = [{"name": "gpu", "resourceClaimName": "c1"}]
    cluster.put(POD, made)
    other = pod("b", "n1", {"model": "m"})
    other["spec"] |= {"resourceClaims": [{"name": "x", "resourceClaimName": "c2"}],
                      "containers": [{}]}  # fmt: skip
    cluster.put(POD, other)
    pools = {"r/l4/owned": POOL}
    found = orjson.loads(await report("serving", cluster, pools, {}))
    assert [(row["model"], row["gpus"], row["pods"]) for row in found] == [("m", 2, 1)]


def test_pools_that_cannot_be_read_are_refused_with_the_field() -> None:
    with pytest.raises(InvalidValue, match="--pools"):
        parse_pools("[")
    with pytest.raises(InvalidValue, match=r"p\.mode"):
        parse_pools('{"p": {"mode": "x", "nodes": {}}}')
