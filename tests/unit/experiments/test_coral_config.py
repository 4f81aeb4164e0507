"""The `shoal.yaml` files of Coral's setups."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.experiments.coral_config import config, main
from loadtests.experiments.coral_setup import SETUPS
from streams.files.shoal_yaml import load_config


@pytest.mark.parametrize("library", ["vllm", "coral"])
@pytest.mark.parametrize("setup", ["core", "extended"])
def test_the_file_declares_models_rates_limits_and_nodes(
    setup: str, library: str, tmp_path: Path
) -> None:
    """Every kind of node is declared in every region with its price."""
    path = tmp_path / "shoal.yaml"
    path.write_text(config(SETUPS[setup], library, 400))
    cluster = load_config(path).cluster
    made = SETUPS[setup]
    assert len(cluster.pools) == len(made.nodes) * len(made.regions)
    prices = sorted(pool.price_usd_per_h for pool in cluster.pools)
    assert prices == pytest.approx(sorted(made.usd_per_h.ravel()), abs=1e-4)
    assert {s.model: s.req_per_s for s in cluster.services} == made.req_per_s_of("balanced")
    assert {s.pipelines for s in cluster.services} == {"same-slice" if library == "vllm" else "any"}


def test_an_invalid_count_of_nodes_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "0"]) == 2
    assert "--nodes" in capsys.readouterr().err
