"""`shoal apply` with both brokers: a controller reads the published declarations."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streams.cli.main import main
from streams.controller.declared_cluster import DeclaredCluster
from streams.files.shoal_yaml import load_config
from tests.contract.brokers import Broker, read_latest

CONFIG = """
regions: {eu: {l4: {gpu: L4, max: 3, price: 0.85}}}
models:
  mini: {source: openai/gpt-oss-20b, slo: {ttft: 2s, tpot: 80ms}, min: 1}
"""
TINY = (
    "  tiny: {source: meta-llama/Llama-3.1-8B-Instruct, slo: {ttft: 1s, tpot: 50ms}, "
    "max_len: 8192}\n"
)


def test_a_controller_reads_applied_declarations(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Services are added, changed, unchanged and withdrawn. Records override the controller's own
    file.
    """
    base, path = tmp_path / "base.yaml", tmp_path / "shoal.yaml"
    base.write_text(CONFIG)
    config = load_config(base)

    def apply(text: str) -> list[str]:
        path.write_text(text)
        options = ["--config", str(path), "--broker", broker.bootstrap, "--prefix", broker.prefix]
        assert main(["apply", *options]) == 0
        return capsys.readouterr().out.splitlines()

    def declared() -> dict[str, int]:
        latest, poison = asyncio.run(read_latest(broker))
        assert poison == []
        return {s.model: s.min_instances for s in DeclaredCluster(config, latest)().services}

    assert declared() == {"mini": 1}
    changed = CONFIG.replace("min: 1", "min: 2")
    assert apply(changed + TINY) == ["mini: added", "tiny: added"]
    assert declared() == {"mini": 2, "tiny": 1}
    assert apply(changed + TINY) == ["mini: unchanged", "tiny: unchanged"]
    assert apply(CONFIG.replace("min: 1", "min: 3")) == ["mini: changed", "tiny: withdrawn"]
    assert declared() == {"mini": 3}
    assert apply(CONFIG) == ["mini: changed"]
    assert declared() == {"mini": 1}
