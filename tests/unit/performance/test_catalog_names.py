"""Common names of models and GPUs lead to the right catalogue entries."""

from __future__ import annotations

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.catalog_names import _INSTANCES, GPU_PRODUCTS, instance_type


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.3-70B"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("mistralai/Mistral-7B-Instruct-v0.1", "mistralai/Mistral-7B-v0.1"),
        ("Qwen/Qwen2.5-Coder-32B-Instruct", "Qwen/Qwen2.5-Coder-32B"),
        ("Qwen/Qwen2.5-Math-7B-Instruct", "Qwen/Qwen2.5-7B"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-ai/DeepSeek-R1"),
        (
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
            "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
        ),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "Qwen/Qwen3-235B-A22B"),
    ],
)
def test_a_variant_means_its_architecture(written: str, meant: str) -> None:
    assert catalog.entry_name(written) == meant
    assert catalog.model(written).params == catalog.entry(meant).spec.params


@pytest.mark.parametrize(
    "name",
    [
        "meta-llama/Llama-3.1-9B",
        "meta-llama/Llama-3.2-11B-Vision",
        "somebody/Llama-3.1-8B-draft-0.5B",
        "somebody/model-8b",
    ],
)
def test_another_size_is_never_taken_for_a_known_one(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"\./config\.json"):
        catalog.entry_name(name)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "int4"),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8", "fp8"),
        ("meta-llama/Llama-3.1-8B-Instruct", "bf16"),
    ],
)
def test_a_quantised_copy_has_smaller_weights(name: str, dtype: str) -> None:
    found = catalog.model(name)
    assert found.weight_dtype == dtype
    whole = catalog.entry("meta-llama/Llama-3.1-8B").spec.weight_bytes
    assert (found.weight_bytes < whole) is (dtype != "bf16")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100-SXM"),
        ("NVIDIA-H100-80GB-HBM3-SHARED", "H100-SXM"),
        ("NVIDIA GH200 144G HBM3e", "GH200-144GB"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTXPRO6000-Blackwell-MaxQ"),
        ("NVIDIA A800-SXM4-40GB", "A800-SXM-40GB"),
        ("NVIDIA RTX 5000 Ada Generation", "RTX5000-Ada"),
        ("NVIDIA GeForce RTX 4090 D", "RTX4090D"),
        ("AMD Instinct MI250X/MI250", "MI250X"),
        ("nvidia-tesla-a100", "A100-SXM-40GB"),
        ("A100-80GB-SXM", "A100-SXM-80GB"),
        ("NVIDIA GB200 NVL72", "GB200"),
        ("gpu-mi300x8-1536gb", "MI300X"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA-A100-SXM4-40GB", "A100-SXM-40GB"),
        ("Tesla-T4", "T4"),
        ("nvidia-tesla-v100", "V100-SXM2-16GB"),
        ("NVIDIA-GeForce-RTX-4090", "RTX4090"),
        ("AMD-Instinct-MI300X", "MI300X"),
        ("p5.48xlarge", "H100-SXM"),
        ("g6e.2xlarge", "L40S"),
        ("a2-ultragpu-4g", "A100-SXM-80GB"),
        ("g2-standard-48", "L4"),
        ("h100", "H100-SXM"),
    ],
)
def test_what_drivers_and_clouds_call_a_gpu(written: str, meant: str) -> None:
    assert catalog.gpu(written).name == meant


def test_every_alias_leads_to_a_gpu_that_has_facts() -> None:
    known = catalog.gpus()
    assert set(GPU_PRODUCTS.values()) <= set(known)
    assert {gpu for gpu, _ in _INSTANCES.values()} <= set(known)


def test_instance_types_know_how_many_gpus_they_carry() -> None:
    assert instance_type("p4d.24xlarge") == ("A100-SXM-40GB", 8)
    assert instance_type("g5.xlarge") == ("A10G", 1)
    assert instance_type("m5.large") is None
