"""The bill in spans against `serving.billing`."""

from __future__ import annotations

import pytest

from autoscaler.serving.billing import Meter, Tariff
from autoscaler.simulation import node
from autoscaler.simulation.bill import Bill
from autoscaler.simulation.world import ORIGIN_MS
from tests.unit.simulation.worlds import ONE, SPOT, cluster, evenly, world
from topics.fleet import Status


def test_spans_add_up_to_what_the_meter_bills(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same statuses, folded by the meter that `shoal up` bills with."""
    meter = Meter({pool.id: Tariff(pool.price_usd_per_h, "L40S", 1) for pool in cluster().pools})
    one = world({ONE: 2, f"mini:a1@{SPOT}": 1}, evenly(50, 1.0), 100.0)
    told = one.tell

    def tell(status: Status) -> None:
        meter.record(status)
        told(status)

    monkeypatch.setattr(one, "tell", tell)
    timeline = one.run()
    spans_usd = sum(span.usd for span in timeline.nodes)
    assert spans_usd == pytest.approx(meter.bill(ORIGIN_MS + 220_000).usd, abs=1e-9)
    assert spans_usd > 0.0


def test_a_node_without_instances_is_billed_no_longer() -> None:
    bill = Bill({"p": 3.6}, 0)
    seen = node.ObservedInstance("i", "m", "aggregated", "g", node.InstanceState.STARTING, (0,))
    launched = node.replace(seen, launched_ms=1000)
    for at_ms, instances in ((500, (seen,)), (1500, (launched,)), (5000, ()), (9000, ())):
        bill.record(Status("n", "p", "e", 1, at_ms, instances))
    bill.close(100.0)
    assert [(s.from_s, s.to_s) for s in bill.spans] == [(1.0, 5.0)]
    assert sum(s.usd for s in bill.spans) == pytest.approx(0.004)
