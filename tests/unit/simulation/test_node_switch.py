"""Simulated nodes switch roles and drain as the real executor does.

A switch by routing is rolled back if the new role does not start. The assignment limits drains.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.supply_script import LaunchesFail
from tests.unit.simulation.simulation_builders import ONE, simulator
from topics.fleet import InstanceState, ObservedInstance

NODE = "eu.l40s.on-demand.0"


def test_a_failed_role_switch_is_rolled_back_and_not_repeated() -> None:
    """After two attempts the instance has its previous role and states the reason. A different
    desired role is tried again.
    """
    one = simulator({ONE: 1}, [], 900.0, script=(LaunchesFail(150.0, NODE, 175.0),))
    one.advance(149.0)
    first = one.assignments[NODE]
    node = one.nodes[NODE]

    def observed_instance() -> ObservedInstance:
        return one.statuses[NODE].instances[0]

    def request_phase(phase: str, generation: int) -> None:
        desired = tuple(replace(item, phase=phase) for item in first.instances)
        node.accept(replace(first, instances=desired, generation=first.generation + generation))

    one.advance(151.0)
    assert observed_instance().state is InstanceState.READY
    request_phase("prefill", 1)
    assert observed_instance().state is InstanceState.SWITCHING
    one.advance(400.0)
    assert (observed_instance().state, observed_instance().phase) == (
        InstanceState.READY,
        "aggregated",
    )
    assert observed_instance().reason.startswith("switch to prefill failed: ")
    launched_ms = observed_instance().launched_ms
    request_phase("prefill", 2)
    one.advance(500.0)
    assert (observed_instance().phase, observed_instance().launched_ms) == (
        "aggregated",
        launched_ms,
    )
    request_phase("decode", 3)
    one.advance(700.0)
    assert (observed_instance().state, observed_instance().phase) == (InstanceState.READY, "decode")


def test_a_role_is_switched_without_a_start() -> None:
    """The same process serves the other phase, and no weights are loaded again."""
    one = simulator({ONE: 1}, [], 900.0)
    one.advance(149.0)
    first = one.assignments[NODE]
    desired = tuple(replace(item, phase="prefill") for item in first.instances)
    one.nodes[NODE].accept(replace(first, instances=desired, generation=first.generation + 1))
    one.advance(151.0)
    observed_instance = one.statuses[NODE].instances[0]
    assert (observed_instance.state, observed_instance.phase) == (InstanceState.READY, "prefill")


@pytest.mark.parametrize(("timeout_s", "served"), [(60.0, False), (900.0, True), (0.0, False)])
def test_a_drain_lasts_as_long_as_the_assignment_allows(timeout_s: float, served: bool) -> None:
    """An answer takes several minutes. Limits of one minute and the default two minutes cut it off;
    fifteen minutes are enough.
    """
    one = simulator({ONE: 1}, [Arrival(30.0, "mini", 100, 20_000)], 1800.0)
    one.advance(160.0)
    first = one.assignments[NODE]
    gone = tuple(replace(item, drain=True) for item in first.instances)
    drain = replace(
        first,
        instances=gone,
        generation=first.generation + 1,
        drain_timeout_ms=int(timeout_s * 1000),
    )
    one.nodes[NODE].accept(drain)
    one.advance(160.0 + 59.0)
    assert one.statuses[NODE].instances[0].state is InstanceState.DRAINING
    one.advance(160.0 + 130.0)
    draining = one.statuses[NODE].instances[0].state is InstanceState.DRAINING
    assert draining is served
