"""Prices and availability from files: their effect in a simulation, and refused files."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.supply_script import NodesLimited, PriceChanged
from streams.files.user_errors import UserError
from streams.tools.backtest.supply_files import TraceTime, load_supply
from tests.unit.simulation.simulation_builders import OD, ONE, SPOT, cluster, evenly


def written(folder: Path, text: str) -> str:
    path = folder / "supply.csv"
    path.write_text(text)
    return str(path)


def test_rows_become_events_and_the_last_one_before_the_start_counts(tmp_path: Path) -> None:
    text = f"time,pool,price,nodes\n90,{OD},,3\n10,{OD},2.5,\n50,{OD},4,1\n5,{OD},2,\n"
    found = load_supply([written(tmp_path, text)], cluster(), 20.0, 240.0)
    assert found == (
        PriceChanged(0.0, OD, 2.5),
        PriceChanged(270.0, OD, 4.0),
        NodesLimited(270.0, OD, 1),
        NodesLimited(310.0, OD, 3),
    )


def test_a_file_of_steps_applies_to_the_pool_in_its_option(tmp_path: Path) -> None:
    path = written(tmp_path, "0,4\n60,4\n60,2\n")
    found = load_supply([f"{OD}={path}"], cluster(), 0.0, 0.0)
    assert found == (NodesLimited(0.0, OD, 4), NodesLimited(60.0, OD, 4), NodesLimited(60.0, OD, 2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "columns time, pool"),
        ("time,pool\n", "columns time, pool"),
        (f"time,pool,price\n-1,{OD},2\n", ":2: time: '-1'"),
        (f"time,pool,price\n1,{OD},nan\n", ":2: price: 'nan'"),
        (f"time,pool,nodes\n1,{OD},2.5\n", "not a whole number"),
        ("time,pool,nodes\n1,moon,2\n", "pool: 'moon' is not one of"),
        (f"time,pool,nodes\n1,{OD}\n", ":2: 2 columns, expected 3"),
    ],
)
def test_an_invalid_file_is_refused_in_one_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as refused:
        load_supply([written(tmp_path, text)], cluster(), 0.0, 0.0)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_newest_nodes_above_the_limit_get_notice_and_are_reclaimed() -> None:
    where = cluster()
    script = (NodesLimited(100.0, OD, 1, notice_s=60.0),)
    simulator = Simulator(Scenario(where, [], 200.0, 0.0, script), FixedFleet({ONE: 3}, where, {}))
    simulator.advance(120.0)
    told = [status.node for status in simulator.statuses.values() if status.reclaim_ms]
    assert len(told) == 2
    assert all(simulator.nodes[name].up for name in told)
    simulator.advance(170.0)
    assert not any(simulator.nodes[name].up for name in told)
    simulator.advance(200.0)
    spans = {span.node: span.to_s for span in simulator.finish().nodes}
    assert sorted(spans.values()) == [160.0, 160.0, 200.0]
    assert {node for node, end_s in spans.items() if end_s == 160.0} == set(told)


def test_launches_beyond_the_limit_fail() -> None:
    where = cluster()
    script = (NodesLimited(0.0, OD, 1),)
    simulator = Simulator(
        Scenario(where, evenly(0, 0.1), 60.0, 0.0, script), FixedFleet({ONE: 2}, where, {})
    )
    simulator.advance(60.0)
    assert len({span.node for span in simulator.finish().nodes}) == 1


def test_dates_are_those_of_the_trace_if_both_overlap(tmp_path: Path) -> None:
    """The trace begins at 09:00, and prices change at 09:05 and 09:15. The price of 08:00 applies
    at its start.
    """
    nine_s = 1_795_165_200.0  # 2026-11-20T09:00:00Z
    text = (
        f"time,pool,price\n2026-11-20T09:05:00+00:00,{OD},3\n2026-11-20 09:15:00,{OD},4\n"
        f"{nine_s - 3600},{OD},2\n"
    )
    path, notes = written(tmp_path, text), list[str]()
    times = TraceTime(nine_s, 3600.0)
    assert load_supply([path], cluster(), 0.0, 0.0, times, notes) == (
        PriceChanged(0.0, OD, 2.0),
        PriceChanged(300.0, OD, 3.0),
        PriceChanged(900.0, OD, 4.0),
    )
    assert notes == ["dates of --supply are those of the trace"]


@pytest.mark.parametrize("origin_s", [None, 1_700_000_000.0])
def test_dates_count_from_the_first_if_the_trace_has_none_or_others(
    tmp_path: Path, origin_s: float | None
) -> None:
    text = f"time,pool,price\n2026-11-20T09:00:00Z,{OD},3\n2026-11-20T09:05:00Z,{OD},4\n"
    path, notes = written(tmp_path, text), list[str]()
    times = TraceTime(origin_s, 3600.0)
    assert load_supply([path], cluster(), 0.0, 10.0, times, notes) == (
        PriceChanged(0.0, OD, 3.0),
        PriceChanged(310.0, OD, 4.0),
    )
    assert notes == ["the first date of --supply counts as the start of the trace"]


def test_a_clouds_price_history_is_of_the_pools_with_its_instance_types(tmp_path: Path) -> None:
    path = tmp_path / "history.csv"
    path.write_text(
        "AvailabilityZone,InstanceType,ProductDescription,SpotPrice,Timestamp\n"
        "eua,g6e.xlarge,Linux/UNIX,0.9,2026-11-20T10:00:00Z\n"
        "eu,g6e.xlarge,Linux/UNIX,0.8,2026-11-20T09:00:00Z\n"
    )
    times = TraceTime(None, 3600.0, {SPOT: "g6e.xlarge", "else/x/spot": "g6e.xlarge"})
    assert load_supply([str(path)], cluster(), 0.0, 0.0, times) == (PriceChanged(0.0, SPOT, 0.8),)
    path.write_text("region,instance_type,price\neu,g6e.xlarge,1\n")
    times = TraceTime(None, 3600.0, {OD: "g6e.xlarge"})
    with pytest.raises(UserError, match="prices without a time; allowed: a price history"):
        load_supply([str(path)], cluster(), 0.0, 0.0, times)


def test_prices_in_another_currency_need_its_rate(tmp_path: Path) -> None:
    path = written(tmp_path, f"time,pool,price,currency\n0,{OD},2.0,EUR\n")
    with pytest.raises(UserError, match="'EUR' is not allowed"):
        load_supply([path], cluster(), 0.0, 0.0)
    times = TraceTime(None, 60.0, {}, {"EUR": 1.5})
    assert load_supply([path], cluster(), 0.0, 0.0, times) == (PriceChanged(0.0, OD, 3.0),)
