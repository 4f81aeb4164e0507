"""Claims on a workload: the pods that they take, and the next write of the replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.kubernetes import kube_names as names
from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.kube_kinds import DEPLOYMENT, STATEFUL_SET
from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scale_target import (
    LEAVES_COST,
    ScaleTarget,
    assign_pods,
    next_replicas,
    ordinal_swap,
    other_writer,
    removable,
)
from executors.kubernetes.workload_view import WorkloadView, parse_workload
from tests.unit.kubernetes.slot_bench import wish

WORKLOAD = WorkloadView(DEPLOYMENT, "e", "m", "aggregated", "us/l4", 2)


def engine(name: str, pod: str = "", stopping: bool = False) -> EnginePod:
    made = EnginePod(PodLaunch(wish(name), 0, (8000,), 0), pod, created=bool(pod))
    made.stopping = stopping
    return made


def pod(name: str, **more: Any) -> PodView:
    return PodView(name, "s", name, 0.0, **{"phase": "Running", "ready": True, "node": "n", **more})


def test_waiting_claims_take_ready_pods_first() -> None:
    target = ScaleTarget([engine("a", "p1"), engine("b"), engine("c")])
    pods = [pod("p1"), pod("p2", ready=False), pod("p3"), pod("p4", terminating=True)]
    assert [(e.launch.desired.instance, p.name) for e, p in assign_pods(target, pods)] == [
        ("b", "p3"), ("c", "p2"),
    ]  # fmt: skip


def test_a_claim_without_a_free_pod_makes_the_workload_grow_by_one() -> None:
    target = ScaleTarget([engine("a", "p1"), engine("b", "p2"), engine("c")])
    pods = [pod("p1"), pod("p2")]
    assert next_replicas(target, WORKLOAD, pods, []) == 3
    assert next_replicas(target, replace(WORKLOAD, replicas=3), pods, []) is None  # asked for
    assert next_replicas(target, replace(WORKLOAD, most=2), pods, []) is None


def test_an_idle_pod_leaves_only_once_its_cost_is_the_lowest() -> None:
    leaves = engine("a", "p1", stopping=True)
    target = ScaleTarget([leaves, engine("b", "p2")])
    pods = [pod("p1"), pod("p2")]
    assert removable(target, WORKLOAD, pods) == []
    marked = [pod("p1", annotations={names.DELETION_COST: LEAVES_COST}), pod("p2")]
    assert removable(target, WORKLOAD, marked) == [leaves]
    assert next_replicas(target, WORKLOAD, marked, [leaves]) == 1
    starting = [*marked, pod("p3", ready=False)]
    assert removable(target, WORKLOAD, starting) == []  # Otherwise p3 would leave.


def test_growth_does_not_count_a_pod_whose_removal_is_written_but_not_seen() -> None:
    """Another pod left in place of p1, so the claim on that pod waits for p1."""
    leaves, lost = engine("a", "p1", stopping=True), engine("b")
    target = ScaleTarget([leaves, lost], leaving={leaves})
    assert next_replicas(target, replace(WORKLOAD, replicas=1), [pod("p1")], []) is None
    gone = [pod("p1", terminating=True)]
    assert next_replicas(target, replace(WORKLOAD, replicas=0), gone, []) == 1


def test_the_owners_minimum_holds() -> None:
    leaves = engine("a", "p1", stopping=True)
    target = ScaleTarget([leaves])
    assert next_replicas(target, replace(WORKLOAD, least=2), [pod("p1")], [leaves]) == 2


def test_replicas_that_found_no_node_are_taken_back_and_those_of_the_owner_stay() -> None:
    pending = pod("p3", ready=False, node="", unschedulable="0/2 nodes")
    pods = [pod("p1"), pod("p2"), pending]
    target = ScaleTarget([engine("a", "p1"), engine("b", "p2")], raised=1)
    workload = replace(WORKLOAD, replicas=3)
    assert next_replicas(target, workload, pods, []) == 2
    assert next_replicas(replace(target, raised=0), workload, pods, []) is None


def test_an_ordinal_without_a_node_keeps_the_replicas_if_a_higher_one_serves() -> None:
    """A StatefulSet would remove the higher one."""
    lost = {"ready": False, "node": "", "unschedulable": "0/2 nodes"}
    target = ScaleTarget([engine("a", "e-1")], raised=1)
    for name, wanted in (("e-0", None), ("e-2", 1)):
        pods = [pod("e-1"), pod(name, **lost)]
        workload = replace(WORKLOAD, kind=STATEFUL_SET, replicas=2)
        assert next_replicas(target, workload, pods, []) == wanted


def test_another_writer_is_named_and_shoals_own_write_is_not() -> None:
    target = ScaleTarget(written=3)
    assert other_writer(target, replace(WORKLOAD, replicas=3)) == ""
    assert other_writer(ScaleTarget(), WORKLOAD) == ""
    why = other_writer(target, replace(WORKLOAD, replicas=2, last_writer="argocd"))
    assert why.startswith("argocd set deployments/e to 2 replicas after Shoal wrote 3")


def test_ordinals_give_up_the_highest_one() -> None:
    first, last = engine("a", "e-0"), engine("b", "e-10")
    pods = [pod("e-0"), pod("e-10"), pod("e-9")]
    assert ordinal_swap(first, [first, last], pods) is last
    assert ordinal_swap(last, [first, last], pods) is None


@given(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6), st.integers(0, 12))
def test_growth_never_exceeds_claims_and_bounds(
    held: int, waiting: int, free: int, most: int
) -> None:
    claims = [engine(f"h{n}", f"p{n}") for n in range(held)]
    claims += [engine(f"w{n}") for n in range(waiting)]
    target = ScaleTarget(claims)
    pods = [pod(f"p{n}") for n in range(held)] + [pod(f"f{n}") for n in range(free)]
    for claim, found in assign_pods(target, pods):
        claim.pod = found.name
    workload = replace(WORKLOAD, replicas=len(pods), most=max(most, len(pods)))
    wanted = next_replicas(target, workload, pods, [])
    missing = max(0, waiting - free)
    expected = min(len(pods) + missing, workload.most)
    assert wanted == (expected if missing and expected > len(pods) else None)


def manifest(**changes: Any) -> dict[str, Any]:
    notes = {names.MANAGED: "true", names.MODEL: "m", names.POOL: "us/l4"}
    found: dict[str, Any] = {
        "metadata": {"name": "e", "annotations": {**notes, **changes.get("notes", {})},
                     "managedFields": changes.get("fields", [])},
        "spec": {"replicas": 2, "selector": {"matchLabels": changes.get("selector", {"app": "e"}),
                                             "matchExpressions": changes.get("sets", [])}},
    }  # fmt: skip
    return found


REPLICAS = {"f:spec": {"f:replicas": {}}}


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"notes": {names.MIN: "-1"}}, "shoal.dev/min: '-1' is not allowed"),
        ({"notes": {names.ROLE: "both"}}, "shoal.dev/role: 'both' is not allowed"),
        ({"notes": {names.MODEL: ""}}, "annotation shoal.dev/model is missing"),
        ({"selector": {"app": "e", names.SERVING: "true"}}, "shoal.dev/serving is in the selector"),
        ({"sets": [{"key": names.SERVING, "operator": "Exists"}]},
         "shoal.dev/serving is in the selector"),
        ({"fields": [{"manager": "flux", "operation": "Apply", "fieldsV1": REPLICAS}]},
         "flux applies spec.replicas"),
    ],
)  # fmt: skip
def test_a_workload_that_must_not_be_scaled_says_why(changes: dict[str, Any], fault: str) -> None:
    workload = parse_workload(DEPLOYMENT, manifest(**changes))
    assert workload is not None
    assert workload.fault.startswith(fault)


def test_a_workload_that_nobody_opted_in_only_names_its_controller() -> None:
    raw = manifest(notes={names.MANAGED: "false"})
    raw["metadata"]["ownerReferences"] = [
        {"apiVersion": "example.com/v1", "kind": "Set", "name": "s", "controller": True}
    ]
    made_by = ("example.com", "Set", "s")
    assert parse_workload(STATEFUL_SET, raw) == WorkloadView(
        STATEFUL_SET, "e", managed=False, controller=made_by
    )
