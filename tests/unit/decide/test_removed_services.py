"""Services that are no longer declared: their routes are withdrawn, then their instances stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.domain.reason import codes_of
from autoscaler.domain.workload import Lengths
from autoscaler.state.effects import PublishRoutes
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, reused, world
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=12, per_node=1)


@reused
def two() -> World:
    """A world with two models of three instances each."""
    chat = service("chat", req_per_s=20.0)
    return world(20.0, chat, service("mini"), pools=(ONE,)).run(300)


def recommended(cluster: Cluster) -> Cluster:
    """`cluster` with chat in mode recommend."""
    chat, *others = cluster.services
    return replace(cluster, services=(replace(chat, mode=Mode.RECOMMEND), *others))


def route_records(w: World) -> int:
    return sum(isinstance(e, PublishRoutes) and e.record.model == "chat" for e in w.effects)


def test_routes_of_a_removed_service_are_withdrawn_once_before_its_instances_drain() -> None:
    w = two()
    before, generation = route_records(w), w.routes["chat"].generation
    w.undeclare("chat")
    w.run(1)
    assert w.routes["chat"].groups == () and w.assigned_count("chat") == 3
    assert {g.exit.generation for g in w.state.groups if g.model == "chat"} == {generation + 1}
    w.run(60)
    assert w.assigned_count("chat") == 0 and route_records(w) == before + 1
    assert w.ready("mini") == 3
    assert "chat" not in w.routes, "nothing uses the name any more, so its key is deleted"


def test_routes_of_a_removed_service_stay_withdrawn_until_its_instances_are_gone() -> None:
    """A new leader continues. If the service returns, its routes are newer than the deleted ones,
    so that a gateway that missed the deletion applies them.
    """
    w = two()
    declared = w.cluster
    w.undeclare("chat")
    w.run(1)
    assert w.routes["chat"].withdrawn
    last = w.routes["chat"].generation
    w.restart_controller()
    w.run(2)
    assert w.routes["chat"].withdrawn and w.routes["chat"].generation > last
    last = w.routes["chat"].generation
    w.run(60)
    assert "chat" not in w.routes
    w.cluster = declared
    w.run(2)
    assert w.routes["chat"].generation > last and not w.routes["chat"].withdrawn


def test_a_withdrawn_service_of_the_file_keeps_its_withdrawn_routes() -> None:
    w = two()
    w.undeclare("chat")
    w.cluster = replace(w.cluster, withdrawn=("chat",), withdrawn_in_file=("chat",))
    w.run(80)
    assert w.assigned_count("chat") == 0 and w.routes["chat"].withdrawn


def test_the_assignment_of_a_removed_node_is_deleted_once_its_executor_confirms() -> None:
    """The executor must read the empty assignment first, because only an assignment stops its
    instances. A node that stays silent is given up after a day.
    """
    w = two()
    node, silent = sorted(w.applied)[:2]
    kept = next(a for a in w.applied.values() if a.node not in (node, silent))
    w.cluster = replace(w.cluster, pools=(pool("other"),))
    w.undeclare("chat")
    w.undeclare("mini")
    w.cut.add(silent)
    w.run(200)
    assert node not in w.applied and kept.node not in w.applied
    assert not w.applied[silent].instances
    w.t_s += 86_400
    w.run(12)
    assert not w.applied


def test_a_service_declared_again_before_its_drain_keeps_serving() -> None:
    w = two()
    declared, running = w.cluster, {g.name for g in w.state.groups if g.model == "chat"}
    w.undeclare("chat")
    w.run(8)
    w.cluster = declared
    w.run(5)
    assert {g.name for g in w.state.groups if g.model == "chat"} == running
    assert w.ready("chat") == w.assigned_count("chat") == 3


@pytest.mark.parametrize("how", ["recommend", "pause"])
def test_a_paused_service_declared_again_before_its_drain_keeps_serving(
    how: str,
) -> None:
    w = two()
    declared = w.cluster
    w.undeclare("chat")
    w.run(5)
    assert w.ready("chat") == 0
    if how == "pause":
        w.say("chat", "pause")
    w.cluster = declared if how == "pause" else recommended(declared)
    w.run(30)
    assert w.ready("chat") == w.assigned_count("chat") == 3


def test_a_service_removed_in_mode_recommend_keeps_running_under_a_new_leader() -> None:
    """This holds even if the service is removed while no controller leads. A decision states that
    its instances run. Mode act can remove them.
    """
    w = two()
    declared = w.cluster
    w.cluster = recommended(declared)
    w.run(20)
    w.undeclare("chat")
    w.restart_controller()
    w.run(60)
    said = [d.codes for d in w.of_kind("hold") if d.model == "chat"]
    assert said == [(ReasonCode.LEFT_RUNNING,)]
    w.restart_controller()
    w.run(60)
    assert w.ready("chat") == w.assigned_count("chat") == 3
    w.cluster = declared
    w.run(20)
    w.undeclare("chat")
    w.run(60)
    assert w.ready("chat") == w.assigned_count("chat") == 0


def test_a_service_declared_again_with_other_lengths_shows_no_length_shift() -> None:
    """The request lengths of plans from before the removal no longer count."""
    w = two()
    w.undeclare("chat")
    w.run(60)
    chat = service("chat", lengths=Lengths(300.0, 600.0))
    w.cluster = replace(w.cluster, services=(chat, *w.cluster.services))
    w.run(2)
    assert any(ReasonCode.SERVICE_ADDED in codes_of(why) for why in w.reasons.values())
    assert not any(ReasonCode.LENGTHS in codes_of(why) for why in w.reasons.values())
