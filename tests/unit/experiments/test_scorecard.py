"""The scorecard: its traces are deterministic, and its page lists every exception."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoscaler.simulation.policies.registry import VARIANTS
from loadtests.scorecard import _report, main, scorecard_traces, source_of
from loadtests.scorecard_page import write
from loadtests.scorecard_scenarios import SCENARIOS
from streams.tools.replay.traces import load_trace


def policy(name: str, usd: float, share: float, hours: float = 2.0, **more: Any) -> dict[str, Any]:
    return {
        "name": name, "simulated": True, "cost_usd": usd, "slo_attainment": share,
        "gpu_hours": hours, "unserved_fraction": 0.0, "reaction_s": 0.0, "reversals_per_h": 0.0,
        "starts": 3.0, "regret_to_oracle": 0.5, "undercut_by": [],
        "knob": {"value": 0.95, "name": "its old one"},
        "intervals": {"cost_usd": (usd - 1.0, usd), "slo_attainment": (share, share)},
        "models": {"m": {"requests": 1000, "attained": round(1000 * share)}}, **more,
    }  # fmt: skip


def report(undercut_by: list[str]) -> dict[str, Any]:
    variants = [policy(name, 11.0, 0.97) for name in VARIANTS]
    policies = [
        policy("shoal", 10.0, 0.98, starts=7.0, undercut_by=undercut_by),
        policy("knative", 9.0, 0.99, hours=1.5),
        policy("fixed-peak", 8.0, 0.99),
        *variants,
        {"name": "oracle", "simulated": False, "cost_usd": 5.0},
    ]
    return {
        "policies": policies, "models": {"m": {"requests": 7}}, "duration_s": 600.0,
        "also": ["another.csv"],
    }  # fmt: skip


def test_every_exception_is_listed_with_its_cause(tmp_path: Path) -> None:
    path = tmp_path / "card.md"
    reports = {"a": ("rates", report(["knative", "fixed-peak"])), "b": ("more", report([]))}
    write(path, reports, ["c"], "2030-01-01, commit abc.")
    text = path.read_text()
    assert "- a, knative: 10.0% cheaper, +1.00 points of attainment, -25% GPU hours" in text
    assert "Shoal misses most at m (98.0% met instead of 99.0%). Shoal starts 7 instances" in text
    assert "- a, fixed-peak:" in text and "knows the trace beforehand" in text
    assert "- b," not in text
    assert "Not run: c" in text
    assert "7 requests in 10.0 min in 2 draws." in text
    assert "| shoal | 98.00% | 10.00 (9.00 to 10.00) |" in text
    assert "Run when the knob of shoal, knative" in text
    assert f"| a |{' +10.0%, -1.00 |' * len(VARIANTS)}" in text
    assert (tmp_path / "card" / "a.svg").read_text().startswith("<svg")


def test_traces_are_reproducible_and_tuning_uses_other_traces(tmp_path: Path) -> None:
    found = []
    scenario = next(s for s in SCENARIOS if s.name == "steps")
    source = source_of(scenario, None)
    assert source is not None
    for folder in (tmp_path / "x", tmp_path / "y"):
        folder.mkdir()
        (judged,), other = scorecard_traces(scenario, source, folder, 0.1, 1)
        found.append((judged.read_bytes(), other.read_bytes()))
        assert load_trace(judged).models != load_trace(other).models
    assert found[0] == found[1]
    (one, another), other = scorecard_traces(scenario, source, tmp_path / "x", 0.1, 2)
    assert (one.read_bytes(), other.read_bytes()) == found[0]
    assert another.read_bytes() != found[0][0]
    assert sorted(path.name for path in (tmp_path / "x").glob("*tune*")) == ["steps-tune.csv"]


def test_the_mix_of_lengths_swings_at_a_constant_rate(tmp_path: Path) -> None:
    """Prompts are long at the beginning and the end, answers in the middle. The trace for tuning
    does the same.
    """
    scenario = next(s for s in SCENARIOS if s.name == "mix")
    source = source_of(scenario, None)
    assert source is not None
    (judged,), other = scorecard_traces(scenario, source, tmp_path, 0.4, 1)
    for path in (judged, other):
        trace = load_trace(path)
        at_ms = np.array(trace.arrivals_ms)
        middle = (at_ms > 0.25 * at_ms[-1]) & (at_ms < 0.75 * at_ms[-1])
        assert middle.sum() == pytest.approx(len(at_ms) / 2, rel=0.05)
        inputs, outputs = np.array(trace.input_tokens), np.array(trace.output_tokens)
        long_in, short_in = inputs[~middle].mean(), inputs[middle].mean()
        short_out, long_out = outputs[~middle].mean(), outputs[middle].mean()
        assert long_in > 3.0 * short_in and long_out > 1.5 * short_out


def test_draws_are_listed_separately_and_a_recorded_trace_has_one(tmp_path: Path) -> None:
    asked = [argparse.Namespace(work=tmp_path, share=1.0, draws=draws) for draws in (1, 3)]
    generated, recorded = (next(s for s in SCENARIOS if s.name == n) for n in ("steps", "servegen"))
    assert len({_report(generated, one) for one in asked}) == 2
    assert len({_report(recorded, one) for one in asked}) == 1


def test_an_unknown_scenario_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "moon"])
    assert "moon: one of aibrix, bursts" in capsys.readouterr().err
