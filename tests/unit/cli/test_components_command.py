"""`shoal plan` for a model with several components, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "components.yaml"


def test_the_plan_of_the_example_serves_the_declared_rates_and_shares(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A smaller budget serves less."""
    assert main(["plan", "--config", str(EXAMPLE), "--json"]) == 0
    least = json.loads(capsys.readouterr().out)
    assert least["multiple"] >= 1.0 - 1e-6
    assert least["bound"] <= least["cost_usd_per_h"] + 1e-9
    assert main(["plan", "--config", str(EXAMPLE), "--json", "--budget", "8"]) == 0
    most = json.loads(capsys.readouterr().out)
    assert most["cost_usd_per_h"] <= 8.0
    assert most["multiple"] < least["multiple"]
    assert main(["plan", "--config", str(EXAMPLE)]) == 0
    out = capsys.readouterr().out
    assert "omni/voice" in out
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize(
    ("find", "replaced", "said"),
    [
        ("share: 50%", "share: 40%", "shares sum to 90.0%"),
        ("{after: [llm],", "{after: [lm],", "'lm'"),
        ("media: [audio-out]", "media: [smell]", "models.omni.components.talker.media"),
        ("image:  {}", "image:  {media: []}", "cannot be distinguished from"),
        ("A100: 1.2}}", "A100: 1.2}, start_time: 9}", "deployments.everything.start_time"),
        ("see-think:  {runs", "see+think:  {runs", "see+think: a name is 1 to 63 letters"),
        ("    spot: 50%", "    spot: 50%\n    source: a/b", "models.omni.source"),
        ("\nregions:", "\npolicy: {objective: throughput, budget: 30}\nregions:", "objective"),
        ("uses: [llm]", "uses: [llm, smell]", "'smell'"),
        ("runs: [talker]", "runs: []", "talker"),
        ("A100: 5.6", "A1000: 5.6", "A1000"),
        ("A100: 5.6", "A100: -1", "req_per_s.A100"),
        ("runs: [audio],", "run: [audio],", "did you mean runs?"),
        ("spot: 50%", "spot: 50", "models.omni.spot"),
    ],
)
def test_a_bad_key_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    find: str,
    replaced: str,
    said: str,
) -> None:
    """The line names the file, the line number, the key and the allowed values."""
    path = tmp_path / "shoal.yaml"
    text = EXAMPLE.read_text()
    assert find in text
    path.write_text(text.replace(find, replaced, 1))
    assert main(["plan", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "shoal.yaml:" in err
    assert said in err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["backtest", "--trace", "TRACE", "--config", str(EXAMPLE)], "which components"),
        (["up", "--engine", "vllm", "--config", str(EXAMPLE)], "no vLLM server runs a stage"),
    ],
)
def test_commands_that_cannot_run_components_refuse_in_one_line(
    argv: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("timestamp_ms,input_tokens,output_tokens\n0,10,10\n1000,10,10\n")
    assert main([str(trace) if word == "TRACE" else word for word in argv]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert "models.omni: " in err
    assert said in err
