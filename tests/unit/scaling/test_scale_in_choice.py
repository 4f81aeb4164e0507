"""What goes when there is excess: nearest from below, within budget and floor."""

from __future__ import annotations

from autoscaler.scaling.scale_in import Removable, choose
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.decide.decide_world import T0, pool, service, world


def running(*rates: float, usd: float = 1.0) -> list[Removable]:
    return [Removable(f"g{k}", rate, usd) for k, rate in enumerate(rates)]


def test_one_combo_may_always_go_though_it_is_more_than_the_budget() -> None:
    """10% of 30 is 3, the combos are 10 each: one goes."""
    assert [c.group for c in choose(running(10, 10, 10), 12.0, 1, 0.1)] == ["g0"]


def test_the_single_one_is_the_largest_that_fits_the_excess() -> None:
    """Excess of 12 among 5, 10 and 20: the 10 goes, never the 20."""
    assert [c.req_per_s for c in choose(running(5, 10, 20), 12.0, 0, 0.0)] == [10]


def test_what_costs_goes_before_what_is_owned() -> None:
    """Equal capacity: the rented one."""
    both = [Removable("owned", 10.0, 0.0), Removable("rented", 10.0, 2.0)]
    assert [c.group for c in choose(both, 11.0, 0, 0.1)] == ["rented"]


@given(
    st.lists(st.floats(0.1, 50.0), max_size=12),
    st.floats(0.0, 200.0),
    st.integers(0, 5),
    st.floats(0.0, 1.0),
)
def test_never_more_than_the_excess_the_budget_or_the_floor_allow(
    rates: list[float], excess: float, floor: int, budget: float
) -> None:
    """For any fleet: within the excess, the floor, and the budget or a single combo."""
    fleet = running(*rates)
    chosen = choose(fleet, excess, floor, budget)
    taken = sum(combo.req_per_s for combo in chosen)
    assert taken <= excess * (1 + 1e-6) + 1e-9
    assert not chosen or len(fleet) - len(chosen) >= floor
    assert len(chosen) <= 1 or taken <= budget * sum(rates) * (1 + 1e-6)
    could = [r for r in rates if r <= excess]
    assert chosen or not could or len(fleet) <= floor


def test_a_surge_keeps_what_was_on_its_way_out() -> None:
    """Excess retires one; demand comes back before it drains: it stays, none is started."""
    w = world(
        lambda _m, t: 30.0 if t < 300 or t >= 945 else 12.0,
        service(scale_in_after_s=500.0),
        pools=(pool(nodes=8),),
    )
    w.confirm = False  # no gateway confirms: the drain waits its 15 s
    while not w.of_kind("scale_in"):
        w.run(1)
        assert w.t_s < 1000
    names = {i.instance for a in w.applied.values() for i in a.instances}
    w.rate = lambda _m, _t: 60.0
    w.run(6)
    back = w.of_kind("scale_out")[-1]
    assert "1 on the way out stay" in back.reason and back.at_ms > T0 + 300_000
    kept = {i.instance for a in w.applied.values() for i in a.instances if not i.drain}
    assert names <= kept
