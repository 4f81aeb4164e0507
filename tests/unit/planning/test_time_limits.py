"""Time limits that follow from the workload, and declared limits that contradict them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Market, Mode, Policy, Pool, Service
from autoscaler.domain.workload import Lengths, Slo, WorkloadType
from autoscaler.performance import catalog
from autoscaler.planning.time_limits import (
    LEAST_DRAIN_S,
    contradictions,
    drain_timeout_s,
    longest_answer_s,
    request_limit_s,
)
from topics.reason_codes import ReasonCode

THINK = Service(
    "think",
    catalog.model("meta-llama/Llama-3.1-8B-Instruct"),
    Slo(3000.0, 60.0),
    max_len_tokens=16_384,
    lengths=Lengths.expected(500.0, 8000.0),
)
POOL = Pool("us", "l40s", catalog.gpu("L40S"), 1, 30, Market.ON_DEMAND, 1.9, provision_s=20.0)
SHORT = Lengths.expected(500.0, 100.0)


def codes(cluster: Cluster) -> list[str]:
    return [wrong.code for wrong in contradictions(cluster)]


def test_the_longest_answer_is_limited_by_max_len() -> None:
    """The longest answer has 16,384 tokens at 60 ms each, after a TTFT of 3 s. A mean of 8,000
    tokens has a spread far beyond that.
    """
    assert longest_answer_s(THINK) == pytest.approx(3.0 + 16_384 * 0.06)
    assert longest_answer_s(replace(THINK, max_len_tokens=10_000)) == pytest.approx(603.0)


def test_the_longest_of_declared_types_and_measured_lengths_counts() -> None:
    short = replace(THINK, lengths=SHORT)
    base_s = longest_answer_s(short)
    assert base_s == pytest.approx(3.0 + SHORT.outputs[-1] * 0.06)
    assert longest_answer_s(short, Lengths(500.0, 4000.0)) == pytest.approx(243.0)
    assert longest_answer_s(short, Lengths(500.0, 10.0)) == base_s
    types = (
        WorkloadType("talk", 0.9, Lengths(10.0, 10.0)),
        WorkloadType("essay", 0.1, Lengths(10.0, 2000.0)),
    )
    assert longest_answer_s(replace(short, types=types)) == pytest.approx(123.0)


def test_the_default_drain_time_out_is_long_enough_and_at_least_two_minutes() -> None:
    assert drain_timeout_s(THINK, Policy()) == longest_answer_s(THINK)
    assert drain_timeout_s(replace(THINK, lengths=SHORT), Policy()) == LEAST_DRAIN_S
    assert drain_timeout_s(THINK, Policy(drain_timeout_s=600.0)) == 600.0
    endless = replace(THINK, max_len_tokens=10_000_000, lengths=Lengths(500.0, 5e6))
    assert drain_timeout_s(endless, Policy()) == 86_400.0  # the maximum in an assignment


def test_a_declared_drain_time_out_below_the_longest_answer_is_named_with_both_values() -> None:
    cluster = Cluster((POOL,), (THINK,), Policy(drain_timeout_s=600.0))
    (wrong,) = contradictions(cluster)
    assert (wrong.code, wrong.key, wrong.model) == (
        ReasonCode.DRAIN_TOO_SHORT, "policy.drain_timeout", "think",
    )  # fmt: skip
    assert not wrong.harmless and wrong.reason.quantities == (600.0, longest_answer_s(THINK))
    assert codes(replace(cluster, policy=Policy(drain_timeout_s=1000.0))) == []
    assert codes(replace(cluster, policy=Policy())) == []


def test_limits_of_gateways_approvals_and_starts_are_checked() -> None:
    long = replace(THINK, max_len_tokens=65_536, mode=Mode.APPROVE)
    assert codes(Cluster((POOL,), (long,))) == [ReasonCode.REQUEST_LIMIT_TOO_SHORT]
    assert request_limit_s(Cluster((POOL,), (long,))) == longest_answer_s(long)
    assert request_limit_s(Cluster((POOL,), (THINK,))) == 1800.0
    hasty = Policy(approve_within_s=60.0)
    assert codes(Cluster((POOL,), (replace(THINK, mode=Mode.APPROVE),), hasty)) == [
        ReasonCode.APPROVAL_TOO_SHORT
    ]
    assert codes(Cluster((POOL,), (THINK,), hasty)) == []  # no approval is needed
    slow = replace(POOL, provision_s=900.0)
    assert codes(Cluster((slow,), (THINK,))) == [ReasonCode.START_BELOW_PROVISION]
