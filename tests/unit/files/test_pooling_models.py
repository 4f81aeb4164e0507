"""Pooling models in `shoal.yaml`: an SLO for the whole answer, and no output tokens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Service
from streams.files.shoal_yaml import load_config
from streams.files.yaml_tree import ConfigError

ENCODER = {
    "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "hidden_size": 1024,
    "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "vocab_size": 250002, "max_position_embeddings": 8194,
}  # fmt: skip
FILE = """
regions:
  us-east:
    l4: {gpu: L4, max: 8, price: 0.85}
engines:
  embed: {args: [--runner=pooling]}
models:
  m:
    source: SOURCE
    ENGINE
    slo: {ttft: 1s}
    workload: {req_per_s: 20, input: 500, output: 300}
    max_len: 8192
"""


def service(folder: Path, source: str, engine: str = "") -> Service:
    (folder / "config.json").write_text(json.dumps(ENCODER))
    text = FILE.replace("SOURCE", source).replace("ENGINE", engine or "min: 1")
    (folder / "shoal.yaml").write_text(text)
    return load_config(folder / "shoal.yaml").cluster.service("m")


@pytest.mark.parametrize(
    ("source", "engine"),
    [("./config.json", ""), ("Qwen/Qwen3-0.6B", "engine: embed")],
)
def test_a_pooling_model_needs_no_time_per_token(tmp_path: Path, source: str, engine: str) -> None:
    """The architecture of an encoder, or the engine's arguments, say so."""
    found = service(tmp_path, source, engine)
    assert found.architecture.pooling
    assert found.lengths.output_tokens == 1.0
    assert not found.disaggregate


def test_a_model_that_generates_needs_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tpot"):
        service(tmp_path, "Qwen/Qwen3-0.6B")


def test_the_workload_of_a_pooling_model_needs_no_output(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ENCODER))
    text = FILE.replace("SOURCE", "./config.json").replace("ENGINE", "min: 1")
    (tmp_path / "shoal.yaml").write_text(text.replace(", output: 300", ""))
    found = load_config(tmp_path / "shoal.yaml").cluster.service("m")
    assert (found.lengths.input_tokens, found.lengths.output_tokens) == (500.0, 1.0)
    kinds = "types: {a: {share: 60%, input: 300}, b: {share: 40%, input: 800}}"
    (tmp_path / "shoal.yaml").write_text(text.replace("input: 500, output: 300", kinds))
    found = load_config(tmp_path / "shoal.yaml").cluster.service("m")
    assert found.lengths.input_tokens == 500.0
    assert [kind.lengths.output_tokens for kind in found.types] == [1.0, 1.0]
    generates = FILE.replace("SOURCE", "Qwen/Qwen3-0.6B").replace("ENGINE", "min: 1")
    generates = generates.replace(", output: 300", "").replace("1s}", "1s, tpot: 50ms}")
    (tmp_path / "shoal.yaml").write_text(generates)
    with pytest.raises(ConfigError, match=r"workload\.output: is missing"):
        load_config(tmp_path / "shoal.yaml")


@pytest.mark.parametrize(
    "name",
    [
        "BAAI/bge-m3", "intfloat/e5-mistral-7b-instruct", "answerdotai/ModernBERT-base",
        "BAAI/bge-reranker-v2-m3", "Qwen/Qwen3-Embedding-8B", "Alibaba-NLP/gte-Qwen2-7B-instruct",
        "Skywork/Skywork-Reward-V2-Llama-3.1-8B",
    ],
)  # fmt: skip
def test_models_that_pool_are_known_by_name(tmp_path: Path, name: str) -> None:
    found = service(tmp_path, name)
    assert found.architecture.pooling
    assert found.lengths.output_tokens == 1.0


def test_the_context_of_a_model_limits_the_default_of_its_longest_request(tmp_path: Path) -> None:
    text = FILE.replace("SOURCE", "BAAI/bge-large-en-v1.5").replace("    ENGINE\n", "")
    text = text.replace("input: 500, output: 300", "input: 200")
    (tmp_path / "shoal.yaml").write_text(text.replace("    max_len: 8192\n", ""))
    assert load_config(tmp_path / "shoal.yaml").cluster.service("m").max_len_tokens == 512
    (tmp_path / "shoal.yaml").write_text(text)
    with pytest.raises(ConfigError, match="8192 is not allowed; allowed: at most 512"):
        load_config(tmp_path / "shoal.yaml")
