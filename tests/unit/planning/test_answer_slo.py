"""SLOs that no combo can meet, at the declared or at the measured request lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.reason import about, codes_of
from autoscaler.domain.workload import Lengths, Slo
from autoscaler.planning.planner_messages import Outcome, Urgency
from tests.unit.planning.answer_requests import (
    FULL,
    H100,
    L4,
    LLAMA,
    URGENT,
    ask,
    at,
    mini,
    one_model,
)
from tests.unit.planning.planning_clusters import service
from topics.reason_codes import ReasonCode


def test_requests_too_long_for_the_slo_are_served_as_well_as_possible_and_stated() -> None:
    """An L4 serves requests of the declared lengths within the SLO, but not prompts of 12,000
    tokens.
    """
    cluster = Cluster((L4,), (service("m", LLAMA, Slo(2000.0, 80.0)),))
    got = ask(cluster, FULL, {"m": 0.2}, lengths=Lengths(12_000.0, 211.0))
    assert got.outcome is Outcome.BEST_EFFORT
    assert got.counts
    assert ReasonCode.OUTSIDE_SLO in codes_of(about(got.notes, "m"))


@pytest.mark.parametrize("urgency", [URGENT, FULL])
def test_an_slo_that_was_never_possible_adds_no_instance(urgency: Urgency) -> None:
    cluster = Cluster((L4,), (service("m", LLAMA, Slo(2000.0, 2.0)),))
    got = ask(cluster, urgency, {"m": 0.2})
    assert got.outcome is Outcome.BEST_EFFORT
    assert got.counts == ()
    assert dict(got.shortfall_req_per_s) == {"m": 0.2}
    assert ReasonCode.SLO_OUT_OF_REACH in codes_of(about(got.notes, "m"))


def test_instances_with_an_impossible_slo_keep_running() -> None:
    """Late answers are better than none. The fleet stays until another SLO is declared."""
    cluster = Cluster((L4,), (service("m", LLAMA, Slo(2000.0, 2.0)),))
    got = ask(cluster, FULL, {"m": 0.2}, {"m:a1@r/l4/on-demand": 1})
    assert dict(got.counts) == {"m:a1@r/l4/on-demand": 1}


@pytest.mark.parametrize("urgency", [URGENT, FULL])
def test_the_control_loop_adds_not_even_the_minimum_for_an_impossible_slo(
    urgency: Urgency,
) -> None:
    impossible = replace(mini("m"), slo=Slo(4000.0, 1.0), min_instances=1)
    found = ask(Cluster((L4, H100), (impossible,)), urgency, {"m": 3.0})
    assert found.counts == ()
    assert found.outcome is Outcome.BEST_EFFORT
    assert found.shortfall_req_per_s == (("m", 3.0),)
    assert ReasonCode.SLO_OUT_OF_REACH in codes_of(about(found.notes, "m"))


def test_a_model_is_served_although_its_longest_requests_miss_the_slo() -> None:
    """The declared lengths contain such requests. On an L4 one prompt in five misses the SLO."""
    long = Lengths.expected(2500.0, 200.0, cv=1.5)
    some = replace(one_model((L4,), min_instances=1), services=(late_service(long, 1500.0),))
    plan = ask(some, URGENT, {"m": 1.0}, lengths=long)
    assert plan.counts
    assert not at(some, plan.counts[0][0], long).meets_slo
    never = replace(some, services=(late_service(long, 20.0),))
    assert not ask(never, URGENT, {"m": 1.0}, lengths=long).counts


def late_service(lengths: Lengths, ttft_ms: float) -> Service:
    return service("m", LLAMA, Slo(ttft_ms, 150.0), lengths=lengths)
