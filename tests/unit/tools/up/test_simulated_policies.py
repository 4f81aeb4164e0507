"""Other policies get the requests, events and span of the run."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path

from autoscaler.simulation.supply_script import LaunchesFail, NodesLost, PriceChanged
from streams.files.shoal_yaml import load_config
from streams.tools.replay.demand_changes import DemandChange
from streams.tools.replay.traces import Trace
from streams.tools.up.scenario_file import DemandChanged
from streams.tools.up.simulated_policies import simulated, world
from streams.tools.up.trace_facts import Span

CONFIG = Path(__file__).parents[2] / "simulation" / "mini.yaml"
CLUSTER = load_config(CONFIG).cluster
POOL = "eu-west/l40s/spot"
TRACE = Trace(
    Path("trace.csv"), "plain",
    array("d", [1000.0 * second for second in range(60)]),
    array("q", [200] * 60),
    array("q", [50] * 60),
)  # fmt: skip


def test_the_world_has_the_requests_that_were_sent_and_the_events_at_their_times() -> None:
    events = (
        PriceChanged(0.0, POOL, 0.9),
        DemandChanged(0.0, DemandChange(0.0, 10_000.0, 3.0)),
        LaunchesFail(10.0, POOL, 20.0),
        NodesLost(30.0, POOL, 1, 40.0),
    )
    found = world(CLUSTER, TRACE, events, 1, Span(50.0, 70.0, 45))
    assert found is not None
    assert (found.lead_s, found.duration_s, len(found.arrivals)) == (50.0, 70.0, 45)
    assert sum(arrival.at_s < 20.0 for arrival in found.arrivals) == 40
    assert found.script == (
        PriceChanged(0.0, POOL, 0.9),
        LaunchesFail(60.0, POOL, 70.0),
        NodesLost(80.0, POOL, 1, 90.0),
    )
    assert world(CLUSTER, TRACE, (), 1, Span(50.0, 70.0, 0)) is None


def test_each_policy_has_a_cost_and_a_share_until_the_time_is_over() -> None:
    services = tuple(replace(one, req_per_s=1.0) for one in CLUSTER.services)
    scenario = world(replace(CLUSTER, services=services), TRACE, (), 1, Span(120.0, 60.0, 60))
    assert scenario is not None
    clock = iter((0.0, 0.0, 99.0))
    found = list(simulated(scenario, lambda: next(clock), 20.0, ("hpa-rate", "skyserve", "shoal")))
    assert [one.policy for one in found] == ["hpa-rate", "skyserve"]
    for one in found:
        assert one.usd > 0.0
        assert one.slo_attainment == one.least == 1.0
