"""`shoal kubernetes`: the report that the process becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.cluster_report import parse_pools
from streams.cli import kubernetes
from streams.cli.main import main

FILE = """
regions:
  us:
    l4:
      gpu: L4
      per_node: 4
      owned: true
      nodes: 2
      kubernetes: {nodes: {type: g6}}
    plain: {gpu: L4, owned: true, nodes: 2}
models:
  chat: {source: Qwen/Qwen3-8B, slo: {ttft: 2s, tpot: 60ms}}
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []

    def become(*words: str) -> Any:
        found.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(kubernetes, "become", become)
    return found


def test_reports_know_the_pools_of_the_file(started: list[tuple[str, ...]], tmp_path: Path) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(FILE)
    with pytest.raises(SystemExit):
        main(["kubernetes", "availability", "--config", str(path), "--namespace", "serving"])
    module, what, _, text, *_ = started[0]
    assert (module, what) == ("executors.kubernetes.cluster_report", "availability")
    pools, per_node = parse_pools(text)
    assert per_node == {"us/l4/owned": 4}
    assert pools["us/l4/owned"].nodes == {"type": "g6"}


def test_pools_need_no_file_and_other_reports_do(
    started: list[tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["kubernetes", "pools"])
    assert started[0][1] == "pools"
    assert main(["kubernetes", "serving"]) == 2
    assert "--config FILE is needed" in capsys.readouterr().err
