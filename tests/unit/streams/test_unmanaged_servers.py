"""Servers that Shoal did not start, as reported by Prometheus."""

from __future__ import annotations

from typing import Any

from streams.ports.unmanaged_counts import UnmanagedServers


def samples(*instances: str) -> list[dict[str, Any]]:
    return [{"metric": {"instance": name}, "value": [0, "1"]} for name in instances]


async def test_servers_of_all_prometheus_count_without_our_own_engines() -> None:
    """Shoal's engines export the same metrics, but they are excluded because the status of their
    executor names them."""
    asked: list[str] = []

    def here(query: str) -> list[dict[str, Any]]:
        asked.append(query)
        return samples("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:21000")

    counts: dict[str, int] = {}
    there = samples("10.9.0.1:8000")
    await UnmanagedServers(
        [here, lambda _query: there], lambda: ["chat"], lambda: ["10.0.0.9:21000"], counts
    ).query_once()
    assert counts == {"chat": 3}
    assert 'model_name="chat"' in asked[0]


async def test_an_answer_that_did_not_come_is_not_zero() -> None:
    """A partial answer gives no number either; an empty answer means zero servers."""
    counts = {"chat": 3}

    def away(_query: str) -> list[dict[str, Any]]:
        raise ConnectionError("refused")

    here = samples("10.0.0.1:8000")
    await UnmanagedServers([lambda _q: here, away], lambda: ["chat"], list, counts).query_once()
    assert counts == {"chat": 3}
    await UnmanagedServers([lambda _q: []], lambda: ["chat"], list, counts).query_once()
    assert counts == {"chat": 0}
