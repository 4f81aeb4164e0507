"""Roles and multi-node instances as pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_kinds import POD
from tests.unit.kubernetes.fake_cluster import FakeCluster
from tests.unit.kubernetes.slot_bench import OTHER, SLOT, SlotBench, wish
from topics.fleet import InstanceState
from topics.instance_ranks import GangRank, GangStage

STAGES = (GangStage("L4", 1, 16), GangStage("L4", 1, 16))


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SlotBench]:
    async with aiohttp.ClientSession() as client:
        made = SlotBench(tmp_path, FakeCluster(), client)
        await made.open()
        yield made
        await made.close()


def command(bench: SlotBench, pod: str) -> list[str]:
    found = bench.cluster.objects["pods", pod]["spec"]["containers"][0]["command"]
    return [str(word) for word in found]


async def test_the_ranks_of_a_gang_are_pods_that_meet_at_the_address_of_rank_0(
    bench: SlotBench,
) -> None:
    first, second = names.pod_name("g.0", 0), names.pod_name("g.1", 0)
    rank_0 = replace(wish("g.0"), gang=GangRank("g.0", 0, STAGES))
    rank_1 = replace(wish("g.1"), gang=GangRank("g.0", 1, STAGES))
    bench.assign(SLOT, rank_0)
    bench.assign(OTHER, rank_1)
    await bench.steps(2)
    assert bench.cluster.names(POD) == [first]  # rank 1 does not know where rank 0 waits
    assert "--join=$(POD_IP):8001" in command(bench, first)
    bench.cluster.run_pod(first, "10.0.0.7")
    await bench.steps(3)
    gang = bench.instance(SLOT, "g.0").gang
    assert gang is not None
    assert gang.rendezvous == "10.0.0.7:8001"
    assert rank_1.gang is not None
    joined = replace(rank_1.gang, rendezvous=gang.rendezvous)
    bench.assign(OTHER, replace(rank_1, gang=joined))
    await bench.steps(2)
    assert "--join=10.0.0.7:8001" in command(bench, second)
    bench.cluster.run_pod(second, "10.0.0.8")
    await bench.steps(4)
    assert bench.state(OTHER, "g.1") is InstanceState.READY
    assert bench.instance(OTHER, "g.1").endpoint == ""  # only rank 0 takes requests


async def test_a_broken_gang_loses_its_pods_at_once(bench: SlotBench) -> None:
    first = names.pod_name("g.0", 0)
    gang = GangRank("g.0", 0, STAGES)
    bench.assign(SLOT, replace(wish("g.0"), gang=gang))
    await bench.steps(2)
    bench.cluster.run_pod(first, "10.0.0.7")
    await bench.steps(3)
    bench.assign(SLOT, replace(wish("g.0"), gang=replace(gang, broken=True)))
    await bench.steps(2)
    meta = bench.cluster.objects["pods", first]["metadata"]
    assert meta["deletionGracePeriodSeconds"] == 1


async def test_a_role_switch_starts_the_engine_again_in_its_new_role(bench: SlotBench) -> None:
    old, new = names.pod_name("a", 0), names.pod_name("a", 1)
    bench.assign(SLOT, replace(wish("a"), phase="prefill"))
    await bench.steps(2)
    bench.cluster.run_pod(old, "10.0.0.7")
    await bench.steps(4)
    assert bench.cluster.objects["pods", old]["metadata"]["labels"][names.ROLE] == "prefill"
    bench.assign(SLOT, replace(wish("a"), phase="decode"))
    await bench.steps(6)
    assert bench.cluster.objects["pods", old]["metadata"]["deletionTimestamp"]
    bench.cluster.remove(POD, old)
    await bench.steps(8)
    assert "--phase=decode" in command(bench, new)
    bench.cluster.run_pod(new, "10.0.0.8")
    await bench.steps(5)
    assert bench.state(SLOT, "a") is InstanceState.READY
    labels = bench.cluster.objects["pods", new]["metadata"]["labels"]
    assert (labels[names.ROLE], labels[names.SERVING]) == ("decode", "true")
