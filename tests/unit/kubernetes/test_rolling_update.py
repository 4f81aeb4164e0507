"""Rollouts of a Deployment in mode `scale`: the replicas that keep a pod for each claim."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.kubernetes.kube_kinds import DEPLOYMENT
from executors.kubernetes.rolling_update import RollingUpdate, parse_rolling_update
from executors.kubernetes.scale_target import ScaleTarget, next_replicas
from executors.kubernetes.workload_view import parse_workload
from tests.unit.kubernetes.test_scale_target import WORKLOAD, engine, pod

OLD = {"replicas": 4, "updatedReplicas": 1}


def strategy(surge: object, missing: object) -> dict[str, Any]:
    bounds = {"maxSurge": surge, "maxUnavailable": missing}
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": bounds}}


@pytest.mark.parametrize(
    ("spec", "pods", "replicas"),
    [
        (strategy(1, 0), 4, 4),
        (strategy(0, 1), 4, 5),
        (strategy(0, "10%"), 4, 5),  # 0 pods, of which Kubernetes makes 1
        (strategy("25%", "25%"), 3, 3),
        (strategy("25%", "25%"), 4, 5),
        (strategy("25%", "25%"), 16, 21),
        (strategy(0, "100%"), 4, 4),
        ({"strategy": {"type": "Recreate"}}, 4, 4),
        ({}, 4, 4),
    ],
)
def test_as_many_more_replicas_as_may_be_missing(
    spec: dict[str, Any], pods: int, replicas: int
) -> None:
    assert parse_rolling_update(spec, OLD).replicas_for(pods) == replicas


@given(st.integers(0, 200), st.integers(0, 5), st.integers(0, 50))
def test_they_are_the_fewest_that_suffice(pods: int, most: int, percent: int) -> None:
    def left(replicas: int) -> int:
        return replicas - max(most, math.floor(replicas * percent / 100))

    found = RollingUpdate(True, most, percent / 100).replicas_for(pods)
    assert left(found) >= pods
    assert all(left(fewer) < pods for fewer in range(pods, found))


def test_a_rollout_is_active_while_pods_of_a_former_template_exist() -> None:
    raw = {"metadata": {"name": "e", "annotations": {"shoal.dev/managed": "true"}},
           "spec": strategy(0, 1), "status": OLD}  # fmt: skip
    assert parse_workload(DEPLOYMENT, raw).rollout == RollingUpdate(True, 1)
    raw["status"] = {"replicas": 4, "updatedReplicas": 4}
    assert not parse_workload(DEPLOYMENT, raw).rollout.active
    assert not parse_workload(DEPLOYMENT, {**raw, "status": {}}).rollout.active


def test_replicas_grow_for_a_rollout_unless_they_find_no_node() -> None:
    target = ScaleTarget([engine("a", "p1"), engine("b", "p2")], raised=1)
    workload = replace(WORKLOAD, rollout=RollingUpdate(True, 1))
    pods = [pod("p1"), pod("p2")]
    assert next_replicas(target, workload, pods, []) == 3
    assert next_replicas(target, replace(workload, most=2), pods, []) is None
    assert next_replicas(target, replace(workload, rollout=RollingUpdate()), pods, []) is None
    pending = [*pods, pod("p3", ready=False, node="", unschedulable="0/2 nodes")]
    grown = replace(workload, replicas=3)
    assert next_replicas(target, grown, pending, []) is None
    assert next_replicas(replace(target, no_surge=True), grown, pending, []) == 2
