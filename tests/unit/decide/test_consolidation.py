"""Groups on separate nodes move to a shared node, and the empty node is returned."""

from __future__ import annotations

from autoscaler.domain.cluster import Market, Mode
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import World, world
from topics.reason_codes import ReasonCode

TWO = pool(per_node=2, usd=4.0)
HIGH_S = 900


def scaled_in(run_s: int = 3600, where: object = TWO, **changes: object) -> World:
    """Two models fill one node each until demand falls. Each then needs half of its node."""
    there = where if isinstance(where, type(TWO)) else TWO
    return world(
        lambda _m, t: 14.0 if t < HIGH_S else 5.0,
        service("chat", **changes),
        service("code", **changes),
        pools=(there,),
        catalogue={"chat": simple("chat", there), "code": simple("code", there)},
    ).run(run_s)


def test_two_half_empty_nodes_become_one_while_capacity_covers_demand() -> None:
    least: dict[str, float] = {"chat": 1e9, "code": 1e9}

    def observe(now: World) -> None:
        for model in least:
            if now.t_s > HIGH_S:
                least[model] = min(least[model], now.routed_req_per_s(model))

    w = scaled_in(HIGH_S)
    assert len(w.rented(TWO.id)) == 2
    w.run(2700, observe)
    assert (w.ready("chat"), w.ready("code")) == (1, 1)
    assert len(w.rented(TWO.id)) == 1
    assert min(least.values()) >= 10.0  # the replacement serves before the old one leaves


def test_a_move_states_the_freed_node_and_happens_once() -> None:
    w = scaled_in()
    moves = [d for d in w.decisions if ReasonCode.MOVED_TOGETHER in d.codes]
    assert len(moves) <= 1  # No move would be made if scale-in alone had emptied a node.
    assert all(d.cost_delta_usd_per_h == -4.0 and d.change == () for d in moves)


def test_groups_on_owned_nodes_are_not_moved_because_that_saves_nothing() -> None:
    w = scaled_in(where=pool(per_node=2, market=Market.OWNED))
    assert not [d for d in w.decisions if ReasonCode.MOVED_TOGETHER in d.codes]


def test_models_that_wait_for_approval_are_not_moved() -> None:
    w = scaled_in(1800, mode=Mode.APPROVE)
    assert not [d for d in w.decisions if ReasonCode.MOVED_TOGETHER in d.codes]


def test_a_node_with_several_groups_is_emptied_at_once() -> None:
    shared = pool(per_node=4, usd=4.0)
    models = ("chat", "code", "mini", "agent")

    def rate(model: str, t: float) -> float:
        begins_s = 0 if model in models[:2] else 300
        return (14.0 if t < HIGH_S else 5.0) if t >= begins_s else 0.0

    w = world(
        rate,
        *(service(model) for model in models),
        pools=(shared,),
        catalogue={model: simple(model, shared) for model in models},
    ).run(HIGH_S)
    assert len(w.rented(shared.id)) == 2
    w.run(2700)
    moved = [d for d in w.decisions if ReasonCode.MOVED_TOGETHER in d.codes]
    assert len(moved) == 2 and len({d.at_ms for d in moved}) == 1
    assert sum(d.cost_delta_usd_per_h for d in moved) == -4.0
    assert len(w.rented(shared.id)) == 1
    assert all(w.ready(model) == 1 for model in models)
