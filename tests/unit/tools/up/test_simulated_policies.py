"""Other policies get the requests, events and span of the run."""

from __future__ import annotations

from array import array
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoscaler.domain.cluster import Mode
from autoscaler.simulation.supply_script import LaunchesFail, NodesLost, PriceChanged
from streams.cli.up import _compare as compare
from streams.files.shoal_yaml import load_config
from streams.tools.replay.demand_changes import DemandChange
from streams.tools.replay.traces import Trace
from streams.tools.up import simulated_policies
from streams.tools.up.run_options import Wishes
from streams.tools.up.run_state import Picture
from streams.tools.up.scenario_file import DemandChanged
from streams.tools.up.session import Session
from streams.tools.up.simulated_policies import simulated, world
from streams.tools.up.trace_facts import Span, Traffic

CONFIG = Path(__file__).parents[2] / "simulation" / "mini.yaml"
CLUSTER = load_config(CONFIG).cluster
POOL = "eu-west/l40s/spot"
TRACE = Trace(
    Path("trace.csv"), "plain",
    array("d", [1000.0 * second for second in range(60)]),
    array("q", [200] * 60),
    array("q", [50] * 60),
)  # fmt: skip


def test_the_world_has_the_requests_that_were_sent_and_the_events_at_their_times() -> None:
    events = (
        PriceChanged(0.0, POOL, 0.9),
        DemandChanged(0.0, DemandChange(0.0, 10_000.0, 3.0)),
        LaunchesFail(10.0, POOL, 20.0),
        NodesLost(30.0, POOL, 1, 40.0),
    )
    found = world(CLUSTER, TRACE, events, 1, Span(50.0, 70.0, 45))
    assert found is not None
    assert (found.lead_s, found.duration_s, len(found.arrivals)) == (50.0, 70.0, 45)
    assert sum(arrival.at_s < 20.0 for arrival in found.arrivals) == 40
    assert found.script == (
        PriceChanged(0.0, POOL, 0.9),
        LaunchesFail(60.0, POOL, 70.0),
        NodesLost(80.0, POOL, 1, 90.0),
    )
    assert world(CLUSTER, TRACE, (), 1, Span(50.0, 70.0, 0)) is None


def test_each_policy_has_a_cost_and_a_share_until_the_time_is_over() -> None:
    services = tuple(replace(one, req_per_s=1.0) for one in CLUSTER.services)
    scenario = world(replace(CLUSTER, services=services), TRACE, (), 1, Span(120.0, 60.0, 60))
    assert scenario is not None
    clock = iter((0.0, 0.0, 99.0))
    found = list(simulated(scenario, lambda: next(clock), 20.0, ("hpa-rate", "skyserve", "shoal")))
    assert [one.policy for one in found] == ["hpa-rate", "skyserve"]
    for one in found:
        assert one.usd > 0.0
        assert one.slo_attainment == one.least == 1.0


def test_a_policy_that_cannot_serve_the_fleet_is_left_out(tmp_path: Path) -> None:
    """Policies of replicas have no instance over several nodes, which Shoal has."""
    config = tmp_path / "shoal.yaml"
    config.write_text(
        "regions: {eu: {l40s: {gpu: L40S, per_node: 1, max: 6, price: 1.9}}}\n"
        "engines: {default: {pipelines: same-slice}}\n"
        "models: {big: {source: Qwen/Qwen3-32B, slo: {ttft: 10s, tpot: 250ms}, max_len: 8192,\n"
        "  workload: {input: 200, output: 60, req_per_s: 1}, disaggregate: false}}\n"
    )
    cluster = load_config(config, mode=Mode.ACT, cautious=False).cluster
    scenario = world(cluster, TRACE, (), 1, Span(120.0, 60.0, 20))
    assert scenario is not None
    found = simulated(scenario, lambda: 0.0, 20.0, ("hpa-rate", "shoal"))
    assert [one.policy for one in found] == ["shoal"]


@pytest.mark.parametrize(("scenario", "names"), [("day", ["skyserve"]), ("", [])])
def test_the_summary_of_a_scenario_gets_the_simulated_policies(
    scenario: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of the user's own trace ends at once."""
    trace = tmp_path / "trace.csv"
    rows = (f"{second},mini,200,50" for second in range(60))
    trace.write_text("\n".join(["time,model,input_tokens,output_tokens", *rows]) + "\n")
    config = load_config(CONFIG)
    wishes = replace(
        Wishes(config, CONFIG, trace, Traffic(60, 60.0), 10.0, 0.0, "", 0, 1),
        scenario=(scenario, ""),
    )
    picture, span = Picture(config.cluster), Span(120.0, 60.0, 60)
    ended = SimpleNamespace(picture=picture, ended_ms=1_000, span=lambda _: span)
    one = partial(simulated, names=("skyserve",))
    monkeypatch.setattr(simulated_policies, "simulated", one)
    summary: dict[str, Any] = {"requests": {"sent": 60}, "otherwise": [], "simulated": []}
    compare(summary, cast(Session, ended), wishes, [])
    assert [row["policy"] for row in summary["simulated"]] == names
