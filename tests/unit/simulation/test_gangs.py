"""Instances over several nodes in a simulation: as fast as their lanes, every node billed once."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase, Slo
from autoscaler.performance import catalog
from autoscaler.performance.known import profile_of
from autoscaler.performance.pipeline import PipelineSlices, pipeline_times
from autoscaler.simulation.script import NodeLost
from tests.unit.simulation.worlds import OD, cluster, evenly, service, world

SPEC = catalog.model("Qwen/Qwen3-32B")
GANG = f"mini:a1.32@{OD}>a1.32@{OD}"


def joined() -> Cluster:
    return cluster(
        service(
            architecture=SPEC, slo=Slo(8000.0, 200.0), pipelines="same-slice", max_len_tokens=8192
        )
    )


def test_a_gang_serves_as_its_lanes_do_and_each_node_is_billed_once() -> None:
    """A lone request takes the prompt's pass through both stages; the bill has two spans."""
    one = world({GANG: 1}, evenly(5, 30.0, first_s=10.0), 200.0, on=joined())
    timeline = one.run()
    stages = tuple((NodeSlice(catalog.gpu("L40S"), 1), 32) for _ in range(2))
    lane, _ = pipeline_times(
        SPEC, PipelineSlices(stages, 8192), Phase.AGGREGATED, profile_of(one.cluster)
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
def test_a_lost_node_takes_the_whole_gang_along(node: str) -> None:
    """Whichever rank it is, nothing is served afterwards by a fleet that replaces nothing."""
    timeline = world(
        {GANG: 1}, evenly(60, 1.0), 100.0, on=joined(), script=(NodeLost(150.0, node),)
    ).run()
    late = [row for row in timeline.requests if row.arrival_s > 160.0]
    assert late
    assert all(row.outcome != "served" for row in late)
    assert any(row.outcome == "served" for row in timeline.requests)
