"""The memory of an engine, read from logs of its start in the forms of several versions of vLLM."""

from __future__ import annotations

import random

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.start_log import read_start
from topics.engine_start import EngineStart

GIB = 2**30
V1 = """\
(APIServer pid=1) INFO 11-06 10:50:01 [api_server.py:1839] vLLM API server version 0.13.0
(APIServer pid=1) INFO 11-06 10:50:01 [utils.py:233] non-default args: {'model': 'org/big', \
'max_model_len': 120000, 'gpu_memory_utilization': 0.95, 'tensor_parallel_size': 2}
(EngineCore_DP0 pid=26283) INFO 11-06 10:50:20 [core.py:93] Initializing a V1 LLM engine (v0.13.0) \
with config: model='org/big', speculative_config=None, max_seq_len=120000, \
tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1
(Worker_TP0 pid=7) INFO 11-06 10:51:00 [gpu_model_runner.py:3] Model loading took 12.66 GiB memory \
and 31.657031 seconds
(Worker_TP1 pid=8) INFO 11-06 10:51:00 [gpu_model_runner.py:3] Model loading took 12.70 GiB memory \
and 31.7 seconds
(Worker_TP0 pid=7) INFO 11-06 10:51:48 [gpu_worker.py:349] Available KV cache memory: 2.30 GiB
(Worker_TP1 pid=8) INFO 11-06 10:51:48 [gpu_worker.py:349] Available KV cache memory: 2.25 GiB
(EngineCore_DP0 pid=26283) INFO 11-06 10:51:48 [kv_cache_utils.py:1229] GPU KV cache size: 297,840 \
tokens
(EngineCore_DP0 pid=26283) INFO 11-06 10:51:48 [kv_cache_utils.py:1234] Maximum concurrency for \
120,000 tokens per request: 2.48x
(Worker_TP0 pid=7) INFO 11-06 10:52:14 [gpu_model_runner.py:6243] Graph capturing finished in 2 \
secs, took 0.50 GiB
"""
V0 = """\
INFO 03-21 20:15:10 llm_engine.py:240] Initializing an LLM engine (v0.6.4) with config: \
model='meta-llama/Llama-3.1-8B-Instruct', max_seq_len=32768, tensor_parallel_size=1
INFO 03-21 20:15:20 model_runner.py:1025] Loading model weights took 14.9888 GB
INFO 03-21 20:15:45 worker.py:267] model weights take 14.99GiB; non_torch_memory takes 0.16GiB; \
PyTorch activation peak memory takes 2.38GiB; the rest of the memory reserved for KV Cache is \
56.18GiB.
INFO 03-21 20:15:46 executor_base.py:111] # cuda blocks: 7191, # CPU blocks: 512
INFO 03-21 20:15:46 executor_base.py:116] Maximum concurrency for 32768 tokens per request: 3.51x
"""
FEW = (
    "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens that "
    "can be stored in KV cache (7344). Try increasing `gpu_memory_utilization`"
)
NEEDS = (
    "(EngineCore pid=1) ValueError: To serve at least one request with the models's max seq len "
    "(262144), (24.0 GiB KV cache is needed, which is larger than the available KV cache memory "
    "(3.18 GiB). Based on the available memory, the estimated maximum model length is 34736."
)
NOTHING = (
    "Available KV cache memory: -2.14 GiB\nValueError: No available memory for the cache blocks. "
    "Try increasing `gpu_memory_utilization` when initializing the engine."
)
OWN = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 79.10 GiB of which 1.2 GiB is free. Including non-PyTorch memory, this process "
    "has {} GiB memory in use."
)


def test_a_start_of_several_gpus_states_the_least_cache_and_the_most_weights() -> None:
    found = read_start(V1)
    assert found.start == EngineStart(
        kv_bytes=int(2.25 * GIB),
        kv_tokens=297_840,
        request_tokens=120_000,
        weights_bytes=int(12.70 * GIB),
        graphs_bytes=GIB // 2,
        max_len=120_000,
    )
    assert (found.model, found.gpus, found.starts) == ("org/big", 2, 1)
    assert dict(found.args or ())["gpu_memory_utilization"] == 0.95


def test_early_versions_state_the_size_as_a_number_of_requests() -> None:
    start = read_start(V0).start
    assert start.kv_tokens == int(3.51 * 32_768)
    assert (start.request_tokens, start.max_len) == (32_768, 32_768)
    assert start.kv_bytes == int(56.18 * GIB) and start.weights_bytes == int(14.99 * GIB)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FEW, EngineStart(0, 7344, 7344, refused="too_long", max_len=32_768)),
        (NEEDS, EngineStart(int(3.18 * GIB), refused="too_long", max_len=262_144)),
        (NOTHING, EngineStart(refused="no_kv_memory")),
        (OWN.format("77.5"), EngineStart(refused="out_of_memory")),
        (
            "Available KV cache memory: 20.0 GiB\nValueError: max_num_seqs (256) exceeds available "
            "Mamba cache blocks (219).",
            EngineStart(20 * GIB, refused="states"),
        ),
    ],
)
def test_a_refusal_for_lack_of_memory_is_recognised(text: str, expected: EngineStart) -> None:
    assert read_start(text).start == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        V1[: V1.index("Available KV")],  # cut before the result
        OWN.format("1.5"),  # another process holds the memory
        "ValueError: Free memory on device (10/79 GiB) on startup is less than desired",
        "GPU KV cache size: 0 tokens",
        "GPU KV cache size: many tokens\nMaximum concurrency for x tokens per request: y",
    ],
)
def test_a_log_without_a_result_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="a whole log of a start of vLLM"):
        read_start(text)


def test_an_impossible_size_is_refused_with_field_value_and_limit() -> None:
    with pytest.raises(InvalidValue, match=r"kv_tokens: 1\d+ is not allowed; allowed: a whole"):
        read_start(V1.replace("297,840", "1" + "0" * 18))
    with pytest.raises(InvalidValue, match="kv_bytes"):
        read_start("Available KV cache memory: 1e400 GiB".replace("1e400", "9" * 400))


def test_the_last_of_two_starts_counts_and_a_cut_last_start_is_refused() -> None:
    second = V1.replace("297,840", "250,000")
    found = read_start(V1 + second)
    assert (found.start.kv_tokens, found.starts) == (250_000, 2)
    assert read_start(NOTHING + "\n" + V1).start.refused == ""
    with pytest.raises(InvalidValue, match="the last of 2 starts"):
        read_start(V1 + V1[: V1.index("(Worker_TP0")])


def test_mutated_logs_cause_no_other_error() -> None:
    rng = random.Random(55)
    for _ in range(1500):
        text = list(rng.choice((V1, V0, FEW, NEEDS, NOTHING, OWN)))
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(text))
            text[at : at + rng.randint(0, 20)] = rng.choice(
                ["", "9" * 30, ",,", "-", "\n", "{'a': [", "GiB", "\x00", "1.2.3", "tokens"]
            )
        try:
            read_start("".join(text))
        except InvalidValue as error:
            assert error.allowed
