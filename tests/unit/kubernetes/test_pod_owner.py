"""The workload of a pod: its chain of controllers, or the selector of `/scale`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executors.kubernetes.kube_kinds import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    STATEFUL_SET,
    Kind,
)
from executors.kubernetes.label_selector import parse_selector
from executors.kubernetes.pod_owner import PodOwners
from executors.kubernetes.pod_view import PodView, parse_pod
from executors.kubernetes.workload_view import WorkloadView

ROLLOUT = Kind("argoproj.io", "v1alpha1", "Rollout", "rollouts")
SET = Kind("example.com", "v1", "EngineSet", "enginesets")
ENGINE = WorkloadView(DEPLOYMENT, "engine")


def pod(*owner: str, **labels: str) -> PodView:
    """A pod with the controller (apiVersion, kind, name)."""
    meta: dict[str, Any] = {"name": "p", "labels": {"app": "engine", **labels}}
    if owner:
        version, kind, name = owner
        reference = {"apiVersion": version, "kind": kind, "name": name, "controller": True}
        meta["ownerReferences"] = [{"apiVersion": "v1", "kind": "X", "name": "x"}, reference]
    return parse_pod({"metadata": meta})


def of_replica_set(name: str, label: str = "pod-template-hash", value: str = "7c9f") -> PodView:
    return pod("apps/v1", "ReplicaSet", name, **{label: value})


def owner(pod: PodView, *workloads: WorkloadView) -> str:
    found = PodOwners(workloads).owner(pod)
    return found.title if found else ""


def test_the_pods_of_a_deployment_are_those_of_its_replica_sets() -> None:
    assert owner(of_replica_set("engine-7c9f"), ENGINE) == "deployments/engine"


@pytest.mark.parametrize(
    "stranger",
    [
        pod("batch/v1", "Job", "bench"),
        pod("apps/v1", "DaemonSet", "engine"),
        pod("apps/v1", "StatefulSet", "engine"),
        pod("v1", "Node", "n0"),
        pod("apps/v1", "ReplicaSet", "engine-7c9f"),
        of_replica_set("engine-canary-7c9f"),
        of_replica_set("other-7c9f"),
        pod("other.io/v1", "Deployment", "engine"),
        pod("example.com/v1", "EngineSet", "unknown"),
        pod(),
    ],
    ids=str,
)
def test_a_pod_of_another_controller_is_not_owned_whatever_its_labels(stranger: PodView) -> None:
    assert owner(stranger, ENGINE, WorkloadView(DEPLOYMENT, "other", managed=False)) == ""


def test_the_pods_of_a_rollout_are_those_of_its_replica_sets() -> None:
    found = of_replica_set("chat-7c9f", "rollouts-pod-template-hash")
    assert owner(found, WorkloadView(DEPLOYMENT, "chat"), WorkloadView(ROLLOUT, "chat")) == (
        "rollouts/chat"
    )


def test_a_workload_between_a_pod_and_its_owner_needs_no_annotation() -> None:
    lws = WorkloadView(LEADER_WORKER_SET, "big")
    made_by = ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "big")
    leaders = WorkloadView(STATEFUL_SET, "big", managed=False, controller=made_by)
    workers = WorkloadView(STATEFUL_SET, "big-0", managed=False, controller=("", "Pod", "big-0"))
    every = (lws, leaders, workers)
    assert owner(pod("apps/v1", "StatefulSet", "big"), *every) == "leaderworkersets/big"
    assert owner(pod("apps/v1", "StatefulSet", "big-0"), *every) == ""  # it serves no requests


def test_a_chain_without_end_has_no_owner() -> None:
    loop = WorkloadView(STATEFUL_SET, "a", managed=False, controller=("apps", "StatefulSet", "a"))
    assert owner(pod("apps/v1", "StatefulSet", "a"), loop) == ""


def test_a_further_kind_owns_by_its_chain_else_by_the_selector_of_its_scale() -> None:
    made = WorkloadView(SET, "set", selector="app in (engine, old),!canary")
    assert owner(pod("example.com/v1beta1", "EngineSet", "set"), replace(made, selector="")) == (
        "enginesets/set"
    )
    assert owner(pod(), made) == "enginesets/set"
    assert owner(pod("example.com/v1", "EnginePart", "set-a"), made) == "enginesets/set"
    assert owner(pod(canary="1"), made) == ""
    assert owner(pod("batch/v1", "Job", "bench"), made) == ""
    assert owner(of_replica_set("other-7c9f"), made) == ""
    assert owner(pod(), replace(made, managed=False)) == ""
    part = WorkloadView(DEPLOYMENT, "part", managed=False, controller=made.ref)
    assert owner(of_replica_set("part-7c9f"), made, part) == "enginesets/set"


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True), ("a=1", True), ("a==1", True), ("a = 1 , b", True), ("a=2", False),
        ("a!=2,c!=3", True), ("a!=1", False), ("b", True), ("c", False), ("!c", True),
        ("! b", False), ("a in (1,2)", True), ("a in (2)", False), ("a notin (2, 3)", True),
        ("c notin (2)", True), ("a notin (1)", False), ("b=", True), ("x.io/y-z=1", False),
    ],
)  # fmt: skip
def test_selectors_match_as_in_kubernetes(text: str, matches: bool) -> None:
    labels = {"a": "1", "b": ""}
    assert all(one.matches(labels) for one in parse_selector(text)) is matches


@pytest.mark.parametrize("text", ["a=1 b=2", "a in 1", "(a)", "a>1,b", "=1", "a in (1", ","])
def test_a_selector_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="label selector"):
        parse_selector(text)
