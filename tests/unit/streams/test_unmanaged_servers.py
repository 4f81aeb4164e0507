"""Servers that Shoal did not start, counted by Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streams.ports.metric_servers import LATELY, MARK, RUNNING
from streams.ports.unmanaged_counts import UnmanagedServers

ONE_L4 = "chat:a1@us/l4/owned"


def samples(*instances: str) -> list[dict[str, Any]]:
    return [{"metric": {"instance": name, MARK: RUNNING}, "value": [0, "4"]} for name in instances]


async def test_servers_of_every_prometheus_count_except_shoals_engines() -> None:
    """Shoal's engines export the same metrics. The status of their executor names them, so they are
    excluded.
    """
    asked: list[str] = []

    def here(query: str) -> list[dict[str, Any]]:
        asked.append(query)
        return samples("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.9:21000")

    counts: dict[str, Mapping[str, int]] = {}
    there = samples("10.9.0.1:8000")
    await UnmanagedServers(
        [here, lambda _query: there],
        lambda: {"chat": (ONE_L4, ("chat",))},
        lambda: ["10.0.0.9:21000"],
        counts,
    ).query_once()
    assert counts == {"chat": {ONE_L4: 3}}
    assert 'model_name="chat"' in asked[0]


async def test_a_missing_answer_is_not_a_count_of_zero() -> None:
    """A partial answer gives no number either.

    An empty answer means that Prometheus knows no such server. A sample of 0 means that the servers
    went away.
    """
    counts: dict[str, Mapping[str, int]] = {"chat": {ONE_L4: 3}}

    def away(_query: str) -> list[dict[str, Any]]:
        raise ConnectionError("refused")

    here = samples("10.0.0.1:8000")
    gone = [{"metric": {"instance": "10.0.0.1:8000", MARK: LATELY}, "value": [0, "9"]}]
    for asks, count in (
        ([lambda _q: here, away], 3),
        ([lambda _q: []], 3),
        ([lambda _q: [{"metric": {}, "value": [0, "NaN"]}]], 3),
        ([lambda _q: gone], 0),
    ):
        await UnmanagedServers(
            asks, lambda: {"chat": (ONE_L4, ("chat",))}, list, counts
        ).query_once()
        assert counts == {"chat": {ONE_L4: count}}


async def test_servers_count_under_each_name_and_engines_of_one_server_count_each() -> None:
    """The servers of a model report the name that they serve, which may be one of several."""

    def ask(query: str) -> list[dict[str, Any]]:
        if 'model_name="acme/chat"' in query:
            one = {"instance": "10.0.0.1:8000", MARK: RUNNING}
            return [{"metric": {**one, "engine": str(n)}, "value": [0, "0"]} for n in range(4)]
        return samples("10.0.0.2:8000") if 'model_name="chat"' in query else []

    counts: dict[str, Mapping[str, int]] = {}
    models = {"chat": (ONE_L4, ("chat", "acme/chat", "old"))}
    await UnmanagedServers([ask], lambda: models, list, counts).query_once()
    assert counts == {"chat": {ONE_L4: 5}}
