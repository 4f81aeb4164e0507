"""The section `regions:` for the GPU nodes of a cluster, and for those that Karpenter may add."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from executors.kubernetes.accelerators import is_accelerator
from executors.kubernetes.cluster_supply import empty_pools, found_pools, pools_yaml
from executors.kubernetes.node_claims import parse_node_pool, parse_overlay
from executors.kubernetes.node_view import NodeView
from streams.files.shoal_yaml import load_config

TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"


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


def test_pools_of_both_markets_count_no_node_twice() -> None:
    """Karpenter labels each node with its market."""
    market = "karpenter.sh/capacity-type"
    nodes = [
        NodeView(kind, {TYPE: "g6.12xlarge", market: kind}, devices={GPU: 4})
        for kind in ("on-demand", "spot")
    ]
    pools = [
        *found_pools(nodes),
        *empty_pools([karpenter({}, "p5.48xlarge", markets=("spot", "on-demand"))], nodes),
    ]
    assert [(pool.spot, pool.nodes[market]) for pool in pools] == [
        (False, "on-demand"), (True, "spot"), (False, "on-demand"), (True, "spot"),
    ]  # fmt: skip
    assert all(sum(node.matches(pool.nodes) for pool in pools) == 1 for node in nodes)
