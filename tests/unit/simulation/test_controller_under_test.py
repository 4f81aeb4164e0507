"""The production controller and planner in a simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.planning.planner_messages import Urgency
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.run_measures import attains
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import NodeLost, PriceChanged, ScriptEvent
from autoscaler.simulation.timeline import Timeline
from loadtests.decision_cases import Case
from loadtests.decision_runs import as_json, run
from tests.unit.simulation.simulation_builders import OD, cluster, evenly, service

STEP = Case(
    "step",
    "steps",
    Path(__file__).with_name("mini.yaml"),
    rates=(2.0, 15.0),
    before_s=60.0,
    duration_s=120.0,
    lead_s=150.0,
)


def declared(req_per_s: float, nodes: int = 6) -> Cluster:
    return cluster(service(req_per_s=req_per_s, min_instances=1), nodes=nodes)


def live(where: Cluster, arrivals: list[Arrival], *script: ScriptEvent) -> Timeline:
    scenario = Scenario(where, arrivals, 240.0, 120.0, script)
    return Simulator(scenario, ControllerUnderTest()).run()


def test_a_declared_workload_is_served_from_its_first_request_on() -> None:
    timeline = live(declared(8.0), evenly(1900, 0.125))
    slo = service().slo
    hits = sum(attains(row, slo) for row in timeline.requests)
    assert hits / len(timeline.requests) >= 0.95
    assert timeline.nodes
    assert timeline.plan_requests and timeline.plan_answers


def test_an_urgent_answer_comes_within_a_tick_and_is_ordered_at_once() -> None:
    """The first tick requests the first plan. The order follows the answer at once."""
    timeline = live(declared(8.0), [])
    assert timeline.plan_requests[0][0] == 0.0
    first = next(at_s for at_s, found in timeline.plan_answers if found.urgency is Urgency.URGENT)
    assert first == pytest.approx(0.5)
    assert timeline.ordered[0].at_s == pytest.approx(0.5)


def test_a_lost_node_is_replaced_while_the_others_serve() -> None:
    where = declared(8.0)
    first = live(where, [])
    lost = first.nodes[0].node
    timeline = live(where, evenly(1900, 0.125), NodeLost(150.0, lost))
    after = [span for span in timeline.nodes if span.from_s > 150.0]
    assert after, "nothing was started after the node was lost"
    assert all(span.node != lost for span in after)


def test_a_tenfold_price_leads_to_a_full_plan_request() -> None:
    """The request has the new price."""
    where = declared(8.0)
    timeline = live(where, evenly(1900, 0.125), PriceChanged(200.0, OD, 20.0))
    asked = [
        request
        for at_s, request in timeline.plan_requests
        if 200.0 <= at_s <= 203.0 and request.urgency is Urgency.FULL
    ]
    assert asked
    assert dict(asked[0].prices_usd_per_h)[OD] == 20.0


def test_the_same_seed_gives_the_same_bytes() -> None:
    assert as_json([run(STEP, 3)]) == as_json([run(STEP, 3)])


def test_a_step_is_answered_by_a_scale_out() -> None:
    figures = run(replace(STEP, rates=(2.0, 30.0)), 1)
    assert figures.step is not None
    assert figures.step.first_scale_out_s is not None
    assert 0.0 < figures.step.first_scale_out_s <= 10.0
    assert figures.urgent_solves > 0
