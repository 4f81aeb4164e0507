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
from streams.ports.engine_metrics import ENGINES
from streams.ports.metric_servers import HELD, Answer, summed
from streams.ports.promql import client_of, rate_of
from streams.ports.unmanaged_counts import servers_of
from streams.ports.vllm_queries import (
    MetricSource,
    arrivals_query,
    held_query,
    model_names_query,
    of_source,
    servers_query,
    text_literal,
)
from streams.tools.backtest.prometheus_counters import Grid, read_requests
from streams.tools.backtest.prometheus_source import ask_range
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

    def engines(self) -> None:
        """Half a request per second at two servers of each other engine, in their own metrics.

        SGLang splits requests by streaming; Dynamo's gauge of requests in flight includes its
        queue; llm-d's endpoint picker counts requests when they arrive.
        """
        half: Value = lambda at: at / 4  # noqa: E731
        for number in (1, 2):
            at = {"model_name": "m", "instance": f"10.5.0.{number}:80"}
            of_engine = {**at, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
            for streams in ("true", "false"):
                own = {**of_engine, "is_streaming": streams}
                self.add("sglang:num_requests_total", own, lambda at: at / 4)
            self.add("sglang:num_running_reqs", of_engine, lambda _: 3.0)
            self.add("sglang:num_queue_reqs", of_engine, lambda at: at / 100)
            trt = {**at, "engine_type": "trtllm"}
            for reason in ("stop", "length"):
                own = {**trt, "finished_reason": reason}
                self.add("trtllm_request_success_total", own, half)
            self.add("trtllm_num_requests_running", trt, lambda _: 3.0)
            self.add("trtllm_num_requests_waiting", trt, lambda _: 0.0)
            front = {"model": "m", "instance": f"10.5.0.{number}:80"}
            for kind in ("stream", "unary"):
                own = {**front, "endpoint": "chat_completions", "request_type": kind,
                       "status": "success"}  # fmt: skip
                self.add("dynamo_frontend_requests_total", own, half)
            self.add("dynamo_frontend_inflight_requests", front, lambda at: at / 100)
            self.add("dynamo_frontend_queued_requests", front, lambda at: at / 100)
            for target in ("a", "b"):
                own = {**at, "target_model_name": target}
                self.add("inference_objective_request_total", own, half)
            self.add("inference_objective_running_requests", at, lambda at: at / 10)

    def text(self) -> str:
        return "\n".join(row for rows in self._series.values() for row in rows) + "\n# EOF\n"


def pod(number: int, **more: str) -> dict[str, str]:
    """Labels that Kubernetes adds to the series of a pod."""
    return {
        "namespace": "llm", "pod": f"llama-{number}", "container": "vllm", "job": "llm/vllm",
        "endpoint": "http", "instance": f"10.0.0.{number}:8000", **more,
    }  # fmt: skip


PREFILL = (
    {"pod": "prefill-0"}, {"pod": "llama-prefill-7d9f-x2"}, {"llm_d_ai_role": "prefill"},
    {"role": "prefill", "pod": "a"}, {"job": "llm/vllm-prefill"}, {"dynamo_component": "prefill"},
)  # fmt: skip
DECODE = (
    {"pod": "decode-0", "llm_d_ai_role": "decode"}, {"pod": "b"}, {"pod": "prefill-decode-0"},
    {"pod": "c", "role": "both"},
)  # fmt: skip


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
    for number, labels in enumerate(PREFILL + DECODE):
        made.server("split", {"instance": f"10.3.0.{number}:8000", "engine": "0", **labels})
    made.server("prefill only", pod(1, role="prefill"))
    for number, space in ((1, "prod"), (2, "prod"), (1, "staging")):
        made.server("two places", pod(number, namespace=space))
    direct = {"instance": "10.4.0.1:8000", "engine": "0", "job": "vllm"}
    for copy in (
        direct,
        {**direct, "pod": "llama-1", "namespace": "llm", "node": "n1", "job": "llm/pods"},
        {**direct, "cluster": "eu", "prometheus": "leaf", "monitor": "x"},
        {"instance": "leaf:9090", "exported_instance": "10.4.0.1:8000", "exported_job": "vllm",
         "engine": "0", "job": "federate"},
        {"team": "recorded"},
    ):  # fmt: skip
        made.server("seen by many", copy)
    for cluster in ("eu", "us"):
        made.server("same address", {**direct, "cluster": cluster})
    made.engines()
    for begin_s in range(0, SPAN_S, 120):
        made.server("gaps", pod(1), begin_s=begin_s, end_s=begin_s + 55)
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
        ("split", 2.0, 4),
        ("prefill only", 0.5, 1),
        ("two places", 1.5, 3),
        ("seen by many", 0.5, 1),
        ("same address", 1.0, 2),
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
    found = rate_of(summed(ask(arrivals_query(name))))
    assert found == (rate if rate is None else pytest.approx(rate, rel=0.02))
    counted = servers_of(ask(servers_query(name)))
    assert (sum(count for _, count in counted) if counted else None) == servers


def test_a_restarted_server_does_not_lower_the_demand(
    ask: Callable[[str], list[dict[str, object]]],
) -> None:
    """It lost 298 requests, and its counter began again at zero. Without handling of restarts, the
    growth would be -5 req/s.
    """
    found = rate_of(summed(ask(arrivals_query("restarted"))))
    assert found is not None and 0.3 <= found <= 0.7


def test_requests_of_servers_are_added_without_duplicates(
    ask: Callable[[str], list[dict[str, object]]],
) -> None:
    assert Answer(ask(held_query(LLAMA, waiting=False))).total(HELD) == 24.0
    assert Answer(ask(held_query("copies", waiting=False))).total(HELD) == 4.0
    assert Answer(ask(held_query("copies", waiting=True))).total(HELD) == 0.0
    assert ask(held_query("never", waiting=False)) == []


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


def test_labels_select_the_servers_of_a_model(
    ask: Callable[[str], list[dict[str, object]]], url: str
) -> None:
    """Staging and production have one Prometheus. A model or the Prometheus names the labels."""
    for place, rate in ((("prod",), 1.0), (("staging",), 0.5), (("prod", "staging"), 1.5)):
        labels = (("namespace", place),)
        query = arrivals_query("two places", MetricSource(labels=labels))
        assert rate_of(summed(ask(query))) == pytest.approx(rate, rel=0.02)
        counted = servers_of(ask(servers_query("two places", MetricSource(labels=labels))))
        assert sum(count for _, count in counted) == 2 * rate
        whole = of_source(arrivals_query("two places"), labels)
        assert rate_of(summed(ask(whole))) == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize(
    ("engine", "rate"),
    [("sglang", 1.0 + 0.02), ("tensorrt-llm", 1.0), ("dynamo", 1.0 + 0.02), ("llm-d", 1.0)],
)
def test_requests_of_other_engines_are_counted_in_their_own_metrics(
    ask: Callable[[str], list[dict[str, object]]], engine: str, rate: float
) -> None:
    source = MetricSource(ENGINES[engine])
    found = rate_of(summed(ask(arrivals_query("m", source))))
    assert found == pytest.approx(rate, rel=0.02)
    assert sum(count for _, count in servers_of(ask(servers_query("m", source)))) == 2
    assert ask(arrivals_query("other", source)) == []


def test_the_backtest_counts_requests_as_live_demand_does(url: str) -> None:
    """Each server finishes half a request per second."""
    grid = Grid(START_S + 300.0, 60.0, 10)
    names = ("split", "seen by many", "two places", "same address")
    found, prefill = read_requests(ask_range(PrometheusServer(url)), grid, names)
    rates = {name: float(one.counts.mean()) / 60.0 for name, one in found.items()}
    expected = {"split": 2.0, "seen by many": 0.5, "two places": 1.5, "same address": 1.0}
    assert rates == pytest.approx(expected, rel=0.02)
    assert prefill == {f"10.3.0.{number}:8000" for number in range(len(PREFILL))}
    of_prod = PrometheusServer(url, labels=(("namespace", ("prod",)),))
    (only,) = read_requests(ask_range(of_prod), grid, ("two places",))[0].values()
    assert only.counts.mean() / 60.0 == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize("phase_s", [0, 17, 30, 44])
def test_a_counter_with_every_second_minute_missing_keeps_its_shape(url: str, phase_s: int) -> None:
    """At a constant rate each minute has the same number of requests, in any phase of the gaps."""
    grid = Grid(START_S + 300.0 + phase_s, 60.0, 10)
    (found,) = read_requests(ask_range(PrometheusServer(url)), grid, ("gaps",))[0].values()
    assert found.counts[1:-1] == pytest.approx([30.0] * 8, abs=1.0)
    assert found.gaps.any()
