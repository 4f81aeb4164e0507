"""Models that no declared GPU can hold are detected from the declaration, with
consistent figures.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.explain.reason_texts import text
from autoscaler.performance.memory import kv_capacity_tokens
from autoscaler.planning.memory_fit import Misfit, misfits
from streams.files.memory_check import refuse_misfits
from streams.files.shoal_yaml import load_config
from streams.files.yaml_tree import ConfigError
from topics.reason_codes import ReasonCode

LINES = """regions:
  us: {l4: POOL}
models:
  mini: {source: openai/gpt-oss-20b, slo: {ttft: 1s, tpot: 50ms}}
  big:
    source: meta-llama/Llama-3.3-70B-Instruct
    slo: {ttft: 1s, tpot: 50ms}
    max_len: MAX_LEN
"""


def written(folder: Path, pool: str, max_len: int = 32768) -> Path:
    path = folder / "shoal.yaml"
    path.write_text(LINES.replace("POOL", pool).replace("MAX_LEN", str(max_len)))
    return path


def cluster(folder: Path, pool: str, max_len: int = 32768) -> Cluster:
    return load_config(written(folder, pool, max_len)).cluster


def the_one(found: tuple[Misfit, ...]) -> Misfit:
    assert [misfit.model for misfit in found] == ["big"]
    return found[0]


def test_weights_that_fit_no_gpu_are_named(tmp_path: Path) -> None:
    """70 billion BF16 weights are 141 GB, but four L4 have 96 GB."""
    found = the_one(misfits(cluster(tmp_path, "{gpu: L4, per_node: 4, max: 9, price: 1}")))
    assert found.slice is not None
    assert found.slice.name == "4xL4"
    assert found.where == "us/l4"
    assert found.weights_gb == pytest.approx(141.1, abs=0.1)
    assert found.usable_gb < 96.0 < found.weights_gb
    assert found.longest_tokens == 0
    assert "max_len" not in text(found.reason())
    assert text(found.reason()).endswith("; 4xL40S would fit")


def test_a_longest_request_that_does_not_fit_is_named_with_a_length_that_fits(
    tmp_path: Path,
) -> None:
    """The `max_len` that the message proposes fits, but one token more does not."""
    pool = "{gpu: L4, per_node: 8, max: 9, price: 1}"
    found = the_one(misfits(cluster(tmp_path, pool, 100_000)))
    assert found.weights_gb < found.usable_gb < found.weights_gb + found.kv_gb
    named = re.search(r"; max_len (\d+) or .*would fit", text(found.reason()))
    assert named
    longest = int(named[1])
    assert not misfits(cluster(tmp_path, pool, longest))
    assert misfits(cluster(tmp_path, pool, longest + 1))


def test_the_figures_are_those_that_plans_use(tmp_path: Path) -> None:
    """KV cache per token and free memory follow the formula of the performance model."""
    found = the_one(misfits(cluster(tmp_path, "{gpu: L4, per_node: 8, max: 9, price: 1}", 131_072)))
    assert found.slice is not None
    spec = cluster(tmp_path, "{gpu: L4, per_node: 8, max: 9, price: 1}").service("big").architecture
    tokens = kv_capacity_tokens(spec, found.slice.gpu, found.slice.gpus)
    per_token_gb = found.kv_gb / found.max_len_tokens
    free_gb = found.usable_gb - found.weights_gb
    assert tokens * per_token_gb == pytest.approx(free_gb, rel=1e-3)


def test_a_model_that_may_use_no_pool_is_named(tmp_path: Path) -> None:
    """All nodes are spot nodes, and no service may use spot."""
    found = misfits(cluster(tmp_path, "{gpu: H100, per_node: 8, max: 9, spot_price: 1}"))
    assert [misfit.model for misfit in found] == ["mini", "big"]
    assert all(misfit.reason().code is ReasonCode.NO_POOL for misfit in found)


def test_a_model_that_fits_is_not_named(tmp_path: Path) -> None:
    pool = "{gpu: H100, per_node: 4, max: 1, price: 1}"
    assert misfits(cluster(tmp_path, pool)) == ()
    refuse_misfits(load_config(written(tmp_path, pool)))


def test_the_error_names_the_line_of_max_len(tmp_path: Path) -> None:
    path = written(tmp_path, "{gpu: L4, per_node: 1, max: 9, price: 1}")
    with pytest.raises(ConfigError, match=r"shoal\.yaml:8: models\.big: no slice of its pools"):
        refuse_misfits(load_config(path))
