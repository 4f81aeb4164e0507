"""Serving pods that Shoal did not start, counted from the report of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from autoscaler.domain.cluster import Service
from streams.controller.demand_sources import prometheus_queries
from streams.files.shoal_yaml import Config, load_config
from streams.ports.serving_pods import ServingPods, parse_report

FILE = """
serving_pods: http://127.0.0.1:9210/serving
regions:
  us: {l4: {gpu: L4, owned: true, nodes: 4, per_node: 4}}
models:
  chat:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 60ms}
    unmanaged: {pool: us/l4/owned, gpus: 2}
"""


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "shoal.yaml"
    path.write_text(FILE)
    return load_config(path)


def row(pods: int, **changed: Any) -> dict[str, Any]:
    return {
        "model": "chat", "role": "aggregated", "pool": "us/l4/owned", "gpus": 2,
        "managed": False, "pods": pods, **changed,
    }  # fmt: skip


def services(config: Config) -> Callable[[], tuple[Service, ...]]:
    return lambda: config.cluster.services


async def counted(config: Config, counts: dict[str, int], *rows: dict[str, Any]) -> dict[str, int]:
    await ServingPods(lambda: orjson.dumps(rows), services(config), counts).read_once()
    return counts


def test_serving_pods_take_the_place_of_prometheus(config: Config) -> None:
    assert config.serving_pods == "http://127.0.0.1:9210/serving"
    assert prometheus_queries(config) == {}


async def test_pods_under_every_name_of_the_model_count_except_shoals_own(config: Config) -> None:
    rows = row(3), row(2, model="Qwen/Qwen3-8B"), row(4, managed=True), row(9, model="other")
    assert await counted(config, {}, *rows) == {"chat": 5}


async def test_pods_of_other_hardware_are_reported_once_and_do_not_count(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row(3), row(1, gpus=1), row(2, pool="unknown"), row(4, role="decode")]
    counts: dict[str, int] = {}
    reader = ServingPods(lambda: orjson.dumps(rows), services(config), counts)
    with caplog.at_level(logging.WARNING):
        await reader.read_once()
        await reader.read_once()
    assert counts == {"chat": 3}
    assert [record.message.split(" are")[0] for record in caplog.records] == [
        "7 serving pods of chat"
    ]


async def test_no_pod_is_zero_only_after_one_was_seen(config: Config) -> None:
    assert await counted(config, {}) == {}
    assert await counted(config, {"chat": 2}) == {"chat": 0}


async def test_a_report_that_cannot_be_read_leaves_the_counts(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> bytes:
        raise ConnectionError("refused")

    counts = {"chat": 2}
    for fetch in (away, lambda: b"[", lambda: b"{}", lambda: orjson.dumps([row(-1)])):
        await ServingPods(fetch, services(config), counts).read_once()
        assert counts == {"chat": 2}
    assert "refused" in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"pods": 1.5}, {"pods": True}, {"managed": 0}, {"pool": None}, {"gpus": "2"}]
)
def test_rows_with_other_types_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a row"):
        parse_report(orjson.dumps([row(1) | wrong]))
