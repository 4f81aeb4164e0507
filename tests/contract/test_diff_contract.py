"""`shoal diff` with both brokers reads the running fleet from the topics of a controller."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from streams.cli.main import main
from tests.contract.brokers import Broker
from topics.codec import encode
from topics.decisions import Decision
from topics.fleet import Assignment, DesiredInstance
from topics.leadership import Leadership
from topics.topic_table import ASSIGNMENTS, DECISIONS, LEADERSHIP

CONFIG = """
defaults: {max_len: 8192}
regions: {eu: {l40s: {gpu: L40S, max: 9, price: 1.8}}}
models:
  mini:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 2s, tpot: 80ms}
    workload: {req_per_s: 20, input: 1155, output: 211}
"""
COMBO = "mini:a1@eu/l40s/on-demand"


def assignment(number: int) -> Assignment:
    now_ms = time.time_ns() // 1_000_000
    wanted = DesiredInstance(f"mini-{number}", "mini", "aggregated", f"{COMBO}:{number}", (0,))
    stray = DesiredInstance("x", "gone", "aggregated", "gone:a1@eu/l40s/on-demand:9", (0,))
    instances = (wanted,) if number else (stray,)
    return Assignment(f"eu.l40s.on-demand.{number}", "eu/l40s/on-demand", 1, 1, now_ms, instances)


def test_the_running_fleet_and_demand_are_compared_with_the_plan(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five nodes run for 0.5 req/s. The surplus would be removed, and instances of undeclared
    models are named.
    """
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG)

    async def publish() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap)
        await producer.start()
        claim = Leadership("ctl-1", "c1", "claim", 1, base=1)
        topic = LEADERSHIP.wire_name(broker.prefix)
        await producer.send_and_wait(topic, encode(claim), key=b"claim")
        for number in range(6):
            record = assignment(number)
            topic = ASSIGNMENTS.wire_name(broker.prefix)
            await producer.send_and_wait(topic, encode(record), key=record.node.encode())
        said = Decision(1, 1, "mini", "hold", time.time_ns() // 1_000_000, True, "x", 0.5)
        topic = DECISIONS.wire_name(broker.prefix)
        await producer.send_and_wait(topic, encode(said), key=b"mini")
        await producer.stop()

    asyncio.run(publish())
    options = ["--config", str(path), "--broker", broker.bootstrap, "--prefix", broker.prefix]
    assert main(["diff", *options]) == 0
    out = capsys.readouterr().out
    assert "the demand of the controller's last decisions" in " ".join(out.split())
    assert "  - 4 instances of 1xL40S eu on-demand (5 -> 1)" in out
    assert "eu/l40s on-demand  5 -> 1" in out
    assert "running, but not declared in this file: gone:a1@eu/l40s/on-demand" in out
    assert main(["diff", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(c["combo"], c["now"], c["proposed"]) for c in found["changes"]] == [(COMBO, 5, 1)]


def test_a_broker_that_does_not_answer_gives_one_error_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG)
    assert main(["diff", "--config", str(path), "--broker", "nowhere"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
