"""Simulated instances over several nodes run as fast as their lanes, and each
node is billed once.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.pipeline import PipelineSlices, pipeline_times
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.simulation.controller_under_test import ControllerUnderTest
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import NodeLost
from tests.unit.simulation.simulation_builders import OD, cluster, evenly, service, simulator

SPEC = catalog.model("Qwen/Qwen3-32B")
GANG = f"mini:a1.32@{OD}>a1.32@{OD}"


def joined() -> Cluster:
    return cluster(
        service(
            architecture=SPEC, slo=Slo(8000.0, 200.0), pipelines="same-slice", max_len_tokens=8192
        )
    )


def test_a_gang_serves_as_its_lanes_do_and_each_node_is_billed_once() -> None:
    """A single request takes one pass through both stages. The bill has two spans."""
    one = simulator({GANG: 1}, evenly(5, 30.0, first_s=10.0), 200.0, on=joined())
    timeline = one.run()
    stages = tuple((NodeSlice(catalog.gpu("L40S"), 1), 32) for _ in range(2))
    lane, _ = pipeline_times(
        SPEC, PipelineSlices(stages, 8192), Phase.AGGREGATED, cluster_profile(one.cluster)
    )
    assert [row.outcome for row in timeline.requests] == ["served"] * 5
    row = timeline.requests[0]
    assert row.first_token_s is not None
    expected_ms = lane.prefill_ms(1000) + lane.first_token_ms
    assert 1000 * (row.first_token_s - row.arrival_s) == pytest.approx(expected_ms, rel=0.02)
    assert sorted(span.node for span in timeline.nodes) == [
        "eu.l40s.on-demand.0",
        "eu.l40s.on-demand.1",
    ]
    assert {(span.from_s, span.to_s) for span in timeline.nodes} == {(0.1, 320.0)}


@pytest.mark.parametrize("node", ["eu.l40s.on-demand.0", "eu.l40s.on-demand.1"])
def test_a_lost_node_ends_the_whole_gang(node: str) -> None:
    """Either node may be lost. A fixed fleet replaces no instance, so later requests are not
    served.
    """
    timeline = simulator(
        {GANG: 1}, evenly(60, 1.0), 100.0, on=joined(), script=(NodeLost(150.0, node),)
    ).run()
    late = [row for row in timeline.requests if row.arrival_s > 160.0]
    assert late
    assert all(row.outcome != "served" for row in late)
    assert any(row.outcome == "served" for row in timeline.requests)


def test_the_real_decisions_replace_a_gang_and_bill_its_nodes_once() -> None:
    """A node of the gang is lost and another gang serves. The bill never counts a node twice."""
    declared = joined()
    kept = replace(
        declared.services[0], req_per_s=1.0, min_instances=1, disaggregate=False, spot_share=0.0
    )
    where = replace(declared, services=(kept,))
    script = (NodeLost(250.0, "eu.l40s.on-demand.1"),)
    scenario = Scenario(where, evenly(480, 0.5, first_s=10.0), 300.0, 200.0, script)
    timeline = Simulator(scenario, ControllerUnderTest()).run()
    late = [row for row in timeline.requests if row.arrival_s > 430.0]
    assert late
    assert all(row.outcome == "served" for row in late)
    started = {span.node for span in timeline.nodes if span.from_s > 250.0}
    assert started
    assert "eu.l40s.on-demand.1" not in started
    for node in {span.node for span in timeline.nodes}:
        spans = sorted((s.from_s, s.to_s) for s in timeline.nodes if s.node == node)
        assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_prefill_and_decode_gangs_hand_over() -> None:
    """Four nodes run two gangs. Requests pass through both one at a time, and
    no KV cache is left.
    """
    both = f"mini:p1.32@{OD}>p1.32@{OD}+d1.32@{OD}>d1.32@{OD}"
    one = simulator({both: 1}, evenly(5, 30.0, first_s=10.0), 200.0, on=joined())
    timeline = one.run()
    assert [row.outcome for row in timeline.requests] == ["served"] * 5
    assert len({span.node for span in timeline.nodes}) == 4
    assert all(engine.held_kv == 0 for engine in one.engines.values())
