"""Recordings for the console: a decision log decided again, and a simulated timeline."""

from __future__ import annotations

import aiohttp
import orjson
import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.serving.billing import NodeSpan
from autoscaler.simulation.policy_score import score
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.timeline import RequestRow, Timeline
from streams.files.user_errors import UserError
from streams.tools.playback.recorded_run import MOST_SAMPLES, Columns
from streams.tools.playback.recording_server import served
from streams.tools.playback.timeline_run import timeline_run
from tests.unit.console.console_world import POOLS, TINY


def test_a_long_run_is_thinned_and_keeps_its_span() -> None:
    columns = Columns(("a",))
    for step in range(10 * MOST_SAMPLES):
        columns.add(1000 * step, {"a": float(step)})
    found = columns.as_json()
    assert len(found["t"]) == len(found["a"]) <= MOST_SAMPLES
    assert found["t"][0] == 0 and found["t"][-1] >= 0.99 * 1000 * 10 * MOST_SAMPLES


async def test_a_recording_is_served_with_the_page_and_nothing_can_be_changed() -> None:
    async with served("127.0.0.1:0", b'{"form":1}') as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/v1/console") as answer:
            assert orjson.loads(await answer.read()) == {"form": 1}
        async with session.get(url) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        async with session.post(f"{url}/v1/controls", json={}) as answer:
            assert answer.status == 404
        async with session.get(url, headers={"Host": "evil.example"}) as answer:
            assert answer.status == 421


async def test_an_address_that_is_taken_is_refused_by_the_options_name() -> None:
    async with served("127.0.0.1:0", b"{}") as url:
        with pytest.raises(UserError, match=r"--serve 127\.0\.0\.1:"):
            async with served(url.removeprefix("http://"), b"{}"):
                pass


def test_a_timeline_becomes_columns_of_its_requests_and_nodes() -> None:
    staged = Scenario(Cluster(POOLS, (TINY,)), (), 100.0, 20.0)
    timeline = Timeline(origin_ms=1_000_000)
    timeline.nodes = [NodeSpan("n", staged.cluster.pools[0].id, 2.0, 0.0, staged.end_s)]
    for k in range(100):
        at_s = staged.lead_s + k
        timeline.requests.append(
            RequestRow(k, "tiny", at_s, at_s + 0.5, at_s + 1.5, 10, 11, "served")
        )
    found = timeline_run("hpa", timeline, staged, {"tiny": TINY.lengths})
    model, fleet = found.run["history"]["tiny"], found.run["history"]["*"]
    at = found.run["history"]["tiny"]["t"].index(1_000_000 + 1000 * (int(staged.lead_s) + 20))
    assert model["demand"][at] == pytest.approx(1.0, rel=0.11)
    assert model["ttft"][at] == 500.0 and model["tpot"][at] == 100.0
    assert model["target"][0] is None  # other policies have none
    result = score(timeline, staged, {"tiny": TINY.lengths})
    assert found.run["usd"] == pytest.approx(result.cost_usd, abs=1e-8)
    assert found.run["attained"] == pytest.approx(result.slo_attainment, abs=1e-8)
    assert fleet["usd"][0] == 2.0 and found.run["nodes"][0][2] == 1_000_000
