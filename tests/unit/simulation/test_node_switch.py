"""Role switches of simulated nodes: by routing; rolled back where the new role does not come up, as
the real executor does it."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.simulation.supply_script import LaunchesFail
from tests.unit.simulation.worlds import ONE, world
from topics.fleet import InstanceState, ObservedInstance

NODE = "eu.l40s.on-demand.0"


def test_a_role_that_does_not_come_up_is_rolled_back_and_not_tried_again() -> None:
    """Two tries, then the role of before, with the reason; another wish is another try."""
    one = world({ONE: 1}, [], 900.0, script=(LaunchesFail(150.0, NODE, 175.0),))
    one.advance(149.0)
    first = one.assignments[NODE]
    node = one.nodes[NODE]

    def seen() -> ObservedInstance:
        return one.statuses[NODE].instances[0]

    def wish(phase: str, generation: int) -> None:
        wanted = tuple(replace(item, phase=phase) for item in first.instances)
        node.accept(replace(first, instances=wanted, generation=first.generation + generation))

    one.advance(151.0)
    assert seen().state is InstanceState.READY
    wish("prefill", 1)
    assert seen().state is InstanceState.SWITCHING
    one.advance(400.0)
    assert (seen().state, seen().phase) == (InstanceState.READY, "aggregated")
    assert seen().reason.startswith("switch to prefill failed: ")
    launched_ms = seen().launched_ms
    wish("prefill", 2)
    one.advance(500.0)
    assert (seen().phase, seen().launched_ms) == ("aggregated", launched_ms)
    wish("decode", 3)
    one.advance(700.0)
    assert (seen().state, seen().phase) == (InstanceState.READY, "decode")


def test_a_role_is_switched_without_a_start() -> None:
    """The process that serves one phase serves the other: nothing is loaded again."""
    one = world({ONE: 1}, [], 900.0)
    one.advance(149.0)
    first = one.assignments[NODE]
    wanted = tuple(replace(item, phase="prefill") for item in first.instances)
    one.nodes[NODE].accept(replace(first, instances=wanted, generation=first.generation + 1))
    one.advance(151.0)
    seen = one.statuses[NODE].instances[0]
    assert (seen.state, seen.phase) == (InstanceState.READY, "prefill")
