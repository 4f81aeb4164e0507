"""Serving pods that Shoal did not start, counted from the report of a cluster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from autoscaler.domain.cluster import Cluster
from streams.controller.demand_sources import prometheus_queries
from streams.files.shoal_yaml import Config, load_config
from streams.ports.serving_pods import ServingPods, parse_report

FILE = """
serving_pods: http://127.0.0.1:9210/serving
regions:
  us:
    l4: {gpu: L4, owned: true, nodes: 4, per_node: 4}
    h100: {gpu: H100, owned: true, nodes: 1, per_node: 8}
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


Counts = dict[str, Mapping[str, int]]
TWO_L4, ONE_L4 = "chat:a2@us/l4/owned", "chat:a1@us/l4/owned"


def declared(config: Config) -> Callable[[], Cluster]:
    return lambda: config.cluster


async def counted(config: Config, counts: Counts, *rows: dict[str, Any]) -> Counts:
    await ServingPods(lambda: orjson.dumps(rows), declared(config), counts).read_once()
    return counts


def test_serving_pods_take_the_place_of_prometheus(config: Config) -> None:
    assert config.serving_pods == "http://127.0.0.1:9210/serving"
    assert prometheus_queries(config) == {}


async def test_pods_under_every_name_of_the_model_count_except_shoals_own(config: Config) -> None:
    rows = row(3), row(2, model="Qwen/Qwen3-8B"), row(4, managed=True), row(9, model="other")
    assert await counted(config, {}, *rows) == {"chat": {TWO_L4: 5}}


async def test_pods_count_with_the_pool_of_their_node_and_their_gpus(config: Config) -> None:
    rows = row(3), row(1, gpus=1), row(2, pool="us/h100/owned", gpus=8)
    found = await counted(config, {}, *rows)
    assert found == {"chat": {TWO_L4: 3, ONE_L4: 1, "chat:a8@us/h100/owned": 2}}


async def test_pods_outside_of_declared_hardware_are_reported_once_and_do_not_count(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [row(3), row(1, gpus=8), row(2, pool="unknown"), row(4, role="decode")]
    counts: Counts = {}
    reader = ServingPods(lambda: orjson.dumps(rows), declared(config), counts)
    with caplog.at_level(logging.WARNING):
        await reader.read_once()
        await reader.read_once()
    assert counts == {"chat": {TWO_L4: 3}}
    assert [record.message.split(" are")[0] for record in caplog.records] == [
        "7 serving pods of chat"
    ]


async def test_no_pod_is_zero_only_after_one_was_seen(config: Config) -> None:
    assert await counted(config, {}) == {}
    assert await counted(config, {"chat": {ONE_L4: 2}}) == {"chat": {TWO_L4: 0}}


async def test_a_report_that_cannot_be_read_leaves_the_counts(
    config: Config, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> bytes:
        raise ConnectionError("refused")

    counts: Counts = {"chat": {ONE_L4: 2}}
    for fetch in (away, lambda: b"[", lambda: b"{}", lambda: orjson.dumps([row(-1)])):
        await ServingPods(fetch, declared(config), counts).read_once()
        assert counts == {"chat": {ONE_L4: 2}}
    assert "refused" in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"pods": 1.5}, {"pods": True}, {"managed": 0}, {"pool": None}, {"gpus": "2"}]
)
def test_rows_with_other_types_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="a row"):
        parse_report(orjson.dumps([row(1) | wrong]))
