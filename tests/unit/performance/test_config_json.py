"""Any config.json is either read or refused with the name of the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.config_json import architecture_of
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError

PLAIN: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "layer_types": ["full_attention"] * 32,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "torch_dtype": "bfloat16",
    "text_config": {"hidden_size": 4096},
    "linear_num_value_heads": 4,
    "full_attention_interval": 4,
    "kv_lora_rank": 512,
    "first_k_dense_replace": 1,
}
ODD = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.sampled_from([0, -1, 1, 10**8, 10**30, 0.5, 1e308, -1e308, "", "x", "32", [], {}]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from([*PLAIN]), inner, max_size=3)
    ),
    max_leaves=4,
)


def read(config: object) -> ModelSpec | None:
    try:
        return architecture_of("./config.json", json.dumps(config), "it")
    except InvalidValue as error:
        assert "\n" not in str(error) and error.field and len(str(error)) < 1000
        return None


@given(
    st.dictionaries(st.sampled_from([*PLAIN]), ODD, max_size=4), st.sets(st.sampled_from([*PLAIN]))
)
@settings(max_examples=400)
def test_any_values_and_missing_keys_are_read_or_refused(
    odd: dict[str, object], missing: set[str]
) -> None:
    """No other exception is raised."""
    read({key: value for key, value in {**PLAIN, **odd}.items() if key not in missing})


@pytest.mark.parametrize("text", ["", "[]", "null", "7", '"x"', "{", "[" * 5000, '{"a": NaN}'])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        architecture_of("./config.json", text, "it")


def test_a_shoal_file_names_the_config_that_cannot_be_read(tmp_path: Path) -> None:
    """The error is one line with file, line and key."""
    odd = {**PLAIN, "quantization_config": {"quant_method": ["fp8"]}, "num_experts_per_tok": {}}
    (tmp_path / "config.json").write_text(json.dumps(odd))
    (tmp_path / "shoal.yaml").write_text(
        "regions: {here: {l4: {gpu: L4, per_node: 1, owned: true, nodes: 2}}}\n"
        "models:\n  m: {source: ./config.json, slo: {ttft: 1s, tpot: 50ms}}\n"
    )
    with pytest.raises(
        UserError, match=r"shoal\.yaml:3: models\.m\.source: .*config\.json"
    ) as said:
        load_config(tmp_path / "shoal.yaml")
    assert "\n" not in str(said.value)
