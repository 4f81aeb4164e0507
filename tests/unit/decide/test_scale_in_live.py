"""Scale-in: when it begins, how far it goes, and when it is reversed."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from autoscaler.domain.cluster import Policy
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import T0, World, world

SMALL = pool(nodes=40, per_node=1, usd=2.0)
TWOS = {"chat": simple("chat", SMALL, rate=2.0)}


@pytest.mark.parametrize("seed", range(6))
def test_a_fall_of_load_leads_to_the_planned_size_without_reversals(seed: int) -> None:
    """Load falls from 10 to 3 req/s. After `scale_in_after`, 2 min and the start and drain times, 3
    / 0.8 / 2 = 2 instances run, or three because of random arrivals. No instance is added in the
    half hour after the step.
    """
    w = world(
        lambda _m, t: 10.0 if t < 900 else 3.0, pools=(SMALL,), catalogue=TWOS, seed=seed
    ).run(900)
    assert w.ready("chat") >= 6
    w.run(720 + 30)
    assert 2 <= w.ready("chat") <= 3
    w.run(1050)
    assert [d for d in w.decisions if d.at_ms > T0 + 900_000 and d.kind == "scale_out"] == []


def test_excess_for_half_of_the_period_removes_no_instance() -> None:
    """Five minutes at 40 req/s alternate with five at 8 req/s for an hour. Excess must last ten
    minutes, so the capacity for 40 req/s stays.
    """
    w = world(lambda _m, t: 40.0 if (t // 300) % 2 == 0 else 8.0, pools=(SMALL,), seed=1).run(650)
    count = len(w.of_kind("scale_out"))
    w.run(2700)
    assert len(w.of_kind("scale_out")) == count and w.assigned_count("chat") >= 5


def test_old_arrivals_do_not_bring_back_removed_instances() -> None:
    """An hour at 40 req/s is followed by 4 req/s. A window of half an hour is no evidence of the
    present rate.
    """
    w = world(lambda _m, t: 40.0 if t < 1500 else 4.0, pools=(SMALL,), seed=3).run(1500)
    count = len(w.of_kind("scale_out"))
    w.run(1500)
    assert len(w.of_kind("scale_out")) == count and w.ready("chat") <= 2


@pytest.mark.parametrize("most", [1, 2])
def test_the_fleet_shrinks_only_once_under_swinging_load(most: int) -> None:
    """Ten minutes of high load alternate with ten of low load, with quick scale-in. A second
    reversal would leave none for the next rise.
    """
    w = world(
        lambda _m, t: 60.0 if (t // 600) % 2 else 10.0,
        service(scale_in_after_s=60.0, max_disruption=1.0),
        pools=(SMALL,),
        policy=Policy(reversals_per_h=most),
    ).run(6000)
    moves = [(d.at_ms - T0, d.kind) for d in w.decisions if d.change]
    turns = [at for (_, a), (at, b) in pairwise(moves) if a != b]
    assert len(turns) >= 2
    assert all(sum(1 for u in turns if t - 7_200_000 < u <= t) <= 2 * most for t in turns)


def test_a_surge_cancels_pending_removals() -> None:
    """Demand returns before retiring instances drain. They stay, and fewer instances start."""
    w = world(lambda _m, t: 30.0 if t < 300 else 12.0, pools=(SMALL,))
    w.confirm = False  # No gateway confirms the routes, so the drain waits for 15 s.
    while not w.of_kind("scale_in"):
        w.run(1)
        assert w.t_s < 1200
    names = {i.instance for a in w.applied.values() for i in a.instances}
    w.rate = lambda _m, _t: 60.0
    w.run(2)
    assert all(group.counts for group in w.state.groups)
    w.run(38)
    kept = {i.instance for a in w.applied.values() for i in a.instances if not i.drain}
    assert names <= kept and w.of_kind("scale_out")[-1].at_ms > T0 + 700_000


@pytest.mark.parametrize("seed", range(3))
def test_load_at_three_quarters_of_the_plan_adds_no_instance(seed: int) -> None:
    """An hour of Poisson arrivals for each seed. At most one spare instance is exchanged."""
    w = world(7.5, pools=(SMALL,), seed=seed, catalogue={"chat": simple("chat", SMALL, 2.5)})
    w.run(300)
    settled = len([d for d in w.decisions if d.change])
    w.run(3600)
    later = [d.kind for d in w.decisions if d.change][settled:]
    assert len(later) <= 1


def test_zero_traffic_returns_to_the_minimum_within_twice_the_period() -> None:
    w = world(lambda _m, t: 40.0 if t < 300 else 0.0, pools=(SMALL,)).run(300 + 1200)
    assert w.assigned_count("chat") == 1


def test_a_model_with_minimum_zero_stops_and_wakes_again() -> None:
    w = world(
        lambda _m, t: 5.0 if t < 300 or t >= 1600 else 0.0,
        service(min_instances=0),
        pools=(SMALL,),
    ).run(1590)
    assert w.assigned_count("chat") == 0
    w.run(12)
    assert w.assigned_count("chat") == 1


def test_noise_at_a_low_rate_removes_no_needed_capacity() -> None:
    """0.36 req/s on combos of 0.5. After excess by chance the routed capacity still covers the
    demand.
    """
    slow = {"chat": simple("chat", SMALL, rate=0.5)}
    rng = random.Random(5)
    w = world(0.36, pools=(SMALL,), catalogue=slow, seed=rng.randrange(99)).run(900)

    def check(w: World) -> None:
        assert w.routed_req_per_s("chat") * 0.8 >= 0.36

    w.run(2400, check)
