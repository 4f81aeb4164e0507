"""What may not leave yet is part of the question; what additions replace is part of the answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Policy
from tests.unit.planning.answer_requests import FULL, H100, L4, URGENT, ask, capacity, one_model

SMALL, LARGE = "m:a1@r/l4/on-demand", "m:a1@r/h100/on-demand"


def test_a_full_plan_removes_no_more_than_the_request_allows() -> None:
    """Nine run where one would do; 90% of what they hold has to stay."""
    cluster = one_model((L4,))
    got = ask(cluster, FULL, {"m": 0.1}, {SMALL: 9}, keeps=(("m", 0.85),))
    assert dict(got.counts) == {SMALL: 8}
    assert dict(ask(cluster, FULL, {"m": 0.1}, {SMALL: 9}).counts) == {SMALL: 1}


def test_a_model_without_demand_keeps_what_may_not_leave() -> None:
    got = ask(one_model((L4,)), FULL, {"m": 0.0}, {SMALL: 2}, keeps=(("m", 1.0),))
    assert dict(got.counts) == {SMALL: 2}


def test_urgent_additions_that_would_replace_what_runs_are_named_with_it() -> None:
    """A bill of many small nodes is dearer than one of a large node, which is bought at once; the
    small ones stay in the answer, named as what it replaces."""
    cluster = one_model((replace(L4, max_nodes=60), H100))
    wanted = 0.8 * 24.0 * capacity(cluster, {SMALL: 1}.items())
    got = ask(cluster, URGENT, {"m": wanted}, {SMALL: 20})
    counts, replaced = dict(got.counts), dict(got.replaced)
    assert counts[LARGE] >= 1 and counts[SMALL] == 20
    left = {LARGE: counts[LARGE], SMALL: 20 - replaced[SMALL]}
    assert left[SMALL] < 20 and 0.8 * capacity(cluster, left.items()) >= wanted
    assert got.cost_usd_per_h < got.now_usd_per_h + H100.price_usd_per_h


def test_a_ceiling_that_leaves_no_room_beside_what_runs_means_additions_alone() -> None:
    cluster = one_model((L4, H100), max_instances=3)
    each = capacity(cluster, {SMALL: 1}.items())
    got = ask(cluster, URGENT, {"m": 0.8 * each * 3.5}, {SMALL: 3})
    assert got.replaced == () and dict(got.counts) == {SMALL: 3}


@pytest.mark.parametrize(
    ("start_s", "k_start", "share"),
    [(60.0, 0.1, 0.1), (240.0, 0.1, 0.4), (1200.0, 0.1, 1.0), (240.0, 0.5, 0.5), (240.0, 0.0, 0.0)],
)
def test_a_start_costs_the_time_it_takes_spread_over_how_long_it_stays_at_least(
    start_s: float, k_start: float, share: float
) -> None:
    service = replace(one_model((L4,)).services[0], scale_in_after_s=600.0)
    assert service.start_penalty(Policy(k_start=k_start), start_s) == pytest.approx(share)
