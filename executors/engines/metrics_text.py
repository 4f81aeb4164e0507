"""Reading vLLM's /metrics: what an engine holds.

Owns the few names that a drain depends on. Knows nothing of HTTP.
"""

from __future__ import annotations

import re

from executors.engines.engine_protocol import Load

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV = "vllm:kv_cache_usage_perc"
_SLEEP = re.compile(r'^vllm:engine_sleep_state\{.*sleep_state="awake".*\} (\S+)$', re.M)
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")


def values(text: str, name: str) -> list[float]:
    """All samples of the metric `name` (labels are not looked at)."""
    return [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((name + "{", name + " "))
    ]


def awake(text: str) -> bool:
    """Whether its core says that it is awake; False too where it says nothing of it."""
    return any(float(value) > 0.0 for value in _SLEEP.findall(text))


def load(text: str) -> Load:
    """Requests running and waiting, and whether KV is held though there are none.

    KV of finished prefills shows in the KV gauge alone, so it can be told only of an idle engine:
    held_kv is 1 then. ValueError: the text lacks the gauges.
    """
    running, waiting, usage = values(text, _RUNNING), values(text, _WAITING), values(text, _KV)
    if not running or not waiting or not usage:
        raise ValueError(f"no {_RUNNING}, {_WAITING} or {_KV} in the metrics")
    idle = not any(running) and not any(waiting)
    tokens = sum(sum(values(text, name)) for name in _TOKENS)
    held_kv = int(idle and max(usage) > 0.0)
    return Load(int(sum(running)), int(sum(waiting)), held_kv, tokens)
