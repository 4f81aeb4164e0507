"""A whole run serves its requests, accounts for them, and leaves no process or file."""

from __future__ import annotations

import asyncio
import math
import os
import re
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from tests.acceptance.conftest import Start
from tests.acceptance.shoal_up import Run

KAFKA = os.environ.get("SHOAL_TEST_KAFKA")
BROKERS = [(), *([("--broker", f"kafka://{KAFKA}")] if KAFKA else [])]
OURS = {"shoal.yaml", "trace.csv", "stderr", "temporary", "summary.json"}
LATENCIES = ("ttft_ms", "tpot_ms")


def assert_served(run: Run) -> dict[str, Any]:
    """Assert that the run ended with code 0 and that its summary is complete and plausible. Returns
    the summary.
    """
    assert run.errors == ""
    summary = run.summary
    requests = summary["requests"]
    assert set(requests) == {"sent", "served", "failed", "dropped"}
    assert requests["sent"] == requests["served"] + requests["failed"] + requests["dropped"]
    assert requests["sent"] > 100
    assert requests["served"] >= 0.99 * requests["sent"]
    model = summary["models"]["mini"]
    assert model["requests"] == requests["sent"]
    # Every request of the trace has 200 tokens in and 60 out.
    assert model["input_tokens"] == 200 * requests["served"]
    assert model["output_tokens"] == 60 * requests["served"]
    for name in LATENCIES:
        p50, p95, p99 = (model[name][q] for q in ("p50", "p95", "p99"))
        assert 0.0 < p50 <= p95 <= p99 < 60_000.0
    assert 0.0 <= model["slo_attainment"] <= 1.0
    assert summary["decisions"]["scale_out"] >= 1
    assert all(seconds >= 0.0 for seconds in summary["reaction_s"])
    assert 0.0 <= summary["replay_late_ms"]["p50"] <= summary["replay_late_ms"]["p99"]
    assert 0.0 < summary["overhead_ms"]["p50"] <= summary["overhead_ms"]["p99"]
    assert summary["speed"] == 20.0
    assert summary["restarts"] == {}
    return summary


async def topics_of_runs(bootstrap: str) -> list[str]:
    """The topics that runs of `shoal up` created on this Kafka."""
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        return [name for name in await admin.list_topics() if name.startswith("shoal-up-")]
    finally:
        await admin.close()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_short_run(start: Start, broker: tuple[str, ...]) -> None:
    """The run ends with its trace and exit code 0, its cost fits the node hours, and no process is
    left.

    SHOAL_TEST_KAFKA=HOST:PORT runs the same test with a real Kafka.
    """
    run = start(*broker, trace_s=400)
    assert run.end() == 0
    summary = assert_served(run)
    hours = summary["gpu_hours"]["L4"]
    assert 0.0 < hours <= 2 * summary["wall_s"] * 20.0 / 3600.0
    assert math.isclose(summary["cost_usd"], 0.85 * hours, rel_tol=0.01)
    printed = "\n".join(run.lines)
    sent = summary["requests"]["sent"]
    assert f"{sent} sent, {summary['requests']['served']} served" in printed
    assert "mini declares no rate: planned for the start of the trace, 1.0 req/s" in printed
    assert re.search(r"^\+[\d:]+ mini \+2×L4 eu: .*; \+1\.70 USD/h; serving in", printed, re.M)
    assert str(run.summary_path) in printed
    assert run.processes() == []
    assert list(run.temporary.iterdir()) == []
    assert {path.name for path in run.folder.iterdir()} == OURS, "it left files where it ran"
    if broker and KAFKA:
        # Kafka deletes them a moment after its answer.
        run.until(lambda: not asyncio.run(topics_of_runs(KAFKA)), "end of its topics")
