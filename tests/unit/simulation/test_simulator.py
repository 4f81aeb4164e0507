"""Requests and decisions from their begin to their end in a simulation."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.estimate.windows import Stats
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.serving.engine_setup import setup_on
from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.run_measures import attains
from autoscaler.simulation.supply_script import (
    AvailabilityChanged,
    GatewaySilent,
    LaunchesFail,
    NodeLost,
    NodeReturned,
    NodesLost,
    PriceChanged,
    ServiceChanged,
)
from autoscaler.simulation.timeline import Timeline
from tests.unit.simulation.simulation_builders import (
    OD,
    ONE,
    SPOT,
    cluster,
    evenly,
    run,
    service,
    simulator,
)
from topics.fleet import InstanceState


def attained(timeline: Timeline) -> float:
    slo = service().slo
    return sum(attains(row, slo) for row in timeline.requests) / len(timeline.requests)


def test_a_request_before_the_first_instance_waits_for_start_status_and_routes() -> None:
    """The instance is assigned at 0 s, launched at 0.1 s and ready `startup_s` later. Its route
    follows 0.1 s after the next tick.
    """
    spec = service().architecture
    setup = setup_on(
        spec, NodeSlice(cluster().pools[0].gpu, 1), Phase.AGGREGATED, 32_768, default_profile()
    )
    ready_s = 0.1 + setup.startup_s
    routed_s = int(ready_s) + 1.1
    at_s = routed_s - 20.0
    done = run({ONE: 1}, [Arrival(at_s, "mini", 1000, 100)], 300.0, lead_s=0.0).requests[0]
    times = setup.times
    first_s = routed_s + (times.prefill_ms(1000) + times.first_token_ms) / 1000.0
    end_s = first_s + 99 * times.decode_ms(1, 1000 + 0.5 * 98) / 1000.0
    assert done.first_token_s == pytest.approx(first_s, abs=1e-3)
    assert done.end_s == pytest.approx(end_s, rel=2e-3)
    assert done.outcome == "served"


def test_a_large_fleet_meets_every_slo_and_a_small_one_does_not() -> None:
    """One L40S serves about 6 such requests per second, but not 15."""
    assert attained(run({ONE: 4}, evenly(600, 0.25), 150.0)) == 1.0
    assert attained(run({ONE: 1}, evenly(1500, 1 / 15), 100.0)) < 0.5


def test_without_a_fleet_every_request_is_refused() -> None:
    timeline = run({}, evenly(10, 1.0), 60.0)
    assert {row.outcome for row in timeline.requests} == {"refused"}
    assert {round(row.end_s - row.arrival_s) for row in timeline.requests if row.end_s} == {30}
    assert timeline.nodes == []


def test_a_request_that_no_engine_takes_fails() -> None:
    timeline = run({ONE: 1}, [Arrival(0.0, "mini", 40_000, 10)], 60.0)
    assert timeline.requests[0].outcome == "failed"


def test_prefill_and_decode_instances_serve_together() -> None:
    """The first token comes from the decode instance after prefill, transfer and one step."""
    pair = f"mini:p1@{OD}+d1@{OD}"
    one = simulator({pair: 1}, evenly(200, 0.5), 120.0)
    timeline = one.run()
    assert attained(timeline) == 1.0
    spec, node = service().architecture, NodeSlice(cluster().pools[0].gpu, 1)
    prefill = setup_on(spec, node, Phase.PREFILL, 32_768, default_profile())
    decode = setup_on(spec, node, Phase.DECODE, 32_768, default_profile())
    row = timeline.requests[0]
    expected_ms = (
        prefill.times.prefill_ms(1000)
        + decode.transfer_ms(1000)
        + decode.times.decode_ms(1, 1000)
        + decode.times.first_token_ms
    )
    assert row.first_token_s is not None
    assert 1000 * (row.first_token_s - row.arrival_s) == pytest.approx(expected_ms, rel=1e-3)
    assert all(engine.held_kv == 0 for engine in one.engines.values())


def test_a_lost_node_fails_its_requests_and_is_no_longer_billed() -> None:
    lost = NodeLost(150.0, "eu.l40s.on-demand.0")
    timeline = run({ONE: 2}, evenly(200, 0.25), 100.0, script=(lost,))
    failed = [row for row in timeline.requests if row.outcome == "failed"]
    assert 0 < len(failed) < 20  # requests whose client already had a token
    assert all(row.end_s == 150.0 for row in failed)
    assert sum(row.outcome == "served" for row in timeline.requests) == 200 - len(failed)
    ends = {span.node: span.to_s for span in timeline.nodes}
    assert ends == {"eu.l40s.on-demand.0": 150.0, "eu.l40s.on-demand.1": 220.0}


def test_a_returned_node_applies_its_assignment() -> None:
    script = NodeLost(150.0, "eu.l40s.on-demand.0"), NodeReturned(160.0, "eu.l40s.on-demand.0")
    one = simulator({ONE: 1}, evenly(100, 0.25, first_s=200.0), 300.0, script=script)
    timeline = one.run()
    assert attained(timeline) == 1.0
    assert [(span.from_s, span.to_s) for span in timeline.nodes] == [(0.1, 150.0), (160.0, 420.0)]


def test_the_newest_nodes_of_a_pool_are_lost_until_their_end() -> None:
    one = simulator({ONE: 2}, [], 300.0, script=(NodesLost(150.0, OD, 1, 160.0),))
    spans = sorted((span.node[-1], span.from_s, span.to_s) for span in one.run().nodes)
    assert spans == [("0", 0.1, 420.0), ("1", 0.1, 150.0), ("1", 160.0, 420.0)]


def test_launches_that_fail_are_given_up_after_three_attempts() -> None:
    one = simulator({ONE: 1}, [], 200.0, script=(LaunchesFail(0.0, OD, 1000.0),))
    one.run()
    (seen,) = one.statuses["eu.l40s.on-demand.0"].instances
    assert seen.state is InstanceState.FAILED
    assert "3 attempts" in seen.reason


def test_launches_succeed_again_when_the_fault_is_over() -> None:
    one = simulator({ONE: 1}, [], 200.0, script=(LaunchesFail(0.0, OD, 8.0),))
    one.run()
    (seen,) = one.statuses["eu.l40s.on-demand.0"].instances
    assert (seen.state, seen.restarts) == (InstanceState.READY, 1)


def test_nodes_beyond_the_limit_never_start_and_are_not_billed() -> None:
    timeline = run({ONE: 3}, [], 100.0, script=(AvailabilityChanged(0.0, OD, 2),))
    assert {span.node for span in timeline.nodes} == {"eu.l40s.on-demand.0", "eu.l40s.on-demand.1"}


def test_a_change_of_price_begins_a_new_span() -> None:
    timeline = run({ONE: 1}, [], 100.0, script=(PriceChanged(70.0, OD, 20.0),))
    assert [(s.usd_per_h, s.from_s, s.to_s) for s in timeline.nodes] == [
        (2.0, 0.1, 70.0),
        (20.0, 70.0, 220.0),
    ]


def test_a_silent_gateway_serves_without_reporting() -> None:
    script = (GatewaySilent(130.0, 1, 1000.0),)
    one = simulator({ONE: 2}, evenly(200, 0.5), 100.0, script=script, gateways=2)
    timeline = one.run()
    now_ms = one.epoch_ms(220_000.0)
    found = one.windows.stats("mini", now_ms, 60)
    assert isinstance(found, Stats)
    assert found.req_per_s == pytest.approx(1.0, abs=0.05)
    assert attained(timeline) == 1.0


def test_telemetry_carries_arrivals_and_their_lengths() -> None:
    one = simulator({ONE: 2}, evenly(400, 0.25), 100.0)
    one.run()
    found = one.windows.stats("mini", one.epoch_ms(220_000.0), 60)
    assert isinstance(found, Stats)
    assert found.arrivals == 240
    assert found.attained == found.completions
    assert (found.mean_input_tokens, found.mean_output_tokens) == (1000.0, 100.0)


def test_the_decider_gets_a_changed_service() -> None:
    changed = replace(service(), min_instances=7)
    one = simulator({ONE: 1}, [], 50.0, script=(ServiceChanged(30.0, changed),))
    one.run()
    assert one.cluster.service("mini").min_instances == 7


def test_spot_and_on_demand_are_billed_at_their_own_price() -> None:
    timeline = run({ONE: 1, f"mini:a1@{SPOT}": 1}, [], 100.0)
    assert sorted(span.usd_per_h for span in timeline.nodes) == [0.8, 2.0]
