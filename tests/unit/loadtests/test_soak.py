"""Slopes of a soak, and the repeated scenario."""

from __future__ import annotations

import math
import random
from argparse import Namespace
from pathlib import Path

import pytest

from loadtests.soak import Samples, result
from loadtests.soak_scenario import repeated
from loadtests.soak_slopes import slope_of
from streams.tools.replay.traces import load_trace
from streams.tools.up.scenario_file import open_scenario, read_settings


def test_a_leak_is_told_from_waves_and_noise() -> None:
    rng = random.Random(7)
    times = [5.0 * k for k in range(600)]
    waves = [100.0 + 20.0 * math.sin(t / 10.0) + rng.gauss(0.0, 3.0) for t in times]
    flat = slope_of(list(zip(times, waves, strict=True)))
    assert flat is not None and flat.low < 0.0 < flat.high and flat.high < 5.0
    leak = slope_of([(t, one + 10.0 * t / 3600.0) for t, one in zip(times, waves, strict=True)])
    assert leak is not None and leak.low > 5.0
    assert leak.percent_per_h == pytest.approx(10.0, abs=3.0)


def test_few_samples_or_zeros_have_no_slope() -> None:
    assert slope_of([(float(k), 1.0) for k in range(20)]) is None
    assert slope_of([(float(k), 0.0) for k in range(100)]) is None


def test_the_embedded_broker_may_fill_its_limit_and_others_may_not_grow() -> None:
    samples = Samples()
    for name, pid in (("streams.broker", 1), ("streams.controller", 2)):
        for k in range(720):
            for figure, value in (
                ("memory_mib", 100.0 + 0.1 * k),
                ("files", 9.0),
                ("threads", 3.0),
            ):
                samples.processes[name, pid][figure].append((5.0 * k, value))
    found, code = result(samples, 600.0, 3595.0, Namespace(speed=30.0))
    assert (found["grew"], code) == (["streams.controller: memory_mib"], 1)


def test_a_scenario_of_one_model_is_repeated(tmp_path: Path) -> None:
    found = read_settings(open_scenario(str(repeated("calm", 4000.0, tmp_path))))
    assert load_trace(found.trace).models == ()


def test_a_scenario_is_repeated_with_its_events(tmp_path: Path) -> None:
    root = open_scenario(str(repeated("day", 4000.0, tmp_path)))
    events = dict(root.section("events").children())  # type: ignore[union-attr]
    found, once = read_settings(root), load_trace(read_settings(open_scenario("day")).trace)
    trace = load_trace(found.trace)
    assert len(trace.arrivals_ms) == 3 * len(once.arrivals_ms)
    assert trace.duration_s == pytest.approx(once.duration_s + 2 * 1800.0, abs=0.01)
    assert {f"price-jump-{k}" for k in range(3)} <= events.keys()
