"""Facts about the trace of a run: duration, gaps, and the demand of its first minutes."""

from __future__ import annotations

import math
from array import array
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Mode
from streams.files.plan_inputs import with_workload
from streams.files.shoal_yaml import load_config
from streams.tools.replay.request_schedule import schedule
from streams.tools.replay.traces import Trace
from streams.tools.up.trace_facts import Gap, gaps, traffic, with_first_minutes

SAMPLE = Path(__file__).parents[2] / "files" / "sample.yaml"


def trace(*arrivals_s: float, tokens: int = 100) -> Trace:
    n = len(arrivals_s)
    arrivals = array("d", [at * 1000.0 for at in arrivals_s])
    return Trace(Path("t"), "aibrix", arrivals, array("q", [tokens] * n), array("q", [10] * n))


def test_the_last_request_of_a_trace_is_sent() -> None:
    whole = trace(0.0, 1.0, 2.5)
    jobs = schedule(whole, {"mini": 1.0}, {}, 1, math.inf)
    assert len(jobs) == traffic(whole).requests == 3
    assert jobs[-1].at_ms == traffic(whole).duration_s * 1000.0


def test_a_gap_is_a_minute_and_much_longer_than_usual() -> None:
    steady = [float(second) for second in range(300)]
    assert gaps(trace(*steady).arrivals_ms) == ()
    later = [second + 720.0 for second in steady[100:]]
    assert gaps(trace(*steady[:100], *later).arrivals_ms) == (Gap(99.0, 820.0),)
    sparse = [90.0 * number for number in range(40)]
    assert gaps(trace(*sparse).arrivals_ms) == (), "that is how it always is"
    late = [second + 600.0 for second in steady]
    assert gaps(trace(*late).arrivals_ms) == (Gap(0.0, 600.0),)


def test_models_without_a_rate_are_planned_for_the_first_minutes_of_the_trace() -> None:
    """Each such model gets its share of those minutes and their lengths. A declared rate stays."""
    cluster = load_config(SAMPLE, Mode.ACT).cluster
    busy = trace(*(60.0 + second / 8.0 for second in range(8 * 300)), *(1000.0, 1001.0))
    found = with_first_minutes(cluster, busy, seed=1)
    assert set(found) == {"chat", "code", "mini"}
    assert sum(demand.req_per_s for demand in found.values()) == pytest.approx(8.0, rel=0.01)
    assert found["mini"].req_per_s == pytest.approx(0.4 * 8.0, rel=0.1)
    assert found["mini"].lengths.input_tokens == pytest.approx(100.0)
    filled = with_workload(cluster, found)
    assert filled.service("mini").req_per_s == found["mini"].req_per_s
    assert filled.service("mini").lengths == found["mini"].lengths
    assert with_first_minutes(filled, busy, seed=1) == {}
