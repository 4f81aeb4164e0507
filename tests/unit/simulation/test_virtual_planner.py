"""Solve times in virtual time, and repeated plan requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.workload import Demand
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, PlanRequest, Urgency
from autoscaler.simulation.virtual_planner import PlanTimes, VirtualPlanner, plan_in_process
from tests.unit.simulation.simulation_builders import LENGTHS, cluster


def plan_request(number: int, urgency: Urgency) -> PlanRequest:
    return PlanRequest(number, urgency, 0, (Demand("mini", 3.0, LENGTHS),), scope=("mini",))


def planned(request: PlanRequest, on: Cluster) -> PlanAnswer:
    return PlanAnswer(request.number, request.urgency, Outcome.PLANNED, request.scope)


def test_an_urgent_answer_overtakes_a_full_one_and_comes_once() -> None:
    planner = VirtualPlanner(PlanTimes(0.5, 3.0), planned)
    planner.submit(plan_request(1, Urgency.FULL), cluster(), 0.0)
    planner.submit(plan_request(2, Urgency.URGENT), cluster(), 1000.0)
    assert [found.number for found in planner.take_answers(1000.0)] == []
    assert [found.number for found in planner.take_answers(2000.0)] == [2]
    assert [found.number for found in planner.take_answers(3000.0)] == [1]
    assert planner.take_answers(10_000.0) == ()


def test_plan_requests_of_one_urgency_wait_for_each_other() -> None:
    planner = VirtualPlanner(PlanTimes(0.5, 3.0), planned)
    planner.submit(plan_request(1, Urgency.FULL), cluster(), 0.0)
    planner.submit(plan_request(2, Urgency.FULL), cluster(), 1000.0)
    assert [found.number for found in planner.take_answers(4000.0)] == [1]
    assert [found.number for found in planner.take_answers(6000.0)] == [2]


def test_while_the_planner_is_down_requests_return_unanswered() -> None:
    planner = VirtualPlanner(PlanTimes(), planned)
    planner.down_until_ms = 5000.0
    planner.submit(plan_request(1, Urgency.URGENT), cluster(), 4000.0)
    planner.submit(plan_request(2, Urgency.URGENT), cluster(), 5000.0)
    outcomes = [found.outcome for found in planner.take_answers(10_000.0)]
    assert outcomes == [Outcome.NONE, Outcome.PLANNED]


def test_a_repeated_plan_request_is_not_planned_again() -> None:
    made = []

    def recording_plan(request: PlanRequest, on: Cluster) -> PlanAnswer:
        made.append(request.number)
        return planned(request, on)

    planner = VirtualPlanner(PlanTimes(0.5, 3.0), recording_plan)
    later = replace(plan_request(2, Urgency.FULL), at_ms=300_000)
    for asked in (plan_request(1, Urgency.FULL), later, replace(later, scale_in_locked=("mini",))):
        planner.submit(asked, cluster(), 0.0)
    dearer = replace(cluster(), policy=replace(cluster().policy, budget_usd_per_h=50.0))
    planner.submit(replace(later, number=3, scale_in_locked=("mini",)), dearer, 0.0)
    assert made == [1, 2, 3]
    assert [found.number for found in planner.take_answers(60_000.0)] == [1, 2, 2, 3]


def test_the_real_planner_answers_in_process() -> None:
    found = plan_in_process(plan_request(1, Urgency.FULL), cluster())
    assert found.outcome is Outcome.PLANNED
    assert sum(count for _, count in found.counts) >= 1
    assert found.cost_usd_per_h == pytest.approx(0.8) or found.cost_usd_per_h > 0.8
