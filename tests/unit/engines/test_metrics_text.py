"""The load of an engine, read from its metrics."""

from __future__ import annotations

import pytest

from executors.engines.metrics_text import parse_load

_GAUGES = "vllm:num_requests_running 2\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.1\n"


def test_finished_requests_are_the_sum_over_their_reasons() -> None:
    load = parse_load(
        f'{_GAUGES}vllm:request_success_total{{finished_reason="stop"}} 40.0\n'
        'vllm:request_success_total{finished_reason="length"} 2.0\n'
    )
    assert (load.in_flight, load.finished) == (3, 42)


@pytest.mark.parametrize("count", ["NaN", "+Inf", "1e30", "-3"])
def test_an_impossible_count_leaves_the_requests_in_flight_known(count: str) -> None:
    load = parse_load(f"{_GAUGES}vllm:request_success_total {count}\n")
    assert (load.in_flight, load.finished) == (3, 0)


@pytest.mark.parametrize("count", ["NaN", "+Inf", "1e30", "-3", "x" * 5000])
@pytest.mark.parametrize("name", ["num_requests_running", "num_requests_waiting"])
def test_an_impossible_gauge_is_named_in_one_short_line(name: str, count: str) -> None:
    with pytest.raises(ValueError, match=f"vllm:{name} is") as caught:
        parse_load(f"{_GAUGES}vllm:{name} {count}\n")
    assert len(str(caught.value)) < 200


def test_impossible_tokens_are_unknown() -> None:
    assert parse_load(f"{_GAUGES}vllm:prompt_tokens_total NaN\n").tokens == 0.0


def test_text_without_the_gauges_is_refused() -> None:
    with pytest.raises(ValueError, match="vllm:"):
        parse_load("vllm:request_success_total 3\n")


def test_the_blocks_of_the_kv_cache_are_the_fewest_of_all_engines() -> None:
    info = 'vllm:cache_config_info{{block_size="{}",engine="{}",num_gpu_blocks="{}"}} 1.0\n'
    load = parse_load(_GAUGES + info.format(16, 0, 28027) + info.format(16, 1, 28000))
    assert (load.blocks, load.block_tokens) == (28000, 16)
    for bad in (info.format("auto", 0, 28027), info.format(16, 0, "None"), info.format(16, 0, 0)):
        load = parse_load(_GAUGES + bad)
        assert (load.blocks, load.block_tokens) == (0, 0)
