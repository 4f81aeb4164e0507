"""The time in real ms that the harness itself adds to a request, from metrics of gateway and
engines.

p50 is the median of the gateway plus the median lateness of the engines, weighted by their number
of samples. p99 is the p99 of the gateway plus the largest p99 of an engine, which overestimates.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_GATEWAY = "shoal:gateway_overhead_quantile_ms"
_ENGINE = "shoal:sim_late_ms"
_TIMEOUT_S = 2.0


async def harness_overhead_ms(
    gateway_url: str, engines: Sequence[str]
) -> Mapping[str, float | None]:
    """{"p50", "p99"} in real ms; None if the gateway does not answer or has served no request.

    engines: "host:port" of the running engines. An engine that does not answer is left out.
    """
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        texts = await asyncio.gather(
            _metrics(session, gateway_url), *(_metrics(session, f"http://{e}") for e in engines)
        )
    return combine(texts[0], [text for text in texts[1:] if text])


def combine(gateway: str, engines: Sequence[str]) -> Mapping[str, float | None]:
    """The overhead in real ms. gateway, engines: the texts of their /metrics pages."""
    own = _quantiles(gateway, _GATEWAY)
    late = [(_quantiles(text, _ENGINE), _value(text, f"{_ENGINE}_count")) for text in engines]
    late = [(quantiles, count) for quantiles, count in late if quantiles and count]
    result: dict[str, float | None] = {"p50": None, "p99": None}
    if "0.5" in own:
        total = sum(count for _, count in late)
        mean = sum(q["0.5"] * count for q, count in late) / total if total else 0.0
        result["p50"] = round(own["0.5"] + mean, 3)
    if "0.99" in own:
        worst = max((q["0.99"] for q, _ in late), default=0.0)
        result["p99"] = round(own["0.99"] + worst, 3)
    return result


async def _metrics(session: aiohttp.ClientSession, url: str) -> str:
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with session.get(f"{url}/metrics") as answer:
            return await answer.text()
    return ""


def _quantiles(text: str, name: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            quantile = sample.labels.get("quantile")
            if sample.name == name and quantile and sample.value == sample.value:
                found[quantile] = sample.value
    return found


def _value(text: str, name: str) -> float:
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name
    )
