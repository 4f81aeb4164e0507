"""Invariants of every simulation, for any arrivals and faults."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.simulation.arrivals import Arrival
from autoscaler.simulation.supply_script import LaunchesFail, NodeLost, NodeReturned, ScriptEvent
from tests.unit.simulation.simulation_builders import OD, ONE, simulator

NODES = [f"eu.l40s.on-demand.{n}" for n in range(3)]
PAIR = f"mini:p1@{OD}+d1@{OD}"

arrivals = st.lists(
    st.tuples(st.floats(0.0, 100.0), st.integers(1, 20_000), st.integers(1, 500)), max_size=60
)
faults = st.lists(
    st.one_of(
        st.builds(NodeLost, st.floats(0.0, 220.0), st.sampled_from(NODES)),
        st.builds(NodeReturned, st.floats(0.0, 220.0), st.sampled_from(NODES)),
        st.builds(
            LaunchesFail, st.floats(0.0, 220.0), st.sampled_from([*NODES, OD]), st.just(90.0)
        ),
    ),
    max_size=6,
)


@settings(max_examples=40, deadline=None)
@given(
    arrivals, faults, st.sampled_from([{ONE: 2}, {PAIR: 1}, {ONE: 1, PAIR: 1}]), st.integers(1, 2)
)
def test_every_request_ends_once_and_in_order_of_its_events(
    drawn: list[tuple[float, int, int]],
    script: list[ScriptEvent],
    counts: dict[str, int],
    gateways: int,
) -> None:
    """No request is lost or counted twice. In the windows, arrivals equal completions + failures +
    refusals.
    """
    found = [Arrival(at, "mini", read, made) for at, read, made in sorted(drawn)]
    one = simulator(counts, found, 120.0, 100.0, tuple(script), gateways=gateways)
    ends: list[int] = []
    on_ended = one._on_ended
    one._on_ended = lambda call: (ends.append(call.id), on_ended(call))  # type: ignore[assignment]
    for gateway in one.gateways:
        gateway._ended = one._on_ended
    timeline = one.run()
    assert sorted(ends) == list(range(len(found)))
    for row, arrival in zip(timeline.requests, found, strict=True):
        assert row.outcome in ("served", "failed", "refused")
        assert row.end_s is not None and row.end_s >= row.arrival_s
        if row.outcome == "served":
            assert row.first_token_s is not None
            assert row.arrival_s <= row.first_token_s <= row.end_s
            assert (row.input_tokens, row.output_tokens) == (
                arrival.input_tokens,
                arrival.output_tokens,
            )
    assert all(engine.in_flight == 0 for engine in one.engines.values())
    for gateway in one.gateways:
        assert gateway._frontends["mini"].meter.in_flight == 0
        assert not gateway._frontends["mini"].router._occupancy._in_flight


@settings(max_examples=25, deadline=None)
@given(faults, st.integers(0, 3))
def test_spans_of_a_node_do_not_overlap_and_end_with_the_run(
    script: list[ScriptEvent], count: int
) -> None:
    timeline = simulator({ONE: count}, [], 100.0, 100.0, tuple(script)).run()
    for name in NODES:
        spans = sorted((s.from_s, s.to_s) for s in timeline.nodes if s.node == name)
        assert all(0.0 <= start < end <= 200.0 for start, end in spans)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
