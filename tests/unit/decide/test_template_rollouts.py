"""A changed template of the executors is rolled out as a changed version."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import fleet_status
from tests.unit.decide.decide_catalogue import combos, pool, service, simple
from tests.unit.decide.decide_world import World, world
from tests.unit.decide.test_rollouts import (
    QUICK,
    RENTED,
    Watch,
    change,
    codes,
    instances,
)
from topics.reason_codes import ReasonCode as Code

OTHER = pool("other", per_node=1, usd=2.0)


def fleet(**changes: object) -> World:
    """A settled model of three instances, launched from the template "one"."""
    served = service("chat", rollout=QUICK, max_disruption=0.5, **changes)
    return world(22.0, served, pools=(RENTED,), templates={RENTED.id: "one"}).run(150)


def templates(w: World) -> Counter[str]:
    return Counter(w.launched_from[one.instance] for one in instances(w))


def shown(w: World) -> tuple[str, int]:
    """The state of the rollout in the status, and its instances of the new version."""
    seen = Observation(statuses=dict(w.statuses))
    (model,) = fleet_status(w.state, seen, w.cluster, w.now_ms).models
    return (model.rollout.state, model.rollout.done) if model.rollout is not None else ("", 0)


def test_a_changed_template_is_rolled_out_in_waves() -> None:
    w, seen = fleet(), Watch()
    assert templates(w) == {"one": 3}
    assert shown(w) == ("", 0)
    w.templates[RENTED.id] = "two"
    w.run(600, seen)
    assert templates(w) == {"two": 3}
    assert seen.least_req_per_s >= 30.0
    assert {Code.ROLLOUT_BEGAN, Code.ROLLOUT_WAVE, Code.ROLLOUT_DONE} <= codes(w)
    settled = instances(w)
    w.run(300)
    assert instances(w) == settled


def test_a_bad_template_stops_at_one_instance_and_is_taken_back_until_it_changes() -> None:
    w, seen = fleet(), Watch()
    before = instances(w)
    w.templates[RENTED.id] = "bad"
    w.failing = {"bad"}
    w.run(900, seen)
    assert instances(w) == before and seen.least_req_per_s >= 30.0
    assert len(seen.names["default"]) == 4
    assert Code.ROLLOUT_TAKEN_BACK in codes(w)
    assert shown(w)[0] == "taken back"
    w.rate = lambda _model, _t: 40.0  # demand gets the former template
    w.run(300)
    assert len(instances(w)) > 3 and set(templates(w)) == {"one"}
    w.templates[RENTED.id] = "two"
    w.run(1200)
    assert set(templates(w)) == {"two"}


def test_a_template_that_returns_replaces_nothing_more() -> None:
    w = fleet()
    w.templates[RENTED.id] = "two"
    w.run(100)
    assert 0 < templates(w)["two"] < 3
    assert shown(w) == ("rolling", templates(w)["two"])
    kept = {one.instance for one in instances(w) if w.launched_from[one.instance] == "one"}
    w.templates[RENTED.id] = "one"
    w.run(900)
    assert templates(w) == {"one": 3}
    assert kept <= {one.instance for one in instances(w)}


@pytest.mark.parametrize("lost", [False, True], ids=["next leader", "lost topics"])
def test_a_new_leader_continues_with_the_templates_of_running_instances(lost: bool) -> None:
    w = fleet()
    w.templates[RENTED.id] = "two"
    w.run(60)
    w.restart_controller(lost)
    w.run(900)
    assert templates(w) == {"two": 3}


def test_executors_that_begin_to_report_templates_replace_nothing() -> None:
    w = world(22.0, service("chat", rollout=QUICK), pools=(RENTED,)).run(150)
    before = instances(w)
    w.templates[RENTED.id] = "one"
    for one in before:
        w.launched_from[one.instance] = ""  # launched by an older executor
    w.crashing = {"default"}  # restarts of long ago are no evidence
    w.run(300)
    assert instances(w) == before
    assert not {Code.ROLLOUT_BEGAN, Code.ROLLOUT_TAKEN_BACK} & codes(w)


def test_only_the_pool_with_the_changed_template_is_rolled_out() -> None:
    made = combos(*simple("chat", RENTED), *simple("chat", OTHER))
    small = replace(RENTED, max_nodes=2)
    w = world(
        22.0,
        service("chat", rollout=QUICK, max_disruption=0.5),
        pools=(small, OTHER),
        catalogue={"chat": made},
        templates={small.id: "one", OTHER.id: "uno"},
    ).run(300)
    assert set(templates(w)) == {"one", "uno"}
    kept = {one.instance for one in instances(w) if w.launched_from[one.instance] == "one"}
    w.templates[OTHER.id] = "due"
    w.run(900)
    assert set(templates(w)) == {"one", "due"}
    assert kept <= {one.instance for one in instances(w)}


def test_an_engine_and_its_template_may_change_at_the_same_time() -> None:
    w, seen = fleet(), Watch()
    w.templates[RENTED.id] = "two"
    change(w, weights="org/chat-2").run(900, seen)
    assert templates(w) == {"two": 3} and seen.least_req_per_s >= 30.0
    assert {one.version for one in instances(w)} == {
        w.cluster.services[0].version.replace("-", ".two-")
    }
