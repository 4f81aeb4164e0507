"""Pools that change between the modes `scale` and `pods`: pods serve until they are replaced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.kubernetes import kube_names as names
from executors.kubernetes import pod_fleet, workload_scaler
from executors.kubernetes.claim_places import Claim, exchanged
from executors.kubernetes.cluster_report import report
from executors.kubernetes.kube_kinds import DEPLOYMENT, POD
from tests.unit.kubernetes.slot_bench import OTHER, POOL, SLOT, SlotBench, settle, wish
from tests.unit.kubernetes.test_workload_scaler import Workload, rounds
from topics.fleet import InstanceState


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_EVERY_S", "_PAUSE_S", "_COST_SEEN_S", "_COPY_EVERY_S"):
        monkeypatch.setattr(workload_scaler, name, 0.0)
    monkeypatch.setattr(pod_fleet, "_LEAST_PAUSE_S", 0.0)


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as made:
        yield made


async def scaled(cluster: Workload, folder: Path, http: aiohttp.ClientSession) -> None:
    """An executor in mode `scale` that claims two pods for the slot, and ends."""
    bench = SlotBench(folder, cluster, http, "scale")
    await bench.open()
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench)
    assert bench.statuses[SLOT].templates == {"default": bench.instance(SLOT, "a").template}
    await bench.close()


async def test_claimed_pods_serve_on_in_mode_pods_and_leave_one_by_one(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    cluster = Workload(2)
    await scaled(cluster, tmp_path, http)
    bench = SlotBench(tmp_path, cluster, http, "pods")
    assert await bench.open() == 2
    bench.assign(SLOT, wish("a", 0), wish("b", 1), wish("c", 2))
    await rounds(bench)
    assert bench.state(SLOT, "a") is bench.state(SLOT, "b") is InstanceState.READY
    # another template than that of new launches: the controller rolls them out
    present = bench.statuses[SLOT].templates["default"]
    assert bench.instance(SLOT, "a").template not in ("", present)
    made = [name for name in cluster.names(POD) if name.startswith("shoal-c")]
    assert len(made) == 1
    cluster.run_pod(made[0], "10.0.1.1")
    await rounds(bench)
    assert bench.instance(SLOT, "c").template == present
    bench.assign(SLOT, wish("a", 0, drain=True), wish("b", 1), wish("c", 2))
    await rounds(bench, 12)
    assert bench.state(SLOT, "a") is InstanceState.STOPPED
    assert cluster.replicas == 1
    assert bench.state(SLOT, "b") is InstanceState.READY
    assert not [write for write in cluster.writes if write[0] == "delete"]
    await bench.close()


async def test_own_pods_serve_on_in_mode_scale_and_are_deleted_after_their_drain(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    cluster = Workload(0)
    bench = SlotBench(tmp_path, cluster, http, "pods")
    await bench.open()
    bench.assign(SLOT, wish("a", 0))
    await bench.steps(2)
    (made,) = cluster.names(POD)
    cluster.run_pod(made, "10.0.1.1")
    await bench.steps(3)
    await bench.close()
    bench = SlotBench(tmp_path, cluster, http, "scale")
    assert await bench.open() == 1
    bench.assign(SLOT, wish("a", 0))
    await bench.steps(3)
    assert bench.state(SLOT, "a") is InstanceState.READY
    bench.assign(SLOT, wish("a", 0, drain=True))
    await bench.steps(8)
    assert ("delete", "pods", made) in cluster.writes
    await bench.close()


async def test_a_claim_whose_workload_is_no_longer_opted_in_is_freed(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    cluster = Workload(2)
    await scaled(cluster, tmp_path, http)
    cluster.change(DEPLOYMENT, "e", {"metadata": {"annotations": {names.MANAGED: None}}})
    bench = SlotBench(tmp_path, cluster, http, "pods")
    assert await bench.open() == 0
    await settle()
    assert claims(cluster) == []
    await bench.close()


async def test_a_release_removes_all_claims_and_leaves_own_pods(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    cluster = Workload(2)
    await scaled(cluster, tmp_path, http)
    drains = claims(cluster)[0]
    cluster.change(POD, drains, {"metadata": {"labels": {names.SERVING: "draining"}}})
    own = {names.SLOT: SLOT, names.MANAGED: "true", names.POOL: POOL}
    cluster.put(POD, {"metadata": {"name": "own", "labels": own}, "spec": {}})
    assert (await report("release", cluster, {}, {})).split() == ["e-1", "e-2"]
    assert claims(cluster) == []
    assert cluster.objects["pods", drains]["metadata"]["labels"][names.SERVING] == "true"
    assert cluster.objects["pods", "own"]["metadata"]["labels"] == own
    assert await report("release", cluster, {}, {}) == ""


def claims(cluster: Workload) -> list[str]:
    """The Deployment's pods with any trace of a claim."""
    keys = (names.SLOT, names.INSTANCE, names.GROUP, names.LAUNCH, names.DELETION_COST)
    return [
        name for name in cluster.pods()
        if any(
            key in (cluster.objects["pods", name]["metadata"].get(part) or {})
            for part in ("labels", "annotations") for key in keys
        )
    ]  # fmt: skip


def test_slots_get_the_pods_of_one_node() -> None:
    mixed = [
        Claim("p1", "x", SLOT, "e", 2), Claim("p2", "y", SLOT, "e", 2),
        Claim("p3", "x", OTHER, "e", 2),
    ]  # fmt: skip
    assert exchanged(mixed) == {"p2": "p3", "p3": "p2"}
    assert exchanged([]) == {}


@given(
    st.lists(
        st.tuples(st.sampled_from("wxyz"), st.sampled_from("abc"), st.sampled_from("kl")),
        max_size=9,
    )
)
def test_an_exchange_is_a_permutation_within_a_kind_that_another_one_leaves_as_it_is(
    drawn: list[tuple[str, str, str]],
) -> None:
    claims = [Claim(f"p{n}", node, slot, kind, 1) for n, (node, slot, kind) in enumerate(drawn)]
    moved = exchanged(claims)
    by_pod = {claim.pod: claim for claim in claims}
    assert sorted(moved) == sorted(moved.values())
    assert all(by_pod[pod].kind == by_pod[source].kind for pod, source in moved.items())
    after = [
        Claim(one.pod, one.node, by_pod[moved.get(one.pod, one.pod)].slot, one.kind, 1)
        for one in claims
    ]
    assert _pairs(after) <= _pairs(claims)


def _pairs(claims: list[Claim]) -> int:
    """The number of different pairs of slot and node."""
    return len({(one.slot, one.node) for one in claims})
