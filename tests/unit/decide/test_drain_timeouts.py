"""Drain time-outs: the time in which an instance may finish its requests, and a warning if it is
too short.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.workload import Lengths
from autoscaler.planning.time_limits import longest_answer_s
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, world
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=10, per_node=1)


def writes_essays(**changes: object) -> Service:
    made = service(lengths=Lengths.expected(100.0, 8000.0), max_len_tokens=16_384)
    return replace(made, **changes)  # type: ignore[arg-type]


def test_the_drain_time_out_of_a_node_covers_its_longest_answers() -> None:
    w = world(20.0, writes_essays(), pools=(ONE,)).run(60)
    told_ms = {a.drain_timeout_ms for a in w.applied.values() if a.instances}
    assert told_ms == {int(1000 * longest_answer_s(writes_essays()))}
    assert min(told_ms) > 480_000


def test_a_declared_time_out_is_sent_to_nodes_and_a_decision_states_if_it_is_too_short() -> None:
    w = world(20.0, writes_essays(), pools=(ONE,), policy=Policy(drain_timeout_s=120.0)).run(60)
    assert {a.drain_timeout_ms for a in w.applied.values() if a.instances} == {120_000}
    (said,) = [d for d in w.decisions if ReasonCode.DRAIN_TOO_SHORT in d.codes]
    assert said.model == "chat" and "policy.drain_timeout 2m" in said.reason
    enough = Policy(drain_timeout_s=3600.0)
    assert not [
        d
        for d in world(20.0, writes_essays(), pools=(ONE,), policy=enough).run(60).decisions
        if ReasonCode.DRAIN_TOO_SHORT in d.codes
    ]


def test_a_time_out_too_short_for_measured_lengths_is_stated_until_it_is_changed() -> None:
    """The declared answers are short, but the measured answers are long."""
    w = world(
        20.0,
        service(lengths=Lengths.expected(100.0, 50.0), max_len_tokens=16_384),
        pools=(ONE,),
        policy=Policy(drain_timeout_s=120.0),
    ).run(5)
    assert not _drains(w)
    chat = replace(
        w.state.models["chat"],
        estimate=replace(w.state.models["chat"].estimate, lengths=Lengths.expected(100.0, 8000.0)),
    )
    w.state = replace(w.state, models={"chat": chat})
    w.run(1)
    w.cluster = replace(w.cluster, policy=Policy())
    w.run(1)
    assert _drains(w) == [ReasonCode.DRAIN_TOO_SHORT, ReasonCode.DRAIN_LONG_ENOUGH]


def _drains(w: World) -> list[str]:
    """The decisions about drain time-outs."""
    codes = (ReasonCode.DRAIN_TOO_SHORT, ReasonCode.DRAIN_LONG_ENOUGH)
    return [code for d in w.decisions for code in d.codes if code in codes]
