"""The HTTP endpoint of an executor, on loopback."""

from __future__ import annotations

import aiohttp
import pytest

from executors.node.executor_metrics import Metrics, serve


@pytest.mark.parametrize(
    ("host", "status"), [("attacker.example", 421), ("localhost", 200), ("127.0.0.1:9", 200)]
)
async def test_metrics_are_served_only_to_host_names_of_this_host(host: str, status: int) -> None:
    runner = await serve(Metrics(), 0)
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/metrics"
        async with (
            aiohttp.ClientSession() as session,
            session.get(url, headers={"Host": host}) as answer,
        ):
            assert answer.status == status
    finally:
        await runner.cleanup()


async def test_an_executor_is_alive_while_its_event_loop_runs() -> None:
    """The endpoint knows neither Kafka nor the API server, so their outages cannot change it."""
    runner = await serve(Metrics(), 0)
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/livez"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert (answer.status, await answer.text()) == (200, "ok\n")
    finally:
        await runner.cleanup()
