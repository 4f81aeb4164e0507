"""Queries over the series of vLLM servers, evaluated by a real Prometheus.

The series come from vLLM 0.6 (no label `engine`, no counter before the first finished request), the
current version, Ray, an OpenTelemetry collector, federation, replicas of one Prometheus, and two
jobs that scrape one server. Every server finishes half a request per second unless a test says
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from streams.files.prometheus_section import PrometheusServer
from streams.ports.promql import client_of, rate_of
from streams.ports.unmanaged_counts import servers_of
from streams.ports.vllm_queries import (
    RUNNING,
    WAITING,
    arrivals_query,
    held_query,
    model_names_query,
    servers_query,
    text_literal,
)
from tests.integration.alerts.prometheus_server import running_prometheus

START_S, SPAN_S = 1_700_000_000, 1200
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
ODD = 'we"ird\\na{me}'
Value = Callable[[int], float]


class Samples:
    """OpenMetrics text of series, each with a sample every `every_s` seconds."""

    def __init__(self) -> None:
        self._series: dict[str, list[str]] = {}

    def add(
        self, metric: str, labels: dict[str, str], value: Value, every_s: int = 15,
        begin_s: int = 0, end_s: int = SPAN_S,
    ) -> None:  # fmt: skip
        text = ",".join(f"{key}={text_literal(value)}" for key, value in labels.items())
        times = range(begin_s, end_s + 1, every_s)
        rows = [f"{metric}{{{text}}} {value(at)} {START_S + at}" for at in times]
        self._series.setdefault(metric, []).extend(rows)

    def server(
        self, name: str, labels: dict[str, str], *, prefix: str = "vllm:", total: str = "_total",
        finished: Value = lambda at: at / 2, running: Value = lambda _: 4.0,
        every_s: int = 15, begin_s: int = 0, end_s: int = SPAN_S,
    ) -> None:  # fmt: skip
        labels = {"model_name": name, **labels}
        times = every_s, begin_s, end_s
        self.add(f"{prefix}num_requests_running", labels, running, *times)
        self.add(f"{prefix}num_requests_waiting", labels, lambda _: 0.0, *times)
        for reason, share in (("stop", 0.8), ("length", 0.2), ("abort", 0.0)):
            own = {**labels, "finished_reason": reason}
            counter = f"{prefix}request_success{total}"
            self.add(counter, own, lambda at, share=share: share * finished(at), *times)  # type: ignore[misc]
            created = f"{prefix}request_success_created"
            self.add(created, own, lambda _: 1.7e9, *times)

    def text(self) -> str:
        return "\n".join(row for rows in self._series.values() for row in rows) + "\n# EOF\n"


def pod(number: int, **more: str) -> dict[str, str]:
    """Labels that Kubernetes adds to the series of a pod."""
    return {
        "namespace": "llm", "pod": f"llama-{number}", "container": "vllm", "job": "llm/vllm",
        "endpoint": "http", "instance": f"10.0.0.{number}:8000", **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def url(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = Samples()
    for number in range(3):
        for engine in ("0", "1"):
            made.server(LLAMA, pod(number, engine=engine))
    made.server(LLAMA.replace("3.1", "3x1"), pod(7, engine="0"), finished=lambda at: 9.0 * at)
    made.server("v0.6", pod(1))
    made.add("vllm:num_requests_running", {"model_name": "v0.6", **pod(2)}, lambda at: at / 100)
    made.add("vllm:num_requests_waiting", {"model_name": "v0.6", **pod(2)}, lambda _: 0.0)
    for copy in ({"replica": "a"}, {"replica": "b"}, {"service": "llama", "job": "llama"}):
        made.server("copies", pod(1, engine="0", **copy))
    for replica in ("x", "y"):
        node = {"instance": "10.1.0.1:9100", "ReplicaId": replica, "engine": "0"}
        for total in ("", "_total"):
            made.server("ray", node, prefix="ray_vllm_", total=total)
    made.server("otel", {"instance": "a", "engine": "0"}, prefix="vllm_", total="")
    for number in range(3):
        made.server(
            "federated", {"instance": "fed:9090", "exported_instance": f"10.2.0.{number}:80"}
        )
    made.server("slow", pod(1), every_s=60)
    made.server("idle", pod(1), finished=lambda _: 0.0, running=lambda _: 0.0)
    made.server("gone", pod(1), end_s=SPAN_S - 700)
    made.server("new", pod(1), begin_s=SPAN_S)
    made.server(ODD, pod(1))
    crash = SPAN_S - 40
    made.server(
        "restarted",
        pod(1),
        finished=lambda at: at / 2 if at < crash else (at - crash) / 2,
        running=lambda at: 300.0 if at < crash else 2.0,
    )
    made.add(
        "vllm:num_requests_running:sum", {"model_name": LLAMA}, lambda _: 900.0
    )  # a recording rule
    folder = tmp_path_factory.mktemp("series")
    with running_prometheus(binaries, folder, made.text()) as found:
        yield found


@pytest.fixture
def ask(url: str) -> Callable[[str], list[dict[str, object]]]:
    client = client_of(PrometheusServer(url), 1, 10.0)
    return lambda query: client.custom_query(query, params={"time": START_S + SPAN_S})


@pytest.mark.parametrize(
    ("name", "rate", "servers"),
    [
        (LLAMA, 3.0, 6),
        ("v0.6", 0.5 + 0.01, 2),  # The queue of the second server grows by 1 in 100 s.
        ("copies", 0.5, 1),
        ("ray", 1.0, 2),
        ("otel", 0.5, 1),
        ("federated", 1.5, 3),
        ("slow", 0.5, 1),
        ("idle", 0.0, 1),
        ("gone", None, 0),
        ("new", None, 1),
        ("never", None, None),
        (ODD, 0.5, 1),
    ],
)
def test_demand_and_servers_of_a_model_name(
    ask: Callable[[str], list[dict[str, object]]],
    name: str,
    rate: float | None,
    servers: int | None,
) -> None:
    """A missing series, too few samples and zero give different results, for the demand and for the
    servers.
    """
    found = rate_of(ask(arrivals_query(name)))
    assert found == (rate if rate is None else pytest.approx(rate, rel=0.02))
    counted = servers_of(ask(servers_query(name)))
    assert (sum(count for _, count in counted) if counted else None) == servers


def test_a_restarted_server_does_not_lower_the_demand(
    ask: Callable[[str], list[dict[str, object]]],
) -> None:
    """It lost 298 requests, and its counter began again at zero. Without handling of restarts, the
    growth would be -5 req/s.
    """
    found = rate_of(ask(arrivals_query("restarted")))
    assert found is not None and 0.3 <= found <= 0.7


def test_requests_of_servers_are_added_without_duplicates(
    ask: Callable[[str], list[dict[str, object]]],
) -> None:
    assert rate_of(ask(held_query(RUNNING, LLAMA))) == 24.0
    assert rate_of(ask(held_query(RUNNING, "copies"))) == 4.0
    assert rate_of(ask(held_query(WAITING, "copies"))) == 0.0
    assert ask(held_query(RUNNING, "never")) == []


def test_the_addresses_of_servers_are_those_of_their_engines(
    ask: Callable[[str], list[dict[str, object]]],
) -> None:
    """Shoal recognises its own engines by these addresses, even through a federation."""
    assert dict(servers_of(ask(servers_query(LLAMA)))) == {f"10.0.0.{n}:8000": 2 for n in range(3)}
    federated = servers_of(ask(servers_query("federated")))
    assert dict(federated) == {f"10.2.0.{n}:80": 1 for n in range(3)}


def test_the_names_of_all_servers_are_known(
    ask: Callable[[str], list[dict[str, object]]],
) -> None:
    names = {sample["metric"]["model_name"] for sample in ask(model_names_query())}  # type: ignore[index]
    assert {LLAMA, "ray", "otel", "v0.6", ODD} <= names and "gone" not in names
