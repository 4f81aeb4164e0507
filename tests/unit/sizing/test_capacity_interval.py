"""The interval of predictions bounds gains, and gains belong to GPU types."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.measurement import Measurement
from autoscaler.performance import catalog
from autoscaler.performance.intervals import rate_interval
from autoscaler.performance.profile import architecture_key
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.sizing.capacity_interval import update_interval
from autoscaler.state.model_state import Capacity
from tests.unit.decide.decide_catalogue import LLAMA, pool, service, simple

OLD, NEW = pool(), replace(pool("l4"), gpu=catalog.gpu("L4"))
ON_OLD, ON_NEW = (simple("chat", where)[0] for where in (OLD, NEW))
COMBOS = {ON_OLD.id: ON_OLD, ON_NEW.id: ON_NEW}
LOW, HIGH = rate_interval(LLAMA, None, "L40S")


def cluster(cautious: bool = True, error: float | None = None) -> Cluster:
    own = []
    if error is not None:
        key = architecture_key(LLAMA)
        own = [Measurement(key, "bf16", "L40S", 1, 1.0, 1.0, error, 10, "2026-01-01")]
    return Cluster((OLD, NEW), (service(cautious=cautious),), measurements=tuple(own))


def updated(known: Capacity, where: Cluster, *combos: Combo) -> Capacity:
    groups = [
        ServingGroup(f"{combo.id}:{n}", "chat", combo.id, "", (), 0)
        for n, combo in enumerate(combos)
    ]
    return update_interval(known, groups, COMBOS, where)


def test_a_cautious_plan_is_the_lower_end_of_the_interval() -> None:
    found = updated(Capacity(), cluster(), ON_OLD)
    assert found.predicted == pytest.approx(1.0 / LOW, rel=1e-5)
    assert found.highest == pytest.approx(HIGH / LOW, rel=1e-5)
    found = updated(Capacity(), cluster(cautious=False), ON_OLD)
    assert (found.predicted, found.highest) == (1.0, pytest.approx(HIGH, rel=1e-5))


def test_a_gpu_type_that_is_added_has_no_part_in_a_gain() -> None:
    learnt = replace(updated(Capacity(), cluster(), ON_OLD), derate=1.4)
    assert updated(learnt, cluster(), ON_OLD, ON_OLD).derate == 1.4
    mixed = updated(learnt, cluster(), ON_OLD, ON_NEW)
    share = ON_NEW.req_per_s / (ON_OLD.req_per_s + ON_NEW.req_per_s)
    assert mixed.derate == pytest.approx(1.0 + 0.4 * (1.0 - share))
    assert updated(mixed, cluster(), ON_OLD, ON_NEW).derate == mixed.derate
    assert updated(learnt, cluster(), ON_NEW).derate == pytest.approx(1.0)


def test_a_measurement_that_replaces_caution_is_not_counted_twice() -> None:
    learnt = replace(updated(Capacity(), cluster(), ON_OLD), derate=1.0 / LOW)
    assert updated(learnt, cluster(error=0.01), ON_OLD).derate == pytest.approx(1.0, rel=1e-4)


def test_a_gain_ends_with_the_interval() -> None:
    """A gain of 90%, learnt on a type of GPU whose predictions are known better."""
    learnt = replace(updated(Capacity(), cluster(cautious=False), ON_OLD), derate=1.9)
    assert 1.0 < HIGH < 1.9
    assert updated(learnt, cluster(cautious=False), ON_OLD).derate == pytest.approx(HIGH)


def test_derating_below_the_plan_stays() -> None:
    low = replace(updated(Capacity(), cluster(), ON_OLD), derate=0.8)
    assert updated(low, cluster(), ON_NEW).derate == 0.8


def test_nothing_is_learnt_about_unknown_combos() -> None:
    known = updated(Capacity(), cluster(), ON_OLD)
    other = replace(ON_OLD, id="chat:a1@us/other/on-demand")
    found = updated(known, cluster(), other)
    assert (found.predicted, found.highest) == (1.0, 1.0)


def test_a_combo_of_a_removed_pool_has_no_prediction() -> None:
    where = cluster()
    found = updated(Capacity(), replace(where, pools=(NEW,)), ON_OLD)
    assert (found.predicted, found.highest) == (1.0, 1.0)


def test_a_slower_version_does_not_narrow_the_interval() -> None:
    """Measured slowness is derating; the interval is that of the prediction."""
    found = updated(Capacity(speed=0.8), cluster(), ON_OLD)
    assert found.highest == updated(Capacity(), cluster(), ON_OLD).highest
    assert updated(Capacity(speed=1.2), cluster(), ON_OLD).highest == pytest.approx(
        1.2 * found.highest, rel=1e-5
    )
