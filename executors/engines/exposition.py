"""Reading vLLM's /metrics: what an engine holds.

Owns the few names that a drain depends on. Knows nothing of HTTP.
"""

from __future__ import annotations

from executors.engines.protocol import Load

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_KV = "vllm:kv_cache_usage_perc"


def values(text: str, name: str) -> list[float]:
    """All samples of the metric `name` (labels are not looked at)."""
    return [
        float(line.rpartition(" ")[2])
        for line in text.splitlines()
        if line.startswith((name + "{", name + " "))
    ]


def load(text: str) -> Load:
    """Requests running and waiting, and whether KV is held though there are none.

    KV of finished prefills shows in the KV gauge alone, so it can be told only of an idle engine:
    held_kv is 1 then. ValueError: the text lacks the gauges.
    """
    running, waiting, usage = values(text, _RUNNING), values(text, _WAITING), values(text, _KV)
    if not running or not waiting or not usage:
        raise ValueError(f"no {_RUNNING}, {_WAITING} or {_KV} in the metrics")
    in_flight = int(sum(running) + sum(waiting))
    return Load(in_flight, held_kv=int(in_flight == 0 and max(usage) > 0.0))
