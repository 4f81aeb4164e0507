"""Parses vLLM's /metrics into the load of an engine."""

from __future__ import annotations

import math
import re

from executors.engines.engine_protocol import Load
from topics.checks import MAX_COUNT

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV = "vllm:kv_cache_usage_perc"
_FINISHED = "vllm:request_success_total"
_SLEEP = re.compile(r'^vllm:engine_sleep_state\{.*sleep_state="awake".*\} ([\d.]{1,20})$', re.M)
_BLOCKS = re.compile(r'^vllm:cache_config_info\{.*\bnum_gpu_blocks="(\d{1,11})"', re.M)
_BLOCK_TOKENS = re.compile(r'^vllm:cache_config_info\{.*\bblock_size="(\d{1,6})"', re.M)
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


def samples(text: str, name: str) -> list[float]:
    """All samples of the metric `name`, whatever their labels. ValueError names a sample that is no
    number."""
    found = []
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")):
            value = line.rpartition(" ")[2]
            try:
                found.append(float(value))
            except ValueError:
                raise ValueError(f"{name} is {value[:40]!r}, no number") from None
    return found


def is_awake(text: str) -> bool:
    """Whether the core reports that it is awake; False if the metric is missing."""
    return any(float(value) > 0.0 for value in _SLEEP.findall(text))


def parse_load(text: str) -> Load:
    """Running, waiting and finished requests, and whether an idle engine holds KV (held_kv 1). KV
    of finished prefills appears only in the gauge of KV usage, so it can be detected only while the
    engine is idle. An impossible number of finished requests or tokens counts as unknown (0).
    Raises ValueError if the text lacks the gauges, or has impossible ones.
    """
    running, waiting, usage = samples(text, _RUNNING), samples(text, _WAITING), samples(text, _KV)
    if not running or not waiting or not usage:
        raise ValueError(f"no {_RUNNING}, {_WAITING} or {_KV} in the metrics")
    idle = not any(running) and not any(waiting)
    tokens = sum(sum(samples(text, name)) for name in _TOKENS)
    tokens = tokens if 0.0 <= tokens < math.inf else 0.0
    held_kv = int(idle and max(usage) > 0.0)
    finished = sum(samples(text, _FINISHED))
    counted = int(finished) if 0.0 <= finished <= MAX_COUNT else 0
    blocks = min(map(int, _BLOCKS.findall(text)), default=0)
    block_tokens = min(map(int, _BLOCK_TOKENS.findall(text)), default=0) if blocks else 0
    blocks = blocks if block_tokens else 0
    for name, values in ((_RUNNING, running), (_WAITING, waiting)):
        if not all(0.0 <= one <= MAX_COUNT for one in values):
            raise ValueError(f"{name} is {max(values, key=abs)}, no number of requests")
    sums = int(sum(running)), int(sum(waiting))
    return Load(*sums, held_kv, tokens, counted, blocks, block_tokens)
