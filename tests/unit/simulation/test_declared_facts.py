"""Simulated engines and nodes are as fast as declared: measurements, network, and provisioning
time.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.workload import Phase
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile import architecture_key
from autoscaler.serving.engine_setup import setup_on
from autoscaler.simulation.arrivals import Arrival
from tests.unit.simulation.simulation_builders import (
    OD,
    ONE,
    cluster,
    evenly,
    run,
    service,
    simulator,
)

SPEC = service().architecture


def test_an_engine_that_was_measured_runs_at_the_measured_speed() -> None:
    slow = Measurement(
        architecture_key(SPEC), SPEC.weight_dtype, "L40S", 1, 2.0, 3.0, 0.05, 4, "2026-11-20"
    )
    usual, measured = (
        run({ONE: 1}, [Arrival(0.0, "mini", 1000, 101)], 60.0, on=on).requests[0]
        for on in (cluster(), replace(cluster(), measurements=(slow,)))
    )
    assert usual.end_s and usual.first_token_s and measured.end_s and measured.first_token_s
    decode = [row.end_s - row.first_token_s for row in (usual, measured)]
    assert decode[1] == pytest.approx(3.0 * decode[0], rel=0.02)


def test_only_the_first_instance_on_a_rented_node_waits_for_the_node() -> None:
    """Requests wait for 30 s. That is long enough to start an engine, but too
    short to rent a node.
    """
    on = cluster(per_node=2)
    late = replace(on, pools=tuple(replace(p, provision_s=200.0) for p in on.pools))
    node = NodeSlice(on.pools[0].gpu, 1)
    start_s = setup_on(SPEC, node, Phase.AGGREGATED, 8192, default_profile()).startup_s
    early = [Arrival(start_s - 15.0, "mini", 1000, 10)]
    outcomes = [
        run({ONE: 1}, early, 400.0, lead_s=0.0, on=one).requests[0].outcome for one in (on, late)
    ]
    assert outcomes == ["served", "refused"]
    both = simulator({ONE: 2}, evenly(10, 1.0, first_s=start_s + 205.0), 400.0, lead_s=0.0, on=late)
    assert {row.outcome for row in both.run().requests} == {"served"}
    assert len(both.engines) == 2


def test_the_slower_network_of_a_pair_counts() -> None:
    pair = f"mini:p1@{OD}+d1@{OD}"
    firsts = []
    for gb_s in (0.0, 0.05):
        on = cluster()
        slow = replace(on, pools=tuple(replace(p, between_gb_s=gb_s) for p in on.pools))
        row = run({pair: 1}, evenly(3, 5.0), 60.0, on=slow).requests[0]
        assert row.first_token_s is not None
        firsts.append(row.first_token_s - row.arrival_s)
    tokens_gb = 1000 * SPEC.kv_bytes_per_token / 1e9
    assert firsts[1] - firsts[0] == pytest.approx(tokens_gb / 0.05 - tokens_gb / 25.0, rel=0.01)
