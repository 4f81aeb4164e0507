"""Replay of a recorded time span with another policy compares decisions, cost and shortfall."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.simulation.what_if import RecordedTick, WhatIf, decide_again
from streams.cli import replay_view
from streams.cli.main import main
from streams.decision_log.log_reader import read_spans, segments
from streams.files.shoal_yaml import load_config
from streams.tools.playback.recorded_run import RunRecorder
from tests.unit.decide.decide_catalogue import Planner, pool
from tests.unit.decide.decide_world import World, world
from tests.unit.decision_log.recorded_worlds import record

ONE = pool("one", nodes=12, per_node=1)

YAML = """
regions: {us: {one: {gpu: L40S, per_node: 1, max: 12, price: 2.0}}}
models:
  chat: {source: meta-llama/Llama-3.1-8B, slo: {ttft: 2s, tpot: 100ms}, min: 1,
         workload: {input: 1000, output: 200}, utilization: UTIL}
"""


def recorded(folder: Path) -> list[RecordedTick]:
    return [
        RecordedTick(tick.now_ms, tick.cluster, tick.observation)
        for span in read_spans(segments(folder), [])
        for tick in span.ticks
    ]


def again(w: World, folder: Path, declared: Cluster | None = None) -> WhatIf:
    planner = Planner(w.catalogue)
    start = next(read_spans(segments(folder), [])).start
    return decide_again(start.state, recorded(folder), declared, planner.answer)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    folder = tmp_path_factory.mktemp("log")
    w = world(lambda _m, t: 45.0 if 150 <= t < 450 else 20.0, pools=(ONE,))
    record(w, folder, 600)
    return w, folder


def test_the_recorded_policy_gives_the_recorded_targets(run: tuple[World, Path]) -> None:
    w, folder = run
    found = again(w, folder)
    changes = [(d.kind, d.change) for d in w.decisions if d.kind != "hold"]
    assert [(d.kind, d.change) for d in found.decisions if d.kind != "hold"] == changes
    assert found.models["chat"].requests == pytest.approx(300 * 45 + 300 * 20, rel=0.05)


def test_a_higher_utilization_costs_less_and_has_a_larger_shortfall(
    run: tuple[World, Path],
) -> None:
    w, folder = run
    tight = replace(
        w.cluster, services=tuple(replace(s, utilization=1.0) for s in w.cluster.services)
    )
    before, after = again(w, folder), again(w, folder, tight)
    assert after.usd < before.usd
    assert after.models["chat"].short_requests >= before.models["chat"].short_requests
    facts = replay_view.compared(w.cluster, tight, before, after)
    assert facts["changed"] == ["chat: utilization 0.8 -> 1"]
    assert {one["in"] for one in facts["decisions"]} >= {"both", "recorded"}


def test_the_page_has_the_cost_of_the_comparison(run: tuple[World, Path]) -> None:
    w, folder = run
    start, recorder = next(read_spans(segments(folder), [])).start, RunRecorder("again")
    answer = Planner(w.catalogue).answer
    found = decide_again(start.state, recorded(folder), None, answer, recorder.tick)
    assert recorder.as_json()["usd"] == pytest.approx(found.usd, abs=1e-8) and found.usd > 0.0


def test_the_command_compares_and_fits_a_terminal(
    run: tuple[World, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command reads the log from disk and a shoal.yaml, and uses the real planner."""
    _, folder = run
    file = tmp_path / "other.yaml"
    file.write_text(YAML.replace("UTIL", "0.9"))
    assert main(["replay", "--from", str(folder), "--policy", str(file)]) == 0
    said = capsys.readouterr().out
    assert "utilization 0.8 -> 0.9" in said and "cost, USD" in said
    assert max(map(len, said.splitlines()[3:])) <= 100
    assert main(["replay", "--from", str(folder), "--policy", str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["recorded"]["usd"] > 0.0 and "chat" in facts["policy"]["models"]


def test_the_command_reports_identical_decisions(
    run: tuple[World, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--from", str(run[1])]) == 0
    assert "600 ticks" in (said := capsys.readouterr().out)
    assert "the same, byte for byte" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--since", "late"], "--since late: not a time"),
        (["--controller", "x"], "--controller x: not here; allowed: ctl-1"),
        (["--since", "2031-01-01T00:00"], "nothing was recorded"),
        (["--since", "2031-01-01T00:00", "--until", "2030-01-01T00:00"], "not after --since"),
    ],
)
def test_a_bad_option_is_refused_in_one_line(
    run: tuple[World, Path],
    options: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", "--from", str(run[1]), *options]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


def test_windows_cannot_be_changed_afterwards(
    run: tuple[World, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.yaml"
    file.write_text(YAML.replace("UTIL", "0.9") + "policy: {local_window: 60s}\n")
    assert load_config(file).cluster.policy.local_window_s == 60
    assert main(["replay", "--from", str(run[1]), "--policy", str(file)]) == 2
    assert "policy.local_window: 60s is not allowed; allowed: 120s" in capsys.readouterr().err
