"""Reversals are counted, and only scale-in is held back by them."""

from __future__ import annotations

from itertools import pairwise

from autoscaler.scaling.turns import MOST_PER_H, Turns, may_go_in, moved

from autoscaler.domain.cluster import Policy
from tests.unit.decide.decide_world import T0, World, pool, service, world


def test_the_same_move_again_is_no_reversal() -> None:
    """out, out, in, in, out: two reversals."""
    turns = Turns()
    for k, move in enumerate(("out", "out", "in", "in", "out")):
        turns = moved(turns, move, k * 1000)
    assert turns == Turns("out", (2000, 4000))


def test_a_scale_in_leaves_room_for_the_scale_out_that_may_follow() -> None:
    """Two reversals in the hour: two more fit. Three: not. An hour later they are forgotten."""
    assert may_go_in(Turns("out", (1, 2)), 1000)
    assert not may_go_in(Turns("out", (1, 2, 3)), 1000)
    assert may_go_in(Turns("out", (1, 2, 3)), 3_600_001)
    assert may_go_in(Turns("in", (1, 2, 3, 4)), 1000)  # going on is no reversal


def test_load_that_swings_is_followed_up_but_not_down_for_ever() -> None:
    """10 minutes high, 10 minutes low, quick scale-in: four reversals an hour and no more."""

    def swing(_model: str, t: int) -> float:
        return 60.0 if (t // 600) % 2 else 10.0

    w: World = world(
        swing,
        service(scale_in_after_s=60.0, max_disruption=1.0),
        pools=(pool(nodes=8),),
        policy=Policy(cooldown_s=30.0),
    ).run(6000)
    moves = [(d.at_ms - T0, d.kind) for d in w.decisions if d.change]
    turns = [at for (_, a), (at, b) in pairwise(moves) if a != b]
    assert len(turns) >= 4
    assert all(sum(1 for u in turns if t - 3_600_000 < u <= t) <= MOST_PER_H for t in turns)
