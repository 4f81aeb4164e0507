"""Who counts as lost, and which regions are cut off."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.performance import catalog
from autoscaler.transitions.sight import look_at
from topics.fleet import InstanceState, ObservedInstance, Status

NOW_MS = 1_700_000_000_000
POOL = Pool("us", "l4", catalog.gpu("L4"), 1, 4, Market.ON_DEMAND, 1.0)
CLUSTER = Cluster((POOL,), ())


def status(node: str, age_s: float, serves: bool) -> Status:
    one = ObservedInstance(f"i-{node}", "chat", "aggregated", "g:1", InstanceState.READY, (0,))
    at_ms = NOW_MS - int(age_s * 1000)
    return Status(node, POOL.id, "x", 1, at_ms, (one,) if serves else ())


@pytest.mark.parametrize("since_s", [13.5, 16.0, 20.0, 40.0])
def test_a_region_that_is_cut_off_is_known_as_soon_as_its_first_node_is_silent(
    since_s: float,
) -> None:
    """Nodes that serve speak every 2 s and idle ones every 10 s. Cut off `since_s` ago: none of
    those that serve is taken for lost alone, or it would be replaced for nothing."""
    heard = {
        "busy": status("busy", since_s + 1.9, serves=True),
        "idle": status("idle", since_s + 0.1, serves=False),
    }
    sight = look_at((), heard, {}, CLUSTER, NOW_MS, 0)
    assert "busy" in sight.silent
    assert sight.cut_pools == {POOL.id}


@pytest.mark.parametrize(("listens_s", "lost"), [(0.5, False), (11.0, False), (12.0, True)])
def test_no_node_is_lost_before_the_leader_has_listened_for_as_long_as_one_may_be_silent(
    listens_s: float, lost: bool
) -> None:
    """The broker was away for a minute: the last words are old, whoever spoke them."""
    heard = {"a": status("a", 60.0, serves=True), "b": status("b", 61.0, serves=True)}
    since_ms = NOW_MS - int(listens_s * 1000)
    sight = look_at((), heard, {}, CLUSTER, NOW_MS, since_ms)
    assert sight.silent == ({"a", "b"} if lost else set())


@pytest.mark.parametrize("idle_s", [0.0, 5.0, 10.5])
def test_a_node_whose_neighbour_speaks_is_lost_alone(idle_s: float) -> None:
    """Between two words of an idle neighbour too."""
    heard = {
        "busy": status("busy", 16.0, serves=True),
        "idle": status("idle", idle_s, serves=False),
    }
    sight = look_at((), heard, {}, CLUSTER, NOW_MS, 0)
    assert sight.silent == {"busy"}
    assert sight.cut_pools == frozenset()
