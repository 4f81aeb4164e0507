"""Budget mode, quality mode and component models through the whole loop.

The summary compares planned with served requests. The three runs start in parallel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Start
from tests.acceptance.shoal_up import Run

LOAD_S = 240  # domain seconds: 12 real s
# Two stages on cheap GPUs are the cheapest choice for photos.
OMNI = """mode: act
regions:
  eu: {l4: {gpu: L4, per_node: 4, max: 2, price: 0.85}}
models:
  omni:
    req_per_s: 1.5
    components: {image: {}, llm: {after: [image]}}
    requests:
      text:  {share: 60%, uses: [llm]}
      photo: {share: 40%, uses: [image, llm]}
    deployments:
      image: {runs: [image], req_per_s: {L4: 9}, start_time: 5s}
      llm:   {runs: [llm], req_per_s: {L4: 2}, start_time: 5s}
      both:  {runs: [image, llm], req_per_s: {L4: 0.3}, start_time: 5s}
"""


# Long prompts and long answers for a fixed budget, on two GPU types.
BUDGET = """mode: act
policy: {budget: 4.5, objective: throughput}
regions:
  eu:
    l4:   {gpu: L4, per_node: 1, max: 3, price: 0.85}
    l40s: {gpu: L40S, per_node: 1, max: 2, price: 1.8}
models:
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 3s, tpot: 90ms}
    max_len: 16384
    workload:
      req_per_s: 1
      types:
        read:  {share: 50%, input: 2000, output: 20}
        write: {share: 50%, input: 200, output: 200}
"""
# The small model is better only on the easiest requests, so the declared quality permits it a fifth
# of them.
QUALITY = """mode: act
regions:
  eu: {l4: {gpu: L4, per_node: 1, max: 4, price: 0.85}}
defaults: {max_len: 16384}
models:
  auto:
    models: [mini, chat]
    quality: {file: scores.csv, at_least: 90.5, steps: 5}
    req_per_s: 1
    score: {header: X-Difficulty}
    fallback: true
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 2s, tpot: 90ms}
    workload: {input: 200, output: 60}
  chat:
    source: openai/gpt-oss-20b
    slo: {ttft: 2s, tpot: 90ms}
    workload: {input: 200, output: 60}
"""


@pytest.fixture(scope="module")
def runs(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Run]:
    folder: Path = tmp_path_factory.mktemp("inputs")
    mixed = folder / "trace.csv"
    kinds = ("2000,20", "200,200")
    rows = "".join(f"{n * 1000},{kinds[n % 2]}\n" for n in range(LOAD_S))
    mixed.write_text("timestamp_ms,input_tokens,output_tokens\n" + rows)
    scores = folder / "scores.csv"
    table = "".join(f"{n / 100},{100 - 0.6 * n},90\n" for n in range(100))
    scores.write_text("score,mini,chat\n" + table)
    quality = QUALITY.replace("scores.csv", str(scores))
    return {
        "components": start(config=OMNI, trace_s=LOAD_S),
        "budget": start("--trace", str(mixed), config=BUDGET),
        "quality": start(config=quality, trace_s=2 * LOAD_S),
    }


def ended(run: Run) -> list[dict[str, Any]]:
    """The rows of paths and splits of a run, after its end.

    The exit code must be 0, and all requests must be served.
    """
    assert run.end() == 0
    assert run.errors == ""
    requests = run.summary["requests"]
    assert requests["sent"] > 40
    assert requests["served"] == requests["sent"]
    found: list[dict[str, Any]] = run.summary["ways"]
    return found


def of_kind(rows: list[dict[str, Any]], row: dict[str, Any]) -> int:
    """The number of requests of the kind of `row`."""
    return sum(other["requests"] for other in rows if other["kind"] == row["kind"])


def test_requests_to_a_component_model_use_the_planned_paths(runs: Mapping[str, Run]) -> None:
    """Shares differ from the plan by at most two points or one request, because paths are chosen in
    turn.
    """
    rows = ended(runs["components"])
    assert {row["kind"] for row in rows} == {"text", "photo"}
    assert any("/" in row["way"] for row in rows)  # Some photos go through two stages.
    for row in rows:
        assert abs(row["served"] - row["planned"]) <= max(0.02, 1.0 / of_kind(rows, row)), row


def test_requests_in_budget_mode_use_the_combos_planned_for_their_type(
    runs: Mapping[str, Run],
) -> None:
    """Shares differ from the plan by at most two points or one request. The fleet stays within the
    budget.
    """
    rows = ended(runs["budget"])
    assert {row["kind"] for row in rows} == {"read", "write"}
    assert len({row["way"] for row in rows}) > 1
    for row in rows:
        assert abs(row["served"] - row["planned"]) <= max(0.02, 1.0 / of_kind(rows, row)), row


def test_requests_for_a_service_are_split_by_their_scores_as_planned(
    runs: Mapping[str, Run],
) -> None:
    """Scores are random. Shares differ from the plan by at most two points plus the random
    deviation for this number of requests.
    """
    rows = ended(runs["quality"])
    assert {row["way"] for row in rows} == {"mini", "chat"}
    assert all(
        row["planned"] == pytest.approx({"mini": 0.2, "chat": 0.8}[row["way"]], abs=0.08)
        for row in rows
    )
    for row in rows:
        chance = 3.0 * math.sqrt(row["planned"] * (1.0 - row["planned"]) / of_kind(rows, row))
        assert abs(row["served"] - row["planned"]) <= 0.02 + chance, row
    assert "auto" in runs["quality"].summary["thresholds"]
