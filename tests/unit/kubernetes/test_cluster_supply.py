"""Free nodes, prices, pools and serving pods, as read from a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from executors.kubernetes import kube_names as names
from executors.kubernetes.cluster_report import parse_pools, report
from executors.kubernetes.cluster_supply import (
    available_nodes,
    found_pools,
    node_prices,
    pools_yaml,
)
from executors.kubernetes.kube_kinds import DEPLOYMENT, NODE, POD
from executors.kubernetes.kubernetes_config import KubePool, PoolMode
from executors.kubernetes.node_claims import parse_claim, parse_overlay, supply_fault
from executors.kubernetes.node_view import NodeView, parse_node
from executors.kubernetes.pod_view import PodView
from streams.files.shoal_yaml import load_config
from streams.ports.serving_pods import PodCount, parse_report
from tests.unit.kubernetes.fake_cluster import FakeCluster
from topics.checks import InvalidRecord

TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"
POOL = KubePool(PoolMode.OBSERVE, {TYPE: "g6"})
NODE_A = NodeView("a", {TYPE: "g6"}, devices={GPU: 4})
POD_ON_A = PodView("p", "other", "u", 0.0, node="a", phase="Running", gpus={GPU: 1})


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
        replace(NODE_A, reclaim="karpenter.sh/disrupted"),
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
    assert (node.usable, node.reclaim) == (True, "ToBeDeletedByClusterAutoscaler")
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


def test_pools_that_cannot_be_read_are_refused_with_the_field() -> None:
    with pytest.raises(InvalidRecord, match="--pools"):
        parse_pools("[")
    with pytest.raises(InvalidRecord, match=r"p\.mode"):
        parse_pools('{"p": {"mode": "x", "nodes": {}}}')
