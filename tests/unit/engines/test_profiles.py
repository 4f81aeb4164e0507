"""Engine profiles: only name and hash are published; the arguments stay with the operator."""

from __future__ import annotations

import pytest

from executors.engines.engine_registry import parse_engines
from streams.files.shoal_yaml import load_config
from topics.checks import InvalidValue
from topics.engine_profiles import profile_wire_name

YAML = """
regions: {here: {h100: {gpu: H100, per_node: 1, max: 1, price: 2}}}
models: {mini: {source: meta-llama/Llama-3.1-8B, engine: fast, slo: {ttft: 1s, tpot: 50ms}}}
engines: {fast: {args: [--quantization=fp8]}}
"""


def test_planner_and_executor_give_a_profile_the_same_name(tmp_path) -> None:
    """Each reads its own file. Other arguments give another name, so the executor does not start
    such a profile.
    """
    path = tmp_path / "shoal.yaml"
    path.write_text(YAML)
    (service,) = load_config(path).cluster.services
    section = {"kind": "vllm", "weights": ["org/model"], "args": ["--quantization=fp8"]}
    assert service.engine in parse_engines("engines", {"fast": section})
    section["args"] = ["--quantization=fp8", "--enforce-eager"]
    assert service.engine not in parse_engines("engines", {"fast": section})
    assert "quantization" not in service.engine


def test_a_profile_without_arguments_keeps_its_plain_name() -> None:
    assert profile_wire_name("default", "", []) == "default"
    assert profile_wire_name("a", "image", []) != profile_wire_name("a", "", ["image"])
    assert set(parse_engines("engines", {"default": {"kind": "simulated"}})) == {"default"}


@pytest.mark.parametrize("section", [{"kind": "simulated", "args": 5}, {"kind": "x"}, 5])
def test_an_invalid_section_is_refused(section: object) -> None:
    with pytest.raises(InvalidValue, match=r"engines\.fast"):
        parse_engines("engines", {"fast": section})
