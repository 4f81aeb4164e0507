"""Executors of another version of Shoal are in the status of the controller."""

from __future__ import annotations

from importlib.metadata import version

from prometheus_client import generate_latest

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.node.executor_metrics import Metrics
from streams.health.controller_facts import other_releases
from topics.fleet import Status

OWN = version("shoal")


def status(node: str, executor: str, at_ms: int, release: str) -> Status:
    return Status(node, "us/l4/owned", executor, 1, at_ms, release=release)


def test_the_newest_status_of_an_executor_counts() -> None:
    statuses = [
        status("n0", "same", 20, OWN),
        status("n1", "upgraded", 30, OWN),
        status("n2", "upgraded", 10, "0.0.9"),  # an idle node reports seldom
        status("n3", "older", 30, ""),
        status("n4", "newer", 30, "9.0.0"),
    ]
    found = other_releases({one.node: one for one in statuses})
    assert found == {"older": "", "newer": "9.0.0"}


def test_gateways_and_executors_show_their_version_as_a_metric() -> None:
    line = f'shoal_build_info{{version="{OWN}"}} 1.0'.encode()
    assert line in GatewayMetrics().exposition()
    assert line in generate_latest(Metrics().registry)
