"""The cost of a run's demand under other policies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster, Market, Mode
from autoscaler.domain.workload import Demand
from autoscaler.performance.catalog import gpu
from autoscaler.performance.packaged_profile import default_profile
from streams.files.shoal_yaml import load_config
from streams.tools.up import observed_demand
from streams.tools.up.counterfactual_cost import Comparisons, Window, windows
from streams.tools.up.observed_demand import DemandSeen
from tests.unit.tools.up.status_records import NOW_MS, telemetry

START_MS = NOW_MS - NOW_MS % 60_000
CONFIG = """
defaults: {utilization: 0.8}
regions:
  eu:
    l4: {gpu: L4, per_node: 1, max: 20, price: 0.85}
    l40s: {gpu: L40S, per_node: 1, max: 16, price: 1.90}
models:
  mini: {source: openai/gpt-oss-20b, slo: {ttft: 2s, tpot: 60ms}, max_len: 8192}
  small: {source: meta-llama/Llama-3.1-8B-Instruct, slo: {ttft: 2s, tpot: 60ms}, max_len: 8192}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG)
    return load_config(path, Mode.ACT).cluster


def demand_of(minutes: int, rate_of: dict[str, list[int]]) -> DemandSeen:
    """Telemetry of whole minutes, one record per second. rate_of: the rates of each model by
    minute.
    """
    found = DemandSeen()
    for model, rates in rate_of.items():
        for minute in range(minutes):
            for second in range(60):
                end_ms = START_MS + minute * 60_000 + second * 1000 + 500
                record = telemetry(
                    model, sequence=minute * 60 + second, end_ms=end_ms, arrivals=rates[minute],
                    input_tokens_arrived=200 * rates[minute], completions=rates[minute],
                    output_tokens=60 * rates[minute], attained=rates[minute],
                )  # fmt: skip
                found.add(record)
    return found


def comparisons(cluster: Cluster, limit_s: float = 60.0) -> Comparisons:
    return Comparisons(cluster, default_profile(), lambda: 0.0, limit_s)


def test_the_busiest_minute_counts_with_the_mean_lengths() -> None:
    known = demand_of(4, {"mini": [1, 5, 2, 3], "small": [4, 1, 1, 1]})
    assert [(d.model, d.req_per_s) for d in known.peak(known.minutes())] == [
        ("mini", 5.0),
        ("small", 4.0),
    ]
    (mini, small) = known.peak(known.minutes()[2:])
    assert (mini.req_per_s, small.req_per_s) == (3.0, 1.0)
    assert (mini.lengths.input_tokens, mini.lengths.output_tokens) == (200.0, 60.0)


def test_two_gateways_share_the_arrivals_of_a_minute() -> None:
    known = DemandSeen()
    for gateway in ("a", "b"):
        for second in range(60):
            known.add(telemetry(sequence=second, gateway=gateway, end_ms=START_MS + second * 1000))
    (mini,) = known.peak(known.minutes())
    assert mini.req_per_s == pytest.approx(8.0)


def test_a_minute_with_little_telemetry_is_no_peak() -> None:
    known = demand_of(1, {"mini": [2]})
    known.add(telemetry("mini", sequence=99, end_ms=START_MS + 60_500, arrivals=50))
    (mini,) = known.peak(known.minutes())
    assert mini.req_per_s == 2.0


def test_a_long_run_keeps_the_rates_of_its_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = demand_of(6, {"mini": [1, 5, 2, 3, 1, 4]})
    monkeypatch.setattr(observed_demand, "_MOST_OPEN", 2)
    short = demand_of(6, {"mini": [1, 5, 2, 3, 1, 4]})
    assert short.totals() == known.totals()
    assert short.peak(short.minutes()) == known.peak(known.minutes())
    short.add(telemetry("mini", sequence=999, end_ms=START_MS + 500, arrivals=1000))
    assert short.totals() == known.totals()  # its minute is closed


def test_windows_cover_the_whole_billed_time() -> None:
    """They begin with the first launch, before any request, and last to the end."""
    known = demand_of(10, {"mini": [1] * 5 + [4] * 5})
    found = windows(known, START_MS - 120_000, START_MS + 600_000, 300.0)
    assert [round(window.hours * 60.0, 6) for window in found] == [7.0, 5.0]
    assert [window.demands[0].req_per_s for window in found] == [1.0, 4.0]
    assert windows(DemandSeen(), START_MS, START_MS + 60_000, 300.0) == []


def test_each_policy_costs_what_its_plans_cost(cluster: Cluster) -> None:
    known = demand_of(10, {"mini": [2] * 5 + [20] * 5, "small": [30] * 5 + [3] * 5})
    stretches = windows(known, START_MS, START_MS + 600_000, 300.0)
    one = comparisons(cluster)
    best, alone, together = one.all(stretches)
    assert (best.what, alone.what, together.what) == (
        "one GPU type", "each model alone", "all models together"
    )  # fmt: skip
    assert best.detail in ("L4", "L40S")
    assert max(best.unserved, alone.unserved) < 0.005
    # Nodes of one model are nodes of the cluster, so sharing them costs at most the planning gap.
    assert 0.0 < together.usd <= alone.usd * 1.005
    always = [Window(window.hours, known.peak(known.minutes())) for window in stretches]
    assert one.each_model_alone(always).usd > alone.usd > 0.0


def test_a_gpu_too_small_for_a_model_states_the_served_share(cluster: Cluster) -> None:
    pools = tuple(p if p.gpu.name == "L4" else replace(p, max_nodes=0) for p in cluster.pools)
    demands = tuple(Demand(s.model, 5.0, s.lengths) for s in cluster.services)
    found = comparisons(replace(cluster, pools=pools)).one_gpu_type([Window(1.0, demands)])
    assert found is not None
    assert found.detail == "L4"
    nowhere = tuple(replace(p, max_nodes=0) for p in cluster.pools)
    found = comparisons(replace(cluster, pools=nowhere)).one_gpu_type([Window(1.0, demands)])
    assert found is not None
    assert found.unserved == pytest.approx(1.0)


def test_owned_nodes_are_kept_next_to_the_rented_type(cluster: Cluster) -> None:
    """Owned nodes cost nothing, so a fleet of them alone is no alternative to renting."""
    pool = cluster.pools[0]
    owned = replace(
        pool, name="own", gpu=gpu("H100"), market=Market.OWNED, max_nodes=1, max_of_both=0,
        price_usd_per_h=0.0,
    )  # fmt: skip
    more = replace(cluster, pools=(*cluster.pools, owned))
    demands = tuple(Demand(s.model, 30.0, s.lengths) for s in cluster.services)
    found = comparisons(more).one_gpu_type([Window(1.0, demands)])
    assert found is not None
    assert found.what == "one rented GPU type"
    assert found.detail in ("L4", "L40S")
    only = tuple(p for p in more.pools if p.gpu.name != "L4")
    assert comparisons(replace(more, pools=only)).one_gpu_type([Window(1.0, demands)]) is None


def test_the_comparison_ends_at_its_time_limit(cluster: Cluster) -> None:
    known = demand_of(1, {"mini": [2]})
    late = Comparisons(cluster, default_profile(), lambda: 61.0, 60.0)
    assert list(late.all(windows(known, START_MS, START_MS + 60_000, 300.0))) == []
