"""The combo ILP against a brute force over all counts, and its fallback."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.workload import Lengths
from autoscaler.planning.combo_ilp import Column, CoverProblem, CoverStatus, solve_cover
from autoscaler.planning.cost_efficiency import combo_tokens_per_usd
from autoscaler.planning.room import NO_BLOCKS, PoolRoom, fits, new_nodes_needed
from autoscaler.planning.usage import is_spot, total_slices
from tests.unit.planning.planning_clusters import combo

POOLS = ("r/a/on-demand", "r/b/spot")


def feasible(problem: CoverProblem) -> Iterator[tuple[int, ...]]:
    """All counts that fit the pools and the spot limits."""
    combos = [column.combo for column in problem.columns]
    # A pool of these problems has 7 free GPUs at most.
    most = [7 // combo.members[0].gpus for combo in combos]
    for counts in product(*(range(m + 1) for m in most)):
        fine = all(
            pool in problem.room and fits(wanted, problem.room[pool].all_blocks())
            for pool, wanted in total_slices(combos, counts).items()
            if wanted != NO_BLOCKS
        )
        for model, limit in problem.spot_limit_req_per_s.items():
            used = sum(
                c.req_per_s * n
                for c, n in zip(combos, counts, strict=True)
                if c.model == model and is_spot(c)
            )
            fine = fine and used <= limit + 1e-9
        if fine:
            yield counts


def weight(problem: CoverProblem, counts: tuple[int, ...]) -> float:
    return sum(c.weight * n for c, n in zip(problem.columns, counts, strict=True))


def goodput(problem: CoverProblem, counts: tuple[int, ...], model: str) -> float:
    return sum(
        c.combo.req_per_s * n
        for c, n in zip(problem.columns, counts, strict=True)
        if c.combo.model == model
    )


@st.composite
def problems(draw: st.DrawFn) -> CoverProblem:
    columns = []
    for index in range(draw(st.integers(1, 4))):
        made = combo(
            f"m:{index}",
            req_per_s=draw(st.integers(1, 40)) / 4,
            usd_per_h=1.0,
            pool_id=draw(st.sampled_from(POOLS)),
            gpus=draw(st.sampled_from((1, 2, 4))),
        )
        columns.append(Column(made, weight=draw(st.integers(1, 50)) / 10))
    room = {
        name: PoolRoom(
            4,
            (draw(st.integers(0, 1)), draw(st.integers(0, 1)), draw(st.integers(0, 1)), 0),
            0,
            0.0,
        )
        for name in POOLS
    }
    demand = draw(st.integers(0, 60)) / 4
    spot = draw(st.sampled_from((0.0, 0.5, 1.0)))
    return CoverProblem(tuple(columns), {"m": demand}, room, {"m": spot * demand})


@settings(max_examples=60, deadline=None)
@given(problems())
def test_the_ilp_finds_what_a_brute_force_finds(problem: CoverProblem) -> None:
    """Least weight where the demand can be met, else most goodput and least weight at it."""
    demand = problem.demand_req_per_s["m"]
    all_counts = list(feasible(problem))
    most = max(min(demand, goodput(problem, counts, "m")) for counts in all_counts)
    best = min(
        weight(problem, counts)
        for counts in all_counts
        if min(demand, goodput(problem, counts, "m")) >= most - 1e-9
    )
    cover = solve_cover(problem)
    assert min(demand, cover.req_per_s["m"]) == pytest.approx(most, abs=1e-5)
    assert weight(problem, cover.counts) == pytest.approx(best, abs=1e-5)
    assert cover.counts in all_counts
    assert (cover.status is CoverStatus.SHORT) == (most < demand * (1 - 1e-6))
    assert cover.shortfall_req_per_s.get("m", 0.0) == pytest.approx(demand - most, abs=1e-5)


def test_a_residual_demand_takes_the_cheaper_combo_though_its_efficiency_is_lower() -> None:
    """The example of Cauchy sec. 3.3.2: 0.80 req/s, an A800 combo over an H20 combo."""
    lengths = Lengths(300.0, 95.0)
    a800 = combo("m:a800", 0.82, 1.09, "r/a800/on-demand")
    h20 = combo("m:h20", 1.23, 1.50, "r/h20/on-demand")
    efficiency = [combo_tokens_per_usd(lengths, c.req_per_s, c.usd_per_h) for c in (a800, h20)]
    assert efficiency == pytest.approx([1.07e6, 1.166e6], rel=0.01)
    room = {c.members[0].pool: PoolRoom(8, (0, 0, 0, 1), 0, 0.0) for c in (a800, h20)}
    columns = tuple(
        Column(c, c.usd_per_h / ce) for c, ce in zip((a800, h20), efficiency, strict=True)
    )
    assert solve_cover(CoverProblem(columns, {"m": 0.80}, room)).counts == (1, 0)


def test_nodes_that_are_paid_for_are_filled_before_new_ones_are_rented() -> None:
    cheap_share = combo("m:new", 1.0, 1.0, "r/a/on-demand", gpus=1)
    paid = combo("m:paid", 1.0, 1.5, "r/b/on-demand", gpus=1)
    room = {
        "r/a/on-demand": PoolRoom(4, NO_BLOCKS, 3, 4.0),
        "r/b/on-demand": PoolRoom(4, (1, 1, 0, 0), 3, 6.0),
    }
    columns = (Column(cheap_share, 1.0), Column(paid, 1.5))
    filled = CoverProblem(columns, {"m": 3.0}, room, node_usd_per_h_weight=1.0)
    assert solve_cover(filled).counts == (0, 3)
    assert new_nodes_needed((3, 0, 0, 0), room["r/b/on-demand"]) == 0


def test_no_model_starves_for_another_when_there_is_too_little() -> None:
    fast = combo("fast:x", 10.0, 1.0, "r/a/on-demand")
    slow = combo("slow:x", 1.0, 1.0, "r/a/on-demand")
    room = {"r/a/on-demand": PoolRoom(1, (4, 0, 0, 0), 0, 0.0)}
    problem = CoverProblem((Column(fast, 1.0), Column(slow, 1.0)), {"fast": 40, "slow": 4}, room)
    cover = solve_cover(problem)
    assert cover.counts == (2, 2)
    assert cover.shortfall_req_per_s == {"fast": 20.0, "slow": 2.0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_numbers_that_are_none_are_refused_by_name_before_any_solve(bad: float) -> None:
    one = combo("m:x", 1.0, 1.0, "r/a/on-demand")
    with pytest.raises(InvalidValue, match="demand of m"):
        CoverProblem((Column(one, 1.0),), {"m": bad}, {})
    with pytest.raises(InvalidValue, match="weight of m:x"):
        CoverProblem((Column(one, bad),), {"m": 1.0}, {})
