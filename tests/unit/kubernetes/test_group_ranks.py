"""Ranks of instances over several nodes in mode `scale`."""

from __future__ import annotations

from dataclasses import replace

from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.group_ranks import place_ranks, with_group
from executors.kubernetes.kube_kinds import LEADER_WORKER_SET, STATEFUL_SET
from executors.kubernetes.pod_owner import PodOwners
from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scale_target import ScaleTarget
from executors.kubernetes.workload_view import WorkloadView, parse_workload
from tests.unit.kubernetes.slot_bench import wish
from topics.instance_ranks import GangRank, GangStage

STAGES = (GangStage("L4", 1, 16), GangStage("L4", 1, 16))


def rank(number: int, pod: str = "") -> EnginePod:
    desired = replace(wish(f"a.{number}"), gang=GangRank("a.0", number, STAGES))
    return EnginePod(PodLaunch(desired, 0, (8000,), 0), pod, created=bool(pod))


def view(name: str, **more: object) -> PodView:
    return replace(PodView(name, "serving", name, 0.0, phase="Running", ready=True), **more)  # type: ignore[arg-type]


def test_a_rank_gets_the_worker_of_its_leader_and_follows_it_to_another_group() -> None:
    leader, worker = rank(0, "e-1"), rank(1)
    target = ScaleTarget(claims=[leader], ranks=[worker])
    pods = {name: view(name) for name in ("e-0", "e-0-1", "e-1", "e-1-1")}
    assert place_ranks(target, pods) == [(worker, pods["e-1-1"])]
    worker.pod = "e-1-1"
    assert place_ranks(target, pods) == []
    leader.pod = "e-0"
    assert place_ranks(target, pods) == [(worker, pods["e-0-1"])]
    leader.pod = "e-2"  # its worker does not exist yet
    assert place_ranks(target, pods) == []
    assert not worker.gone


def test_a_rank_ends_with_its_leader() -> None:
    worker = rank(1, "e-1-1")
    target = ScaleTarget(ranks=[worker])
    assert place_ranks(target, {"e-1-1": view("e-1-1")}) == []
    assert worker.gone


def test_a_group_is_ready_if_all_its_pods_are() -> None:
    leader, worker = view("e-0"), view("e-0-1")
    assert with_group(leader, [worker], 2).ready
    for workers in ([], [replace(worker, ready=False)], [replace(worker, terminating=True)]):
        assert not with_group(leader, workers, 2).ready


def test_the_controller_of_a_worker_names_its_leader() -> None:
    group = WorkloadView(LEADER_WORKER_SET, "e", size=2)
    sets = [
        WorkloadView(STATEFUL_SET, "e", managed=False, controller=group.ref),
        WorkloadView(STATEFUL_SET, "e-0", managed=False, controller=("", "Pod", "e-0")),
    ]
    owners = PodOwners([group, *sets])
    leader = view("e-0", controller=("apps", "StatefulSet", "e"))
    worker = view("e-0-1", controller=("apps", "StatefulSet", "e-0"))
    assert (owners.leader(leader), owners.leader(worker)) == ("", "e-0")
    assert owners.owner(leader) == group
    assert owners.owner(worker) is None  # `WorkloadCopies.owner` asks for its leader


def test_the_size_of_a_group_is_that_of_its_template() -> None:
    notes = {"shoal.dev/managed": "true", "shoal.dev/model": "m", "shoal.dev/pool": "us/l4"}
    raw = {"metadata": {"name": "e", "annotations": notes},
           "spec": {"leaderWorkerTemplate": {"size": 4}}}  # fmt: skip
    assert parse_workload(LEADER_WORKER_SET, raw).size == 4
    assert parse_workload(STATEFUL_SET, {**raw, "spec": {}}).size == 1
