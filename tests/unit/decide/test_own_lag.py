"""If the controller reads with a lag, unread statuses and telemetry do not count as silence."""

from __future__ import annotations

import pytest

from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import World, reused, world
from topics.reason_codes import ReasonCode

SMALL = pool(nodes=40, per_node=1, usd=2.0)
QUICK = service(scale_in_after_s=60.0, max_disruption=1.0)


@reused
def _steady() -> World:
    return world(20.0, pools=(SMALL,), catalogue={"chat": simple("chat", SMALL, rate=2.0)}).run(200)


def _unread(w: World, seconds: int) -> None:
    """For `seconds`, the controller reads no status, and its measured lag grows."""
    w.cut.add(SMALL.id)
    for second in range(seconds):
        w.lag_s["status"] = second + 1
        w.tick()


def test_nodes_whose_statuses_are_unread_are_not_lost() -> None:
    w = _steady()
    ready, writes = w.ready("chat"), len(w.decisions)
    _unread(w, 900)
    assert w.ready("chat") == ready
    assert w.state.observed.silent_nodes == frozenset()
    assert not [d for d in w.decisions[writes:] if d.change]


def test_the_same_silence_counts_if_the_controller_has_no_lag() -> None:
    w = _steady()
    w.cut.add(SMALL.id)
    w.run(60)
    assert w.state.observed.silent_nodes


def test_a_node_silent_in_the_records_already_read_is_lost_despite_the_lag() -> None:
    """Otherwise a controller that never catches up would never detect a lost node."""
    w = _steady()
    node = sorted(w.statuses)[0]
    w.cut.add(node)
    w.run(10)
    last_ms = max(status.at_ms for status in w.statuses.values())
    w.cut.add(SMALL.id)
    for second in range(60):
        w.lag_s["status"] = second + 1
        w.tick()
        assert w.state.observed.silent_nodes == frozenset()
    for _ in range(60):  # From now on it reads at the rate of the topic, with a lag of one minute.
        w.cut.discard(SMALL.id)
        w.tick()
        for name, status in w.statuses.items():
            assert name == node or status.at_ms >= last_ms
    assert w.state.observed.silent_nodes == {node}


@pytest.mark.parametrize("topic", ["status", "telemetry", "demand"])
def test_nothing_is_scaled_in_while_the_controller_is_behind(topic: str) -> None:
    """Demand falls to a fifth. Surplus instances leave once the controller has caught up."""
    w = world(
        lambda _m, t: 20.0 if t < 900 else 4.0,
        QUICK,
        pools=(SMALL,),
        catalogue={"chat": simple("chat", SMALL, rate=2.0)},
    ).run(880)
    ready = w.ready("chat")
    w.lag_s[topic] = 5
    w.run(1500)
    assert w.ready("chat") == ready and not [d for d in w.decisions if d.kind == "scale_in"]
    w.lag_s.clear()
    w.run(300)
    assert w.ready("chat") < ready


def test_a_removal_under_way_waits_until_the_controller_has_caught_up() -> None:
    w = world(
        lambda _m, t: 20.0 if t < 900 else 4.0,
        QUICK,
        pools=(SMALL,),
        catalogue={"chat": simple("chat", SMALL, rate=2.0)},
        confirm=False,
    ).run(900)
    while not w.of_kind("scale_in"):
        w.tick()
    w.lag_s["telemetry"] = 5
    w.tick()
    drained = len(w.draining)
    w.run(300)
    assert len(w.draining) == drained


def test_the_begin_and_the_end_of_a_lag_are_each_stated_once() -> None:
    w = _steady()
    _unread(w, 30)
    w.lag_s.clear()
    w.cut.clear()
    w.run(30)
    both = {ReasonCode.READER_BEHIND, ReasonCode.READER_CAUGHT_UP}
    said = [(*d.codes, d.model) for d in w.decisions if both.intersection(d.codes)]
    assert said == [(ReasonCode.READER_BEHIND, "*"), (ReasonCode.READER_CAUGHT_UP, "*")]
