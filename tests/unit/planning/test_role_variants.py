"""Running pairs with other ratios of prefill and decode: the slices stay, only the roles differ."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Cluster, Market, Policy
from autoscaler.domain.workload import POISSON_ARRIVALS, Lengths, Slo
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.planner_messages import FleetChange
from autoscaler.planning.role_variants import best_roles
from tests.unit.planning.answer_requests import FULL, PROFILE, ask
from tests.unit.planning.planning_clusters import pool, service

ALL = pool("r", "h100", "H100", 1, 6, Market.ON_DEMAND, 6.88)
CHAT = service("m", "openai/gpt-oss-20b", Slo(2000.0, 10.0), max_len_tokens=32768)
CLUSTER = Cluster((ALL,), (CHAT,), Policy())
PROMPTS, ANSWERS = Lengths.expected(6000.0, 150.0, 0.7), Lengths.expected(2000.0, 600.0, 0.7)
AT = "@r/h100/on-demand"
MOST_PREFILL, MOST_DECODE = f"m:2p1{AT}+d1{AT}", f"m:p1{AT}+2d1{AT}"


def roles(name: str, lengths: Lengths) -> str:
    running = evaluate_combo(name, CLUSTER, CHAT, lengths, PROFILE)
    return best_roles(running, CLUSTER, CHAT, lengths, PROFILE, POISSON_ARRIVALS).id


def test_the_ratio_of_roles_follows_request_lengths() -> None:
    """Long prompts need prefill instances, long answers need decode instances. A group with the
    best ratio keeps it.
    """
    assert roles(MOST_DECODE, PROMPTS) == roles(MOST_PREFILL, PROMPTS) == MOST_PREFILL
    assert roles(MOST_PREFILL, ANSWERS) == roles(MOST_DECODE, ANSWERS) == MOST_DECODE


def test_a_single_instance_has_no_other_roles() -> None:
    assert roles(f"m:a1{AT}", ANSWERS) == f"m:a1{AT}"


def test_pairs_in_a_full_pool_switch_roles_if_the_best_ratio_needs_other_slices() -> None:
    """All six nodes run pairs of three instances. The cheapest ratio needs a
    pair of another size.
    """
    found = ask(CLUSTER, FULL, {"m": 25.0}, {MOST_PREFILL: 2}, lengths=ANSWERS)
    names = [f"{MOST_PREFILL}:{serial}" for serial in range(2)]
    assert found.change == FleetChange((), tuple((name, MOST_DECODE) for name in names), ())
    dear = Cluster((ALL,), (CHAT,), Policy(role_switch=False))
    assert not ask(dear, FULL, {"m": 25.0}, {MOST_PREFILL: 2}, lengths=ANSWERS).change.switches


@pytest.mark.parametrize("may", [0, 1, 2, 3])
def test_the_plan_has_at_most_the_switches_that_are_possible_now(may: int) -> None:
    """Without switches the running pairs stay, because other ratios have no
    room in the full pool.
    """
    limit = ((MOST_PREFILL, may),) if may else ()
    found = ask(CLUSTER, FULL, {"m": 25.0}, {MOST_PREFILL: 2}, lengths=ANSWERS, switchable=limit)
    assert len(found.change.switches) == min(may, 2)
    assert dict(found.counts).get(MOST_PREFILL, 0) == 2 - min(may, 2)
