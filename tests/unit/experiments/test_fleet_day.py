"""The fleet's day: its clients, its market, and the cut that ships."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from loadtests import fleet_day
from streams.files.shoal_yaml import load_config
from streams.tools.backtest.backtest_demand import DEFAULT_CONFIG, load_workload
from streams.tools.backtest.demand_options import Demand
from streams.tools.backtest.supply_files import load_supply

HEAD = "client,window_start_s,rate_rps,cv,pattern,arg1,arg2"
LAWS = {"input_tokens": {"100": 1.0}, "output_tokens": {"10": 1.0}}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two records of 26 clients. Client n has a rate of n / 10 requests/s, and client 3 starts on
    the second day."""
    for name in ("m-large", "mm-image"):
        rows = [
            f"{client},{at_s},{client / 10},1.0,Gamma,1,1"
            for client in range(26)
            for at_s in (0, 600, 90_000)
            if client != 3 or at_s > 600
        ]
        lines = gzip.compress("\n".join([HEAD, *rows]).encode())
        (tmp_path / f"{name}_clients_10min.csv.gz").write_bytes(lines)
        laws = gzip.compress(json.dumps(LAWS).encode())
        (tmp_path / f"{name}_token_hist.json.gz").write_bytes(laws)
    means = "window_start_s,input_tokens_mean,output_tokens_mean\n0,100,10\n90000,200,20\n"
    (tmp_path / "m-large_tokens_by_window.csv.gz").write_bytes(gzip.compress(means.encode()))
    return tmp_path


def test_clients_are_dealt_by_falling_rate(records: Path) -> None:
    found = fleet_day.dealt_clients(records / "m-large_clients_10min.csv.gz", ("a", "b", "c"))
    assert found["a"][:3] == ["25", "22", "19"]
    assert found["b"][:2] == ["24", "21"]
    assert sorted(int(c) for clients in found.values() for c in clients) == list(range(26))


def test_prices_and_nodes_of_the_market_move_within_the_pools(tmp_path: Path) -> None:
    cluster = load_config(fleet_day.CONFIG, cautious=False).cluster
    path = fleet_day.write_market(tmp_path / "market.csv", cluster, fleet_day.DAY_S)
    events = load_supply((str(path),), cluster, 0.0, 240.0)
    assert len(events) > 400
    assert len({event.pool for event in events}) == 6  # type: ignore[union-attr]
    most = {pool.id: pool.max_nodes for pool in cluster.pools}
    limits = [event for event in events if hasattr(event, "nodes")]
    assert all(1 <= event.nodes <= most[event.pool] for event in limits)


def test_the_cut_day_has_the_rates_of_the_first_day_in_a_row_of_clients(records: Path) -> None:
    folder = records / "cut"
    folder.mkdir()
    ranges = fleet_day.cut_day(records, folder)
    path = folder / "fleet_clients_10min.csv.gz"
    traces = tuple(f"{model}={path}#{clients}" for model, clients in ranges.items())
    found = load_workload(Demand(traces, fleet_day.CONFIG, fluid=True), 1).scenario
    assert {one.model for one in found.arrivals} == set(ranges)
    # 25 clients without the one of the second day; a client has n / 10 requests/s for 20 min.
    assert found.requests == pytest.approx(120.0 * (sum(range(26)) - 3), rel=0.02)


def test_the_fleet_that_ships_loads_with_one_trace_per_model() -> None:
    """The ranges are those of streams/data/README.md."""
    readme = DEFAULT_CONFIG.with_name("README.md").read_text()
    command = readme.rpartition("shoal backtest --fluid")[2].partition("```")[0]
    names = [word.partition("=")[::2] for word in command.split() if "#" in word]
    assert {model: file.partition("#")[2] for model, file in names} == fleet_day.CLIENTS
    traces = tuple(f"{model}={fleet_day.RECORD}#{of}" for model, of in fleet_day.CLIENTS.items())
    demand = Demand(traces, fleet_day.CONFIG, fluid=True, to_s=3600.0, rate_scale=0.05)
    found = load_workload(demand, 1).scenario
    assert len(traces) == len(found.cluster.services) == 12
