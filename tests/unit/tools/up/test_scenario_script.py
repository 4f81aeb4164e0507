"""The events of a scenario change feeds and nodes at their times, and end by themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.serving.billing import Bill
from autoscaler.simulation.supply_script import (
    AvailabilityChanged,
    LaunchesFail,
    NodesLimited,
    NodesLost,
    PriceChanged,
)
from streams.files.shoal_yaml import load_config
from streams.tools.replay.demand_changes import DemandChange
from streams.tools.up.scenario_file import (
    SHIPPED,
    DemandChanged,
    ScenarioEvent,
    open_scenario,
    read_events,
    read_settings,
)
from streams.tools.up.scenario_script import ScenarioScript
from tests.unit.tools.up.status_records import instance
from topics.records import InstanceState, Status
from topics.supply import Availability, Price

POOL = "eu-west/l4/spot"
CONFIG = Path(__file__).parents[4] / "streams" / "data" / "demo.yaml"


@pytest.fixture
def demo() -> Cluster:
    """The demo's cluster."""
    return load_config(CONFIG).cluster


class Stage:
    """A script with `rented` nodes of a pool, driven second by second. Node n was launched at
    second n."""

    def __init__(self, cluster: Cluster, *events: ScenarioEvent, rented: int = 0) -> None:
        self.bill = Bill({pool.id: pool.price_usd_per_h for pool in cluster.pools}, 0)
        for n in range(rented):
            started = replace(
                instance(f"i{n}", InstanceState.READY, (0,)), launched_ms=1000 * (n + 1)
            )
            status = Status(f"eu-west.l4.spot.{n}", POOL, "ex", 1, 1000 * (n + 1), (started,))
            self.bill.record(status)
        self.script = ScenarioScript(events, cluster.pools, self.bill)
        self.lines: list[str] = []
        self.lost: list[str] = []

    def at(self, second: float) -> Stage:
        done = self.script.step(second, int(1000 * second) + 100_000)
        self.lines += [event.text for event in done.lines]
        self.lost += done.lost
        return self


def test_a_price_is_published_at_its_time_and_told_in_words(demo: Cluster) -> None:
    stage = Stage(demo, PriceChanged(60.0, POOL, 1.05)).at(59.0)
    assert stage.script.records() == []
    stage.at(60.0)
    assert stage.script.records() == [Price(POOL, 1.05, 160_000)]
    assert stage.lines == ["L4 spot nodes in eu-west rise from 0.32 to 1.05 USD/h"]


def test_before_the_trace_begins_only_events_of_its_start_apply(demo: Cluster) -> None:
    events = AvailabilityChanged(0.0, POOL, 3), AvailabilityChanged(1.0, POOL, 1)
    stage = Stage(demo, *events).at(-1.0)
    assert stage.script.records() == [Availability(POOL, 3, 99_000)]


def test_the_newest_nodes_above_a_limit_get_a_notice_and_are_gone_after_it(demo: Cluster) -> None:
    stage = Stage(demo, NodesLimited(60.0, POOL, 1, 120.0), rented=3).at(60.0)
    assert stage.script.faults()["reclaim_ms"] == {
        "eu-west.l4.spot.2": 280_000,
        "eu-west.l4.spot.1": 280_000,
    }
    assert "eu-west.l4.spot.2 is reclaimed in 2 min" in stage.lines
    assert stage.script.records() == [Availability(POOL, 0, 160_000)]
    stage.at(179.0)
    assert stage.lost == []
    stage.at(180.0)
    assert stage.lost == ["eu-west.l4.spot.2", "eu-west.l4.spot.1"]
    assert stage.script.faults()["reclaim_ms"] == {}
    stage.at(480.0)
    assert stage.script.faults()["lost"] == [], "the machines can be rented again"


def test_launches_fail_for_the_given_time(demo: Cluster) -> None:
    stage = Stage(demo, LaunchesFail(60.0, POOL, 360.0)).at(61.0)
    assert stage.script.faults()["failing"] == [POOL]
    stage.at(361.0)
    assert stage.script.faults()["failing"] == []
    assert stage.lines == [
        "launches on L4 spot nodes in eu-west fail for 5 min",
        "launches on L4 spot nodes in eu-west work again",
    ]


def test_lost_nodes_come_back_if_the_event_says_so(demo: Cluster) -> None:
    owned = "us-east/h100/owned"
    stage = Stage(demo, NodesLost(60.0, owned, 1, 120.0), NodesLost(70.0, POOL, 1), rented=2)
    stage.at(60.0).at(70.0)
    assert stage.lost == ["us-east.h100.owned.0", "eu-west.l4.spot.1"]
    stage.at(120.0).at(100_000.0)
    assert stage.script.faults()["lost"] == ["eu-west.l4.spot.1"]


def test_a_change_of_demand_is_told_at_its_start_and_end(demo: Cluster) -> None:
    change = DemandChange(60_000.0, 120_000.0, 1.5, "code")
    stage = Stage(demo, DemandChanged(60.0, change)).at(60.0).at(119.0)
    assert stage.lines == ["demand for code is 1.5 times the trace's for 1 min"]
    stage.at(120.0)
    assert stage.lines[1:] == ["demand for code is that of the trace again"]


def test_feeds_are_published_again_so_that_they_do_not_count_as_silent(demo: Cluster) -> None:
    stage = Stage(demo, PriceChanged(0.0, POOL, 1.0)).at(0.0)
    first = stage.script.records()
    stage.at(400.0)
    (again,) = stage.script.records()
    assert again != first[0]
    assert again == Price(POOL, 1.0, 500_000)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_event_of_a_shipped_scenario_is_told(name: str) -> None:
    root = open_scenario(name)
    cluster = load_config(read_settings(root).config).cluster
    events = read_events(root, cluster)
    stage = Stage(cluster, *events, rented=1 if name != "roles" else 0)
    for second in range(0, 3600, 5):
        before = len(stage.lines)
        due = [e for e in events if second - 5 < e.at_s <= second and not isinstance(e, NodesLost)]
        stage.at(float(second))
        assert len(stage.lines) - before >= len(due)
