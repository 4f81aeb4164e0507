"""Node hours: a node counts from its first launch until its first status without instances."""

import pytest

from autoscaler.serving.billing import Bill
from topics.fleet import InstanceState, ObservedInstance, Status

HOUR_MS = 3_600_000
PRICES = {"r/a/spot": 2.0, "r/b/owned": 0.0}


def status(at_h: float, *launched_h: float, node: str = "n", pool: str = "r/a/spot") -> Status:
    instances = tuple(
        ObservedInstance(
            f"i{i}", "m", "aggregated", "g", InstanceState.READY, (i,),
            launched_ms=int(h * HOUR_MS) if h >= 0 else 0,
        )
        for i, h in enumerate(launched_h)
    )  # fmt: skip
    return Status(node, pool, "ex", 1, int(at_h * HOUR_MS), instances)


def billed(*records: Status) -> Bill:
    bill = Bill(PRICES, 0)
    for record in records:
        bill.record(record)
    return bill


def usd(bill: Bill, at_h: float) -> float:
    return sum(span.usd for span in bill.until(3600.0 * at_h))


def test_a_node_is_billed_from_its_first_launch_to_its_release() -> None:
    """The node is launched at 1 h, reported at 1.5 h and empty at 3 h. Two hours are billed for any
    number of instances.
    """
    bill = billed(status(0.5), status(1.5, 1.0), status(2.0, 1.0, 1.8), status(3.0), status(9.0))
    assert usd(bill, 20.0) == pytest.approx(4.0)
    assert [(span.from_s, span.to_s) for span in bill.until(72_000.0)] == [(3600.0, 10800.0)]


def test_an_open_node_is_billed_until_now_and_again_after_a_release() -> None:
    """Two spans add up. The open span grows with the clock, and a query changes nothing."""
    bill = billed(status(1.0, 1.0), status(2.0), status(5.0, 4.0))
    assert [usd(bill, at_h) for at_h in (5.0, 6.0, 5.0)] == pytest.approx([4.0, 6.0, 4.0])
    assert usd(bill, 1.5) == pytest.approx(1.0)


def test_nothing_is_billed_before_a_launch() -> None:
    """An instance that waits for its GPUs has no launch time and costs nothing."""
    assert billed(status(1.0, -1.0)).until(9 * 3600.0) == []


def test_duplicate_statuses_change_nothing() -> None:
    records = [status(1.0, 1.0), status(2.0, 1.0), status(3.0), status(4.0, 3.5)]
    often = billed(*(copy for record in records for copy in (record, record, record)))
    assert often.until(18_000.0) == billed(*records).until(18_000.0)


def test_a_late_duplicate_of_an_older_status_bills_nothing() -> None:
    """The node is launched at 1 h and empty at 3 h. Then the status of 2 h arrives again."""
    bill = billed(status(1.5, 1.0), status(3.0), status(2.0, 1.0))
    assert usd(bill, 20.0) == pytest.approx(4.0)


def test_owned_nodes_cost_nothing_but_their_hours_are_counted() -> None:
    (span,) = billed(status(1.0, 1.0, pool="r/b/owned")).until(7200.0)
    assert (span.usd, span.hours) == (0.0, pytest.approx(1.0))


def test_a_change_of_price_ends_a_span() -> None:
    bill = billed(status(1.0, 1.0))
    bill.reprice("r/a/spot", 6.0, 7200.0)
    assert [span.usd for span in bill.until(10_800.0)] == pytest.approx([2.0, 6.0])


def test_a_price_that_arrives_late_changes_the_bill_as_if_it_had_been_in_time() -> None:
    """The price of 2 h arrives after the node was released at 3 h, and after the price of 2.5 h."""
    bill = billed(status(1.0, 1.0), status(3.0))
    bill.reprice("r/a/spot", 4.0, 9000.0)
    bill.reprice("r/a/spot", 6.0, 7200.0)
    assert usd(bill, 9.0) == pytest.approx(2.0 + 3.0 + 2.0)


def test_a_lost_node_costs_nothing_after_its_last_status_unless_it_reports_again() -> None:
    bill = billed(status(1.5, 1.0))
    assert sum(span.hours for span in bill.reported()) == pytest.approx(0.5)
    bill.record(status(3.0, 1.0))
    assert sum(span.hours for span in bill.reported()) == pytest.approx(2.0)


def test_a_new_node_under_the_name_of_a_lost_one_is_billed_from_its_own_launch() -> None:
    bill = billed(status(1.5, 1.0), status(4.0, 3.5))
    assert [(span.from_s / 3600.0, span.to_s / 3600.0) for span in bill.reported()] == [
        (1.0, 1.5), (3.5, 4.0)
    ]  # fmt: skip


def test_a_settled_bill_is_the_same_and_keeps_no_old_spans_or_prices() -> None:
    """One node runs for 20 h at a price that changes each hour. Another one, at a constant price,
    is lost after 2 h and returns after 15 h. The bill is settled each hour, one hour late."""
    prices = {**PRICES, "r/c/spot": 2.0}
    plain, settled = Bill(prices, 0), Bill(prices, 0)
    for hour in range(1, 21):
        for bill in (plain, settled):
            bill.reprice("r/a/spot", 1.0 + hour % 3, 3600.0 * hour)
            bill.record(status(hour + 0.5, 1.0))
            if hour <= 2 or hour >= 15:
                bill.record(status(hour + 0.5, 1.0, node="away", pool="r/c/spot"))
        settled.settle(3600.0 * (hour - 1))
    assert settled.reported_usd() == pytest.approx(plain.reported_usd())
    assert sum(span.hours for span in plain.reported()) == pytest.approx(2 * 19.5)
    assert len(settled.reported()) <= 6 < len(plain.reported())
    assert len(settled._prices["r/a/spot"]) <= 3


def test_an_empty_status_before_instances_are_adopted_bills_no_hour_twice() -> None:
    """A restarted executor reports an empty node, and then the instances of before."""
    bill = billed(status(1.5, 1.0), status(1.6), status(1.7, 1.0))
    assert usd(bill, 2.0) == pytest.approx(2.0)
