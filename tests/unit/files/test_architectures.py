"""Files that describe the architecture of a model's `source`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from autoscaler.domain.validation import InvalidValue
from streams.files.model_source import architecture

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256,
}  # fmt: skip


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b" " * 4_000_000 + b"{}")
    with pytest.raises(InvalidValue, match=r"can be read \(more than 4,000,000 bytes\)"):
        architecture("./config.json", tmp_path)


@pytest.mark.parametrize("place", ["pipe.json", "config.json"])
def test_a_pipe_is_refused_because_it_may_never_end(tmp_path: Path, place: str) -> None:
    """The `source` is the pipe itself, or the config.json in its folder is a pipe."""
    os.mkfifo(tmp_path / place)
    source = "./" if place == "config.json" else f"./{place}"
    with pytest.raises(InvalidValue, match=r"can be read \(not a regular file\)"):
        architecture(source, tmp_path)


def test_a_quantisation_file_in_the_same_folder_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    plain = architecture("./config.json", tmp_path)
    how = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(how))
    small = architecture(str(tmp_path), tmp_path)
    assert (plain.weight_dtype, small.weight_dtype) == ("bf16", "fp4")


def test_a_folder_with_mistrals_own_file_is_read(tmp_path: Path) -> None:
    params = {"dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 32768, "n_heads": 32,
              "n_kv_heads": 8, "vocab_size": 131072}  # fmt: skip
    (tmp_path / "params.json").write_text(json.dumps(params))
    assert architecture(str(tmp_path), tmp_path).layers == 40
