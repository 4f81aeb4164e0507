"""KV cache moves over the declared network of the pools, and the transfer time reduces capacity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.throughput import instance_throughput
from autoscaler.planning.candidate_combos import candidate_combos, evaluate_combo
from autoscaler.planning.network import link_gb_s
from tests.unit.planning.planning_clusters import CONVERSATION, small_cluster

PROFILE = default_profile()
PAIR = "mini:p1@us-east/l40s/on-demand+d1@us-east/l40s/on-demand"


def on(gb_s: float) -> Cluster:
    cluster = small_cluster()
    pools = tuple(replace(p, between_gb_s=gb_s) for p in cluster.pools if p.name == "l40s")
    return replace(cluster, pools=pools)


def test_a_slow_network_makes_the_first_decode_token_too_late() -> None:
    """1,155 tokens of an 8B model are 151 MB. The transfer takes 1.2 s at 1 Gbit/s, but the TTFT
    limit is 1 s.
    """
    spec, node = catalog.model("meta-llama/Llama-3.1-8B"), NodeSlice(catalog.gpu("L40S"), 1)
    lengths, slo = Lengths(1155.0, 211.0), Slo(1000.0, 60.0)
    rates = [
        instance_throughput(
            spec, node, Phase.DECODE, slo, lengths, PROFILE, link_gb_s=gb_s
        ).req_per_s
        for gb_s in (25.0, 0.125)
    ]
    assert rates[0] > 0.0
    assert rates[1] == 0.0


def test_a_slower_network_lowers_the_capacity_of_a_pair() -> None:
    """At 2.1e9 bytes/s the transfer takes 72 of the 75 ms that decode may use of the TTFT limit."""
    rates = []
    for gb_s in (50.0, 2.1):
        cluster = on(gb_s)
        service = cluster.service("mini")
        decode = evaluate_combo(PAIR, cluster, service, CONVERSATION, PROFILE).members[1]
        assert decode.phase is Phase.DECODE
        rates.append(decode.req_per_s)
        for combo in candidate_combos(cluster, service, CONVERSATION, PROFILE):
            assert evaluate_combo(combo.id, cluster, service, CONVERSATION, PROFILE) == combo
    assert rates[1] < 0.9 * rates[0]


def test_the_slower_of_two_networks_counts() -> None:
    cluster = small_cluster()
    one, other = (
        replace(p, between_gb_s=gb) for p, gb in zip(cluster.pools[1:3], (2.0, 9.0), strict=True)
    )
    assert link_gb_s(one, other) == link_gb_s(other, one) == 2.0
    assert link_gb_s(replace(one, between_gb_s=0.0), other) == 9.0
    node = cluster.pools[0]
    assert link_gb_s(node, node) == pytest.approx(node.gpu.interconnect_gb_s)
