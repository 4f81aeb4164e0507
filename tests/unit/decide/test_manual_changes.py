"""Manual changes outside of Shoal: each is stated once and does not count as capacity."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.decide.decide_catalogue import pool
from tests.unit.decide.decide_world import World, world
from topics.fleet import InstanceState
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=12, per_node=1)


class Meddled(World):
    """A world in which a person starts one more instance manually on the first node, for a
    while."""

    by_hand = False

    def _executors(self) -> None:
        super()._executors()
        if self.by_hand:
            node = min(self.applied)
            status = self.statuses[node]
            extra = replace(status.instances[0], instance="by-hand", state=InstanceState.READY)
            instances = (*status.instances, extra)
            self.statuses[node] = replace(status, instances=instances)


def test_an_unassigned_instance_is_stated_once_and_not_counted() -> None:
    base = world(20.0, pools=(ONE,))
    w = Meddled(base.cluster, base.catalogue, base.rate)
    w.run(150)
    before, count = w.assigned_count("chat"), len(w.decisions)
    w.by_hand = True
    w.run(100)
    said = [d for d in w.decisions[count:] if "by-hand" in d.reason]
    assert len(said) == 1 and said[0].model == "chat"
    assert ReasonCode.STRAY in said[0].codes
    assert w.assigned_count("chat") == before == w.ready("chat")
    w.by_hand = False
    w.run(30)
    w.by_hand = True
    w.run(30)
    assert len([d for d in w.decisions if "by-hand" in d.reason]) == 2


def test_a_manual_change_is_detected_if_no_tick_falls_on_a_multiple_of_ten_seconds() -> None:
    base = world(20.0, pools=(ONE,))
    w = Meddled(base.cluster, base.catalogue, base.rate)
    w.run(153)
    w.by_hand = True
    for _ in range(3):
        w.t_s += 9
        w.tick()
    assert len([d for d in w.decisions if "by-hand" in d.reason]) == 1


def test_a_late_start_or_drain_is_no_manual_change() -> None:
    """An hour with starts, drains, lost nodes and two surges leads to no decision about a manual
    change.
    """
    w = world(lambda _m, t: 50.0 if (t // 500) % 2 else 8.0, pools=(ONE,), seed=3).run(1500)
    w.cut.add(min(w.rented(ONE.id)))
    w.run(300)
    assert not any(ReasonCode.STRAY in d.codes for d in w.decisions)
