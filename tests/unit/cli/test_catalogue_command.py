"""`shoal models`, `shoal gpus`, and `shoal plan` with a model from a local config.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streams.cli.main import main

OWN = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip
CONFIG = """
defaults: {max_len: 8192}
regions: {eu: {box: {gpu: GPU, max: 9, price: 8}}}
models:
  mine:
    source: SOURCE
    slo: {ttft: 1s, tpot: 50ms}
    workload: {req_per_s: 2, input: 900, output: 99}
"""


def write(folder: Path, source: str, gpu: str = "L40S") -> str:
    path = folder / "shoal.yaml"
    path.write_text(CONFIG.replace("SOURCE", source).replace("GPU", gpu))
    return str(path)


def planned(path: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    assert main(["plan", "--config", path, "--no-explain", "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_models_and_gpus_list_facts_with_their_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)
    assert len(models) >= 80
    assert all(row["params"] > 0 and row["source"] for row in models)
    assert main(["gpus", "--json"]) == 0
    gpus = json.loads(capsys.readouterr().out)
    assert len(gpus) >= 30
    assert all(row["mem_gb"] > 0 and row["source"] for row in gpus)
    assert main(["models", "meta-llama/Llama-3.3-70B-Instruct"]) == 0
    assert "meta-llama/Llama-3.3-70B " in capsys.readouterr().out
    assert main(["gpus", "p5.48xlarge"]) == 0
    assert "8xH100-SXM" in capsys.readouterr().out


def test_a_local_config_json_gives_the_plan_of_the_published_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path in `source` is relative to the shoal.yaml, whatever the working directory is."""
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    own = planned(write(tmp_path, "./config.json"), capsys)
    named = planned(write(tmp_path, "meta-llama/Llama-3.1-8B"), capsys)
    for key in ("cost_usd_per_h", "models", "nodes"):
        assert own[key] == named[key]
    assert main(["models", str(tmp_path / "config.json")]) == 0
    assert "8.03" in capsys.readouterr().out


def test_the_plan_names_the_catalogue_entry_used_for_a_variant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "NousResearch/Hermes-3-Llama-3.1-8B")
    assert main(["plan", "--config", path, "--no-explain"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "mine: NousResearch/Hermes-3-Llama-3.1-8B is not in the catalogue; planned with the facts "
        "of meta-llama/Llama-3.1-8B" in said
    )


def test_a_published_variant_is_a_known_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "meta-llama/Llama-3.1-8B-Instruct")
    assert main(["plan", "--config", path, "--no-explain"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "mine: planned with the facts of meta-llama/Llama-3.1-8B" in said
    assert "not in the catalogue" not in said


def test_an_unknown_name_gets_examples_and_the_command_that_lists_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for source, gpu, command in (("zzzz", "L4", "models"), ("gpt2", "zzzz", "gpus")):
        assert main(["plan", "--config", write(tmp_path, source, gpu)]) == 2
        said = capsys.readouterr().err
        assert f"(shoal {command} lists them)" in said
        assert len(said) < 400


def test_a_pool_of_an_instance_type_has_the_gpus_of_that_type(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = planned(write(tmp_path, "meta-llama/Llama-3.1-8B", "g6e.12xlarge"), capsys)
    nodes = found["nodes"]
    assert isinstance(nodes, list)
    assert nodes[0]["usd_per_h"] == 8.0 * nodes[0]["proposed"]
    refused = write(tmp_path, "meta-llama/Llama-3.1-8B", "g6e.12xlarge, per_node: 8")
    assert main(["plan", "--config", refused]) == 2
    assert "per_node: 8 is not allowed; allowed: 4, of g6e.12xlarge" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("source", "text", "said"),
    [
        ("./gone.json", None, "a Hugging Face config.json that can be read"),
        ("./config.json", "{", "a Hugging Face config.json"),
        ("./config.json", "{}", "num_hidden_layers"),
        ("someone/unknown-7b", None, "or a ./config.json"),
    ],
)
def test_an_unusable_source_gives_one_error_line(
    source: str,
    text: str | None,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert main(["plan", "--config", write(tmp_path, source)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "models.mine.source" in error
    assert error.count("\n") == 1


def test_each_mig_slice_is_planned_as_one_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """16 GB of weights do not fit into 10 GB, and MIG slices have no link for sharding."""
    path = write(tmp_path, "meta-llama/Llama-3.1-8B-Instruct", "H100/3g.40gb")
    plan = planned(path, capsys)
    assert plan["models"]["mine"]["combos"]  # type: ignore[index]
    path = write(tmp_path, "meta-llama/Llama-3.1-8B-Instruct", "H100/1g.10gb")
    assert main(["plan", "--config", path, "--no-explain"]) != 0
    capsys.readouterr()
    path = write(tmp_path, "meta-llama/Llama-3.1-8B-Instruct", "H100/1g.10gb, per_node: 2")
    assert main(["plan", "--config", path, "--no-explain"]) == 2
    assert "per_node: 2 is not allowed; allowed: 1, since MIG slices" in capsys.readouterr().err
