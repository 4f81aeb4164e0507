"""Billing: whole nodes, from the first launch until a status without instances."""

import pytest

from autoscaler.domain.checks import InvalidValue
from autoscaler.serving.billing import Meter, Tariff
from topics.fleet import InstanceState, ObservedInstance, Status

HOUR_MS = 3_600_000
T0 = 1_700_000_000_000
TARIFFS = {"r/a/spot": Tariff(2.0, "L4", 4), "r/b/owned": Tariff(0.0, "H100-SXM", 8)}


def status(at_h: float, *launched_h: float, node: str = "n", pool: str = "r/a/spot") -> Status:
    instances = tuple(
        ObservedInstance(
            f"i{i}", "m", "aggregated", "g", InstanceState.READY, (i,),
            launched_ms=T0 + int(h * HOUR_MS) if h >= 0 else 0,
        )
        for i, h in enumerate(launched_h)
    )  # fmt: skip
    return Status(node, pool, "ex", 1, T0 + int(at_h * HOUR_MS), instances)


def at(hours: float) -> int:
    return T0 + int(hours * HOUR_MS)


def test_a_node_is_paid_whole_from_its_first_launch_to_its_release() -> None:
    """Launched at 1 h, seen at 1.5 h, empty at 3 h: two hours of four GPUs, however many ran."""
    meter = Meter(TARIFFS)
    for record in (status(0.5), status(1.5, 1.0), status(2.0, 1.0, 1.8), status(3.0), status(9.0)):
        meter.record(record)
    bill = meter.bill(at(20))
    assert bill.usd == pytest.approx(4.0)
    assert bill.gpu_hours == {"L4": pytest.approx(8.0)}


def test_an_open_node_is_billed_until_now_and_again_after_a_release() -> None:
    """Two spans add up; the open one grows with the clock."""
    meter = Meter(TARIFFS)
    for record in (status(1.0, 1.0), status(2.0), status(5.0, 4.0)):
        meter.record(record)
    assert meter.bill(at(5)).usd == pytest.approx(4.0)
    assert meter.bill(at(6)).usd == pytest.approx(6.0)


def test_nothing_is_billed_before_a_launch() -> None:
    """An instance that still waits for its GPUs has no launch time and costs nothing."""
    meter = Meter(TARIFFS)
    meter.record(status(1.0, -1.0))
    assert meter.bill(at(9)).usd == 0.0
    assert meter.bill(at(9)).gpu_hours == {}


def test_late_and_repeated_records_change_nothing() -> None:
    """A second copy and an older record leave the bill as it is."""
    records = [status(1.0, 1.0), status(2.0, 1.0), status(3.0), status(4.0, 3.5)]
    once, often = Meter(TARIFFS), Meter(TARIFFS)
    for record in records:
        once.record(record)
        for _ in range(3):
            often.record(record)
    for record in records[:-1]:
        often.record(record)
    assert often.bill(at(5)) == once.bill(at(5))


def test_owned_nodes_cost_nothing_but_their_hours_are_counted() -> None:
    """usd stays 0, GPU hours do not."""
    meter = Meter(TARIFFS)
    meter.record(status(1.0, 1.0, pool="r/b/owned"))
    bill = meter.bill(at(2))
    assert bill.usd == 0.0
    assert bill.gpu_hours == {"H100-SXM": pytest.approx(8.0)}


def test_an_unknown_pool_is_named() -> None:
    """A status of a pool without tariff is refused."""
    with pytest.raises(InvalidValue, match=r"status.pool"):
        Meter(TARIFFS).record(status(1.0, pool="r/x/spot"))
