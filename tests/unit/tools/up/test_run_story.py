"""The end of a run tells each event with its decisions, and what was saved and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoscaler.serving.billing import NodeSpan
from streams.files.shoal_yaml import load_config
from streams.tools.up.event_log import Event
from streams.tools.up.observed_demand import DemandSeen
from streams.tools.up.run_story import (
    Chapter,
    chapters,
    mean_share_of_peak,
    policy_lines,
    saving_lines,
    spot_saving_usd,
    story_lines,
)
from tests.unit.tools.up.status_records import telemetry

CONFIG = Path(__file__).parents[4] / "streams" / "data" / "demo.yaml"


def event(at_s: float, text: str) -> Event:
    return Event(int(1000 * at_s), text, scripted=True)


def decision(at_s: float, text: str) -> Event:
    return Event(int(1000 * at_s), text, decision=True)


def test_decisions_follow_the_last_event_before_them() -> None:
    story = [
        decision(1.0, "the first fleet"),
        event(60.0, "a price rises"),
        decision(61.0, "replan"),
        Event(62_000, "an instance was lost", bad=True),
        event(100.0, "a node is reclaimed"),
        event(100.5, "another one too"),
        decision(101.0, "replace"),
        decision(900.0, "much later"),
    ]
    assert chapters(story) == [
        Chapter(60_000, "a price rises", ("+01:01 replan",)),
        Chapter(100_000, "a node is reclaimed; another one too", ("+01:41 replace",)),
    ]
    assert [then for one in chapters(story, 30_000) for then in one.then] == [
        "+00:31 replan",
        "+01:11 replace",
    ]


def test_the_story_names_the_rest_and_events_without_a_decision() -> None:
    story = [
        {"at_s": 60.0, "what": "a price rises", "then": []},
        {"at_s": 90.0, "what": "a pool fails", "then": ["a", "b", "c", "d", "e"]},
    ]
    assert story_lines(story) == [
        "  +01:00 a price rises",
        "  +01:30 a pool fails",
        "    a",
        "    b",
        "    c",
        "    and 2 more decisions",
    ]
    assert story_lines([]) == []


def summary(**more: Any) -> dict[str, Any]:
    return {
        "cost_usd": 4.0,
        "otherwise": [],
        "mean_share_of_peak": 0.62,
        "spot_saving_usd": 0.0,
        "slo_attainment": 0.985,
        "models": {"chat": {"slo_attainment": 1.0}, "code": {"slo_attainment": 0.964}},
        **more,
    }


def test_each_model_alone_is_not_repeated_if_no_nodes_were_shared() -> None:
    alone = {"what": "each model alone", "usd": 3.7, "unserved": 0.0}
    together = {"what": "all models together", "usd": 3.7, "unserved": 0.0}
    (line,) = saving_lines(summary(otherwise=[alone, together]))
    assert line.startswith("all models together would have cost 3.70 USD")


def test_savings_are_told_with_their_reason() -> None:
    others = [
        {"what": "one rented GPU type", "usd": 8.0, "unserved": 0.0, "gpu": "L40S"},
        {"what": "each model alone", "usd": 3.9, "unserved": 0.0},
        {"what": "all models together", "usd": 3.7, "unserved": 0.0},
    ]
    assert saving_lines(summary(otherwise=others, spot_saving_usd=0.5)) == [
        "4.00 USD (50%) less than one rented GPU type (L40S): each model runs on the GPU that "
        "serves it cheapest",
        "0.10 USD more than each model alone, which has demand known in advance and nodes that "
        "start at once",
        "all models together would have cost 3.70 USD with demand known in advance and nodes that "
        "start at once; the other 0.30 USD paid for start-ups, drains, reserves and lost nodes",
        "spot nodes cost 0.50 USD less than on-demand nodes of the same kind",
    ]


def test_a_reason_is_given_only_if_the_same_plan_shows_it() -> None:
    """All models together cost as much as each alone, so shared nodes saved nothing."""
    others = [
        {"what": "each model alone", "usd": 5.0, "unserved": 0.0},
        {"what": "all models together", "usd": 5.0, "unserved": 0.0},
    ]
    alone = "1.00 USD (20%) less than each model alone"
    assert saving_lines(summary(otherwise=others)) == [
        f"{alone}; all models planned together would have cost as much"
    ]
    others[1]["usd"] = 4.5
    assert saving_lines(summary(otherwise=others)) == [f"{alone}: models share nodes"]


def test_a_comparison_that_serves_less_is_no_saving() -> None:
    others = [{"what": "each model alone", "usd": 3.0, "unserved": 0.2}]
    assert saving_lines(summary(otherwise=others))[0] == (
        "each model alone would have served 80% of the demand, for 3.00 USD"
    )
    assert saving_lines(summary()) == []


def test_spot_saves_the_difference_to_on_demand_nodes_of_the_same_kind() -> None:
    cluster = load_config(CONFIG).cluster
    spans = [
        NodeSpan("a", "eu-west/l40s/spot", 0.76, 0.0, 3600.0),
        NodeSpan("b", "eu-west/l40s/spot", 2.60, 0.0, 1800.0),
        NodeSpan("c", "eu-west/l40s/on-demand", 1.90, 0.0, 3600.0),
        NodeSpan("d", "us-east/h100/owned", 0.0, 0.0, 3600.0),
    ]
    assert spot_saving_usd(spans, cluster) == pytest.approx(1.14 - 0.35)


def test_the_mean_share_of_the_peak_is_unknown_without_demand() -> None:
    seen = DemandSeen()
    assert mean_share_of_peak(seen) is None
    seen.add(telemetry(arrivals=40, span_ms=60_000))
    assert mean_share_of_peak(seen) == pytest.approx(1.0)


def test_a_simulated_policy_that_costs_less_and_meets_more_is_called_better() -> None:
    others = [
        {"policy": "hpa-rate", "usd": 3.5, "slo_attainment": 0.99, "least": 0.98},
        {"policy": "skyserve", "usd": 3.5, "slo_attainment": 0.95, "least": 0.9},
        {"policy": "hpa-utilization", "usd": 4.5, "slo_attainment": 0.96, "least": 0.9},
    ]
    found = list(policy_lines(summary(simulated=others, slo_attainment=0.97)))
    assert found == [
        "0.50 USD more than hpa-rate, 2.0 points fewer within the SLO: it would have been better",
        "0.50 USD more than skyserve, 2.0 points more within the SLO",
        "0.50 USD less than hpa-utilization, 1.0 points more within the SLO",
    ]
    assert not list(policy_lines(summary(simulated=others, slo_attainment=None)))
