"""Planned traffic shares on a fleet that has not reached the plan yet."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Service
from autoscaler.domain.workload import Lengths, Slo, WorkloadType
from autoscaler.performance import catalog
from autoscaler.rollout.traffic_split import TrafficSplit, planned_split, type_routes
from topics.records import Endpoint, RouteGroup, Routes

A, B, OLD = "m:a1@r/a/spot", "m:a1@r/b/spot", "m:a1@r/old/spot"
SERVICE = Service(
    model="m",
    architecture=catalog.model("meta-llama/Llama-3.1-8B-Instruct"),
    slo=Slo(2000.0, 60.0),
    types=(
        WorkloadType("long", 0.3, Lengths(4000, 80)),
        WorkloadType("chat", 0.7, Lengths(300, 250)),
    ),
)
WAYS = TrafficSplit(
    (
        ("long", A, 0.75),
        ("long", B, 0.25),
        ("long", OLD, 0.0),
        ("chat", B, 1.0),
        ("chat", OLD, 0.0),
    ),
    ((A, 2), (B, 1)),
)


def group(name: str, weight: float = 1.0) -> RouteGroup:
    return RouteGroup(name, weight, (Endpoint(name, "h:1"),))


def shares(*groups: RouteGroup, ways: TrafficSplit = WAYS) -> dict[str, dict[str, float]]:
    found = type_routes(SERVICE, ways, groups)
    return {
        kind.name: {g.group: s for g, s in zip(groups, kind.shares, strict=True)} for kind in found
    }


def test_the_planned_fleet_gets_the_planned_shares() -> None:
    found = shares(group(f"{A}:1"), group(f"{A}:2"), group(f"{B}:3"))
    assert found["long"] == pytest.approx({f"{A}:1": 0.375, f"{A}:2": 0.375, f"{B}:3": 0.25})
    assert found["chat"] == pytest.approx({f"{A}:1": 0.0, f"{A}:2": 0.0, f"{B}:3": 1.0})


def test_the_share_of_missing_instances_is_divided_by_weight() -> None:
    """One of two instances of A is ready; B is not. The old instance serves the missing part, and A
    never gets chat requests.
    """
    found = shares(group(f"{A}:1", 3.0), group(f"{OLD}:9", 1.0))
    missing = 1.0 - 0.375
    assert found["long"] == pytest.approx(
        {f"{A}:1": 0.375 + missing * 0.75, f"{OLD}:9": missing * 0.25}, abs=1e-4
    )
    assert found["chat"] == pytest.approx({f"{A}:1": 0.0, f"{OLD}:9": 1.0})


def test_leaving_groups_get_no_share_once_the_planned_fleet_serves() -> None:
    found = shares(group(f"{A}:1"), group(f"{A}:2"), group(f"{B}:3"), group(f"{OLD}:9"))
    assert found["long"][f"{OLD}:9"] == found["chat"][f"{OLD}:9"] == 0.0


def test_surplus_copies_share_the_planned_part() -> None:
    found = shares(group(f"{A}:1"), group(f"{A}:2"), group(f"{A}:4"), group(f"{B}:3"))
    assert found["long"][f"{A}:1"] == pytest.approx(0.25)


def test_without_a_plan_published_shares_stay_while_their_groups_exist() -> None:
    groups = (group(f"{A}:1"), group(f"{B}:3"))
    published = Routes("m", 1, 1, 0, 1.0, 1.0, groups, types=type_routes(SERVICE, WAYS, groups))
    assert type_routes(SERVICE, TrafficSplit(), groups, published) == published.types
    assert type_routes(SERVICE, TrafficSplit(), groups[:1], published) == ()


def test_planned_shares_count_the_combos_of_each_type() -> None:
    found = planned_split([("long", A, 1.0)], [(A, 2), (B, 1)])
    assert found == TrafficSplit((("long", A, 1.0),), ((A, 2),))


def test_a_split_differs_if_one_fraction_does() -> None:
    other = TrafficSplit((("long", A, 0.65), ("long", B, 0.35), ("chat", B, 1.0)), WAYS.copies)
    assert WAYS.differs(other) and other.differs(WAYS)
    nearly = TrafficSplit((("long", A, 0.7499), ("long", B, 0.25), ("chat", B, 1.0)), WAYS.copies)
    assert not WAYS.differs(nearly)
    assert not WAYS.differs(TrafficSplit()) and not TrafficSplit().differs(WAYS)
