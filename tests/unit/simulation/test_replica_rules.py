"""The scaling rules of the baselines, second by second, compared with their documentation."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from autoscaler.simulation.policies.hpa import on_queue, on_rate, on_utilization
from autoscaler.simulation.policies.knative import Knative
from autoscaler.simulation.policies.skyserve import SkyServe
from autoscaler.simulation.replicas import ReplicaCapacity, Scaler, Signals

REPLICA = ReplicaCapacity(req_per_s=2.0, concurrency=10.0)


def play(
    rule: Scaler,
    seconds: int,
    load: Callable[[int], tuple[float, int, int]],
    start_s: int = 0,
    ready: int | None = None,
) -> list[int]:
    """Desired replicas per second. load: second -> (req/s, in flight, waiting).

    Replicas are ready at once unless `ready` is given.
    """
    found: list[int] = []
    count = rule.desired_replicas(Signals(start_s - 1, 0, 0, None, 0, 0))
    for now_s in range(start_s, start_s + seconds):
        rate, in_flight, waiting = load(now_s)
        up = count if ready is None else ready
        count = rule.desired_replicas(Signals(now_s, up, count, rate, in_flight, waiting))
        found.append(count)
    return found


def test_knative_panics_within_seconds_and_holds_for_the_stable_window() -> None:
    """The target is 7 in flight per replica, and 70 arrive at once. The panic window of 6 s asks
    for 10 replicas. Scale-down waits for a stable window without panic.
    """
    rule = Knative(REPLICA, 0.7, 1)
    calm = play(rule, 60, lambda _: (1.0, 5, 0))
    assert set(calm) == {1}
    burst = play(rule, 8, lambda _: (9.0, 70, 0), start_s=60, ready=1)
    assert burst[-1] == 10
    after = play(rule, 200, lambda _: (1.0, 5, 0), start_s=68)
    assert after[50] == 10
    assert after[-1] == 1


def test_knative_follows_the_stable_window_for_slow_changes() -> None:
    rule = Knative(REPLICA, 0.7, 5)
    found = play(rule, 120, lambda _: (7.0, 38, 0))
    assert found[-1] == 6  # ceil(38 / 7)
    assert max(found) == 6


def test_hpa_stays_within_its_tolerance_and_scales_down_after_five_minutes() -> None:
    rule = on_utilization(REPLICA, 0.7, 4)
    assert set(play(rule, 60, lambda _: (6.0, 30, 0))) == {4}  # 7.5 is within a tenth of 7.
    up = play(rule, 16, lambda _: (8.0, 50, 0), start_s=60)
    assert up[-1] == 8  # ceil(4 x 50 / 4 / 7)
    down = play(rule, 400, lambda _: (2.0, 14, 0), start_s=76)
    assert down[280] == 8
    assert down[-1] == 2


def test_hpa_counts_replicas_that_are_not_ready_as_idle_when_scaling_up() -> None:
    """Two of six replicas are ready and full. 20 in flight over six replicas
    are below the target.
    """
    rule = on_utilization(REPLICA, 0.7, 6)
    assert set(play(rule, 60, lambda _: (4.0, 20, 0), ready=2)) == {6}


def test_hpa_on_queue_grows_at_most_by_four_or_twofold() -> None:
    rule = on_queue(REPLICA, 1.0, 1)
    found = play(rule, 46, lambda _: (9.0, 100, 90))
    assert [found[0], found[15], found[30], found[45]] == [5, 10, 20, 40]


def test_skyserve_waits_five_minutes_up_and_twenty_down() -> None:
    rule = SkyServe(REPLICA, 0.5, 1)  # 1 req/s per replica
    up = play(rule, 400, lambda _: (3.5, 0, 0))
    assert up[270] == 1
    assert up[290] == 4
    down = play(rule, 1400, lambda _: (0.5, 0, 0), start_s=400)
    assert down[1150] == 4
    assert down[1200] == 1


def test_skyserve_forgets_a_rise_that_did_not_last() -> None:
    rule = SkyServe(REPLICA, 0.5, 1)
    found = play(rule, 2000, lambda s: (3.5 if s % 280 < 260 else 0.9, 0, 0))
    assert set(found) == {1}


@pytest.mark.parametrize(
    ("rule", "period_s", "replicas"),
    [
        (SkyServe(REPLICA, 0.8, 1), 20, 5),  # ceil(8 / 1.6)
        (on_utilization(REPLICA, 0.7, 1), 15, 4),  # 28 / 7
        (Knative(REPLICA, 0.7, 1), 2, 4),
    ],
)
def test_a_rule_scales_if_no_tick_falls_on_a_multiple_of_its_period(
    rule: Scaler, period_s: int, replicas: int
) -> None:
    count = rule.desired_replicas(Signals(0, 0, 0, None, 0, 0))
    for now_s in range(period_s - 1, 1000, period_s):
        count = rule.desired_replicas(Signals(now_s, count, count, 8.0, 28, 0))
    assert count == replicas


def test_hpa_on_rate_divides_by_the_target_and_waits_five_minutes_to_shrink() -> None:
    """The target is 1.4 req/s per replica. Starting replicas count as present."""
    rule = on_rate(REPLICA, 0.7, 2)
    assert set(play(rule, 60, lambda _: (3.0, 0, 0))) == {2}  # within 10% of 2.8
    grown = play(rule, 60, lambda _: (7.0, 0, 0), start_s=60, ready=2)
    assert set(grown[15:]) == {5}  # 7 / 1.4, although only 2 are ready
    shrunk = play(rule, 400, lambda _: (1.0, 0, 0), start_s=120, ready=5)
    assert shrunk[280] == 5
    assert shrunk[-1] == 1
