"""Formats numbers and short phrases for the sentences of reasons, with units."""

from __future__ import annotations

from autoscaler.performance.catalog import short_gpu_name


def rate(req_per_s: float) -> str:
    """A rate with about three digits and without its unit, e.g. "15.1", "0.42", "120"."""
    if req_per_s >= 100:
        return f"{req_per_s:.0f}"
    return f"{req_per_s:.1f}" if req_per_s >= 1 else f"{req_per_s:.2f}"


def money(usd_per_h: float) -> str:
    """A change of cost in USD, e.g. "+7.20 USD/h" or "-2.90 USD/h"."""
    return f"{usd_per_h + 0.0:+.2f} USD/h"


def duration(seconds: float) -> str:
    """An approximate duration, e.g. "~45 s", "~6 min", "~2 h"."""
    if seconds < 90:
        return f"~{seconds:.0f} s"
    return f"~{seconds / 60:.0f} min" if seconds < 5400 else f"~{seconds / 3600:.0f} h"


def lasting(seconds: float) -> str:
    """A duration without the sign "~": "45 s", "6 min", "2 h"."""
    return duration(seconds).removeprefix("~")


def setting(seconds: float) -> str:
    """A duration as written in configuration files: "90s", "16m"; rounded to the minute above two
    minutes."""
    return f"{seconds:g}s" if seconds < 120.0 else f"{seconds / 60.0:.0f}m"


def count(number: int, what: str) -> str:
    """A number with its noun: "1 node", "2 nodes"."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def over(demand_req_per_s: float, utilization: float, raw_req_per_s: float) -> str:
    """The reason why capacity is added: "demand of 15.1 req/s is over 80% of capacity 17.6". A
    demand that continues to rise may be within that share: the text then says so."""
    relation = "over" if demand_req_per_s > utilization * raw_req_per_s else "within"
    share = f"{utilization:.0%} of capacity {rate(raw_req_per_s)}"
    return f"demand of {rate(demand_req_per_s)} req/s is {relation} {share}"


def kv_cache_text(gpu: str, gpus: int, tokens: int, is_measured: bool) -> str:
    """The KV cache of an instance, e.g. "448,192 tokens on 1xH100 (measured at a start)"."""
    known = "measured at a start" if is_measured else "predicted"
    return f"{tokens:,} tokens on {gpus}x{short_gpu_name(gpu)} ({known})"
