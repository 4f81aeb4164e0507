"""Metrics of the controller: documented names, and desired replicas for external scalers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from autoscaler.decide import restore
from autoscaler.domain.cluster import Cluster, Policy
from autoscaler.domain.reason import Reason
from streams.health.metric_names import BY_NAME, METRICS
from streams.loop.tick_loop import TickResult
from tests.unit.health.served_controller import (
    NOW_MS,
    POOL,
    TINY,
    Made,
    get,
)
from topics.reason_codes import ReasonCode
from topics.records import Control, Price, Telemetry


async def test_every_sample_has_a_documented_name_and_labels(made: Made) -> None:
    made.loop.latest.take(Price(POOL.id, 1.5, NOW_MS), 0)
    made.loop.latest.dropped.undeclared["status"] += 1
    made.run(1, 5)
    _, text = await get(made, "/metrics")
    seen = set()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            for suffix in ("_bucket", "_count", "_sum"):
                if name.removesuffix(suffix) in BY_NAME:
                    name = name.removesuffix(suffix)
            assert set(sample.labels) - {"le"} == set(BY_NAME[name].labels)
            seen.add(name)
    quiet = {"shoal_alerts_total", "shoal_telemetry_age_seconds", "shoal_slo_attained_ratio"}
    quiet |= {"shoal_demand_requests_per_second", "shoal_refused_records_total"}
    # No model has adapters, and the fleet has no budget.
    quiet |= {"shoal_adapter_requests_per_second", "shoal_budget_usd_per_hour"}
    assert seen >= set(BY_NAME) - quiet


def test_the_documentation_lists_exactly_the_metrics() -> None:
    text = Path("docs/reference/metrics.md").read_text()
    for metric in METRICS:
        labels = ", ".join(metric.labels) or "-"
        assert f"| `{metric.name}` | {metric.kind} | {labels} | {metric.meaning} |" in text


async def value_of(made: Made, name: str, **labels: str) -> float:
    """The value of the one sample with this name and these labels."""
    _, text = await get(made, "/metrics")
    (value,) = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and sample.labels == labels
    ]
    return value


async def test_requests_are_counted_by_whether_they_met_the_slo(made: Made) -> None:
    """Failed and refused requests missed it. A repeated record counts once."""
    served = Telemetry(
        "tiny", "g", "b", 1, NOW_MS, 1000, 0, 10, 6, 2, 1, 5, 90, 60, 30, 0, 0,
    )  # fmt: skip
    made.run(1, 1)
    for _ in range(2):
        made.loop.windows.add(served, NOW_MS)
    made.run(2, 2)
    assert await value_of(made, "shoal_requests_total", model="tiny", slo="met") == 5.0
    assert await value_of(made, "shoal_requests_total", model="tiny", slo="missed") == 4.0
    assert await value_of(made, "shoal_slo_promised_ratio", model="tiny") == TINY.percentile


async def test_the_budget_is_a_metric_if_there_is_one(made: Made) -> None:
    made.cluster = Cluster((POOL,), (TINY,), policy=Policy(budget_usd_per_h=7.5))
    made.run(1, 1)
    assert await value_of(made, "shoal_budget_usd_per_hour") == 7.5


async def desired(made: Made) -> list[float]:
    _, text = await get(made, "/metrics")
    return [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "shoal_desired_replicas"
    ]


async def test_desired_replicas_are_absent_before_the_first_plan_and_kept_during_a_pause(
    made: Made,
) -> None:
    """A missing value must not count as 0."""
    made.run(1, 1)
    assert await desired(made) == []
    made.run(2, 5)
    (before,) = await desired(made)
    assert before >= 1.0
    made.loop.latest.take(Control("tiny", "pause", True, "ann", "why", NOW_MS), 0)
    made.run(6, 8)
    assert await desired(made) == [before]


async def test_a_controller_that_stopped_leading_shows_no_fleet(made: Made) -> None:
    """Its last counts would mix with those of the present leader."""
    made.loop.latest.take(Price(POOL.id, 1.5, NOW_MS), 0)
    made.run(1, 5)
    assert len(await desired(made)) == 1
    made.leads = False
    _, text = await get(made, "/metrics")
    assert "shoal_leader 0" in text and "shoal_ticks_total 5" in text
    of_models = ("shoal_desired", "shoal_held", "shoal_cost", "shoal_supply_age", "shoal_combos")
    assert not [line for line in text.splitlines() if line.startswith(of_models) or "tiny" in line]
    assert (await get(made, "/v1/explain/tiny"))[0] == 404
    facts = json.loads((await get(made, "/v1/status"))[1])
    assert (facts["leads"], facts["models"], facts["usd_per_h"]) == (False, [], None)


async def test_a_withdrawn_model_has_a_count_of_zero(made: Made) -> None:
    """If the series disappeared, the external scaler would keep the old count."""
    made.run(1, 5)
    assert min(await desired(made)) >= 1.0
    made.cluster = Cluster((POOL,), (dataclasses.replace(TINY, model="other"),))
    made.run(6, 6)
    assert await desired(made) == [0.0]


@pytest.mark.parametrize("held", ["tiny/pause", "*/release", "tiny/undeclared"])
async def test_an_undeclared_model_that_keeps_running_keeps_its_count(
    made: Made, held: str
) -> None:
    """The external scaler must not remove its instances."""
    made.run(1, 5)
    before, tell = await desired(made), made.loop.watchers[0]

    def say_held(done: TickResult) -> None:
        tell(
            dataclasses.replace(
                done,
                after=dataclasses.replace(
                    done.after,
                    declared=dataclasses.replace(
                        done.after.declared, controls={held: Reason(ReasonCode.RELEASED)}
                    ),
                ),
            )
        )

    made.loop.watchers = (say_held,)
    made.cluster = Cluster((POOL,), (dataclasses.replace(TINY, model="other"),))
    made.run(6, 6)
    assert await desired(made) == before


async def test_counts_of_an_earlier_term_are_dropped(made: Made) -> None:
    """Another leader planned in the meantime. A paused model keeps the count of that leader."""
    made.run(1, 5)
    assert len(await desired(made)) == 1
    made.token = 9
    made.loop.begin(restore(made.cluster, {}, {}, {}, (), NOW_MS, leader_token=9))
    made.loop.latest.take(Control("tiny", "pause", True, "ann", "why", NOW_MS), 0)
    made.run(6, 8)
    assert await desired(made) == []


async def test_a_controller_that_leads_again_shows_no_counts_of_its_earlier_term(
    made: Made,
) -> None:
    """Other controllers have led in the meantime. Their last counts stay valid until the first
    tick.
    """
    made.run(1, 5)
    assert len(await desired(made)) == 1
    made.now_s = made.loop.seated_s = 4 * 3600.0
    made.token = 9
    made.now_s += 2.0
    _, text = await get(made, "/metrics")
    assert "shoal_leader 1" in text and "shoal_tick_age_seconds 2.0" in text
    assert "tiny" not in text
    assert (await get(made, "/healthz"))[0] == 200
