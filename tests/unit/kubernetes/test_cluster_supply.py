"""Free nodes, prices and serving pods, as read from a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from executors.kubernetes import kube_names as names
from executors.kubernetes.cluster_report import parse_pools, report
from executors.kubernetes.cluster_supply import (
    available_nodes,
    node_prices,
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
