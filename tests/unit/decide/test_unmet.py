"""A decision names the model and the demand that no plan can serve, within the length limit of a
record.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Mode
from autoscaler.domain.reason import Reason
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency
from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import fleet_status
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import Planner, World, world
from topics.decisions import Decision
from topics.reason_codes import ReasonCode
from topics.supply import Availability

ONE = pool("one", nodes=1, per_node=1)
OTHERS = tuple(f"chat-region-{number:02}" for number in range(60))


class Noting(Planner):
    """A planner that adds `notes` to every answer."""

    def __init__(self, planner: Planner, notes: tuple[Reason, ...]) -> None:
        super().__init__(planner.catalogue)
        self.notes = notes

    def answer(self, request: PlanRequest, *args: object) -> PlanAnswer:
        made = super().answer(request, *args)  # type: ignore[arg-type]
        return replace(made, notes=(*made.notes, *self.notes))


def shortage_decision(notes: tuple[Reason, ...]) -> Decision:
    """The decision about 40 req/s on nodes for 10 req/s. The planner adds `notes`."""
    w: World = world(40.0, service(), pools=(ONE,))
    w.planner = Noting(w.planner, notes)
    w.run(60)
    return w.of_kind("infeasible")[0]


def test_a_decision_leaves_out_notes_of_models_with_the_same_name_prefix() -> None:
    others = (Reason(ReasonCode.NO_POOL, name) for name in OTHERS)
    said = shortage_decision((Reason(ReasonCode.NO_USABLE_NODE, "chat"), *others))
    assert ReasonCode.NO_USABLE_NODE in said.codes
    assert ReasonCode.NO_POOL not in said.codes


def test_a_reason_longer_than_the_record_allows_is_cut() -> None:
    said = shortage_decision(
        tuple(Reason(ReasonCode.TYPE_NOT_SERVED, "chat", (one,)) for one in OTHERS)
    )
    assert said.codes[:2] == (ReasonCode.UNSERVED, ReasonCode.TYPE_NOT_SERVED)
    assert len(said.reason) == 2000 and said.reason.endswith("...")


def test_a_minimum_without_nodes_is_stated_once_in_ten_minutes() -> None:
    """The minimum is four, two nodes exist, and demand needs one instance. The minimum leads to no
    more plans than unserved demand.
    """
    where = pool("two", nodes=2, per_node=1)
    floor = world(5.0, service(min_instances=4), pools=(where,)).run(900)
    demand = world(40.0, service(), pools=(where,)).run(900)
    said = floor.of_kind("infeasible")
    assert len(said) == 2 and all(ReasonCode.FLOOR_UNMET in d.codes for d in said)
    for urgency in Urgency:
        assert len(floor.requests(urgency)) <= len(demand.requests(urgency)) + 1
    words = [
        fleet_status(w.state, Observation(statuses=w.statuses), w.cluster, w.now_ms).models[0].word
        for w in (floor, demand)
    ]
    assert words[0].startswith("short of its floor: 2 of 4")
    assert words[1].startswith("short: ") and " req/s unserved" in words[1]


@pytest.mark.parametrize("paused", [False, True])
def test_a_minimum_without_nodes_is_stated_in_mode_recommend_too(paused: bool) -> None:
    where = pool("two", nodes=2, per_node=1)
    floor = service(min_instances=4, mode=Mode.ACT if paused else Mode.RECOMMEND)
    w = world(5.0, floor, pools=(where,))
    if paused:
        w.say("chat", "pause")
    w.run(300)
    assert len(w.requests(Urgency.URGENT)) <= 12
    said = w.of_kind("infeasible")
    assert len(said) == 1 and ReasonCode.FLOOR_UNMET in said[0].codes


def test_the_part_of_a_minimum_that_can_run_starts() -> None:
    """The feed withdraws two nodes during the solve for four instances. The other two start."""
    where = pool("four", nodes=4, per_node=1)
    w = world(5.0, service(min_instances=4), pools=(where,)).run(1)
    w.availability[where.id] = Availability(where.id, 2, w.now_ms)
    w.run(1)
    started, short = w.decisions[-2:]
    assert [n for _, n in started.change] == [2]
    assert short.reason.startswith("floor of 4: only 2 can run")
