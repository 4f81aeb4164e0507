"""Fixtures of the tests of the Helm chart (`make test-kubernetes`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helm_tools import CHART, NoTools, helm, tools

CONFIG = """
regions:
  us: {l4: {gpu: L4, max: 2, price: 0.7, kubernetes: {nodes: {pool: l4}}}}
models:
  tiny:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 2s, tpot: 100ms}
    workload: {req_per_s: 1, input: 500, output: 100}
"""
Manifest = dict[str, Any]
KAFKA: Manifest = {"kafka": {"bootstrap": "kafka:9092"}}


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    try:
        tools()
    except NoTools as error:
        pytest.skip(f"skipped: {error}")


@pytest.fixture
def render(tmp_path: Path) -> Callable[[Manifest], dict[tuple[str, str], Manifest]]:
    """Renders the chart with values: manifests by (kind, name)."""

    def made(values: Manifest) -> dict[tuple[str, str], Manifest]:
        done = template(tmp_path, values)
        assert done[0] == 0, done[1]
        manifests = [one for one in yaml.safe_load_all(done[1]) if one]
        return {(one["kind"], one["metadata"]["name"]): one for one in manifests}

    return made


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[Manifest], str]:
    """The error with which the chart refuses values."""

    def made(values: Manifest) -> str:
        code, text = template(tmp_path, values)
        assert code != 0, "the chart accepted the values"
        return text

    return made


def template(folder: Path, values: Manifest) -> tuple[int, str]:
    """The exit code of `helm template`, and its output or error."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump({"config": {"text": CONFIG}} | values))
    done = helm("template", "shoal", str(CHART), "--namespace", "fleet", "--values", str(file))
    return done.returncode, done.stderr if done.returncode else done.stdout
