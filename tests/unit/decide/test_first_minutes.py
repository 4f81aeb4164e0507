"""The first minutes: the declared workload counts until the windows have enough evidence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Lengths
from tests.unit.decide.decide_catalogue import Planner, pool, service
from tests.unit.decide.decide_world import T0, world
from topics.reason_codes import ReasonCode

ONE = pool(nodes=40, per_node=1, usd=2.0)


def test_a_declared_workload_starts_with_the_fleet_it_needs() -> None:
    """30 req/s are declared. The first answer starts four instances of 10 req/s
    (30 / 0.8 = 37.5).
    """
    w = world(
        lambda _m, t: 0.0 if t < 90 else 30.0, service(req_per_s=30.0), pools=(ONE,), step_s=1
    ).run(2)
    assert w.assigned_count("chat") == 4
    assert ReasonCode.DECLARED in w.decisions[0].codes
    w.run(600)
    assert [d.kind for d in w.decisions] == ["scale_out"] and w.ready("chat") == 4


def test_a_declared_workload_counts_until_windows_have_evidence() -> None:
    """30 req/s are declared and 5 arrive. All four instances stay until the excess has lasted long
    enough; then one is left.
    """
    w = world(5.0, service(req_per_s=30.0), pools=(ONE,)).run(600)
    assert w.ready("chat") == 4 and w.state.models["chat"].estimate.rate_observed
    w.run(180)
    assert w.ready("chat") == 1


def test_idle_time_before_the_first_request_is_no_evidence_of_excess() -> None:
    """30 req/s are declared. No request comes for 500 s, then 5 req/s. All four instances stay
    until 5 req/s have lasted for `scale_in_after` (600 s).
    """
    w = world(lambda _m, t: 0.0 if t < 500 else 5.0, service(req_per_s=30.0), pools=(ONE,))
    w.run(1080)
    assert w.assigned_count("chat") == 4
    w.run(200)
    assert w.assigned_count("chat") == 1


def test_a_declared_workload_that_never_arrives_stops_counting() -> None:
    """After twice `scale_in_after` without a request the fleet shrinks to its minimum."""
    w = world(0.0, service(req_per_s=30.0), pools=(ONE,)).run(1190)
    assert w.assigned_count("chat") == 4
    w.run(60)
    assert w.assigned_count("chat") == 1


def test_a_declared_workload_counts_while_no_gateway_reports() -> None:
    """Missing telemetry is not zero traffic."""
    w = world(5.0, service(req_per_s=30.0), pools=(ONE,), silent={"g1"}).run(1500)
    assert w.assigned_count("chat") == 4


def test_a_restart_does_not_return_to_the_declared_workload() -> None:
    """Measured demand had reduced the fleet to one instance. The restarted controller keeps that
    size.
    """
    w = world(5.0, service(req_per_s=30.0), pools=(ONE,)).run(850)
    assert w.ready("chat") == 1
    w.restart_controller()
    w.run(300)
    assert w.assigned_count("chat") == 1


def test_idle_seconds_before_traffic_do_not_dilute_the_rate() -> None:
    """100 s without a request, then 30 req/s. The first instance is ordered within 4 s, and
    capacity for 30 req/s within 40 s. The mean of the local window would be 10 req/s.
    """
    w = world(lambda _m, t: 0.0 if t < 100 else 30.0, pools=(ONE,), seed=1).run(140)
    assert w.assigned_count("chat") >= 4 and w.of_kind("scale_out")[0].at_ms < T0 + 104_000


def test_fifty_three_shorter_requests_change_nothing() -> None:
    """The inputs of 53 requests are a third shorter, which is too little evidence for other planned
    lengths.
    """
    w = world(1.0, pools=(ONE,)).run(300)
    before = w.state.models["chat"].estimate.lengths
    w.longer["chat"] = 2 / 3
    w.run(53)
    assert w.state.models["chat"].estimate.lengths == before and w.decisions[-1].kind == "scale_out"


class LongerHoldsLess(Planner):
    """A planner over combos that serve less with longer inputs: 10 req/s at
    1000 tokens, 5 at 2000.
    """

    def _candidates(
        self, cluster: Cluster, service: Service, lengths: Lengths, *rest: object
    ) -> tuple[Combo, ...]:
        found = super()._candidates(cluster, service, lengths, *rest)
        return tuple(replace(one, req_per_s=1e4 / lengths.input_tokens) for one in found)

    def _named(
        self, name: str, cluster: Cluster, service: Service, lengths: Lengths, *rest: object
    ) -> Combo:
        found = super()._named(name, cluster, service, lengths, *rest)
        return replace(found, req_per_s=1e4 / lengths.input_tokens)


def test_longer_requests_add_capacity_within_a_minute() -> None:
    """The inputs of 7 req/s double, which halves the capacity of an instance. The rate stays the
    same.
    """
    w = world(7.0, pools=(ONE,))
    w.planner = LongerHoldsLess(w.catalogue)
    w.run(300)
    assert w.assigned_count("chat") == 1
    w.longer["chat"] = 2.0
    w.run(60)
    assert w.assigned_count("chat") == 2 and w.of_kind("scale_in") == []
    w.run(180)
    assert 1800.0 < w.state.models["chat"].estimate.lengths.input_tokens <= 2000.0


def test_misses_while_an_instance_starts_do_not_derate_capacity() -> None:
    """Requests of a surge miss the SLO until new instances are ready. This is no evidence about
    capacity.
    """
    w = world(lambda _m, t: 5.0 if t < 300 else 40.0, pools=(ONE,)).run(300)
    w.missing["chat"] = 0.6
    w.run(100)
    w.missing.clear()
    w.run(300)
    assert w.state.models["chat"].capacity.derate == 1.0


def test_derated_capacity_recovers_slowly() -> None:
    """Misses at a planned load for a minute derate capacity by 15% at once. Ten minutes later 3%
    are restored.
    """
    w = world(15.5, pools=(ONE,)).run(600)
    w.missing["chat"] = 0.5
    w.run(60)
    w.missing.clear()
    derate = w.state.models["chat"].capacity.derate
    assert derate == pytest.approx(0.85 * 15.5 / 16.0, abs=0.02)
    w.run(900)
    assert w.state.models["chat"].capacity.derate == pytest.approx(1.03 * derate)
