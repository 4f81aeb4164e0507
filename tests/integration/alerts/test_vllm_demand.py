"""Demand derived from vLLM's own metrics, compared with the true demand.

Three simulated servers with a fixed capacity are scraped as by Prometheus. A real Prometheus loads
the samples and evaluates the query. In saturation, completions stay at the capacity and the queue
grows.
"""

from __future__ import annotations

import heapq
import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streams.ports.metric_servers import summed
from streams.ports.promql import rate_of
from streams.ports.vllm_queries import arrivals_query
from tests.integration.alerts.prometheus_server import running_prometheus

SCRAPES_S = 15
CAPACITY = 12.0  # capacity of all servers in requests/s: three with 16 slots of 4 s
LOADS = (0.2, 0.6, 1.0, 1.5)
QUIET_S, LOADED_S = 300, 600
START_S = 1_700_000_000


def arrivals_of(load: float, random: np.random.Generator) -> np.ndarray:
    """Times of Poisson arrivals.

    The rate is a fifth of the capacity at first, then `load` times the capacity for ten minutes.
    """
    quiet = np.cumsum(random.exponential(1.0 / (0.2 * CAPACITY), 4000))
    loaded = QUIET_S + np.cumsum(random.exponential(1.0 / (load * CAPACITY), 40_000))
    both = [quiet[quiet < QUIET_S], loaded[loaded < QUIET_S + LOADED_S]]
    return np.concatenate(both)


def samples(
    model: str, times: np.ndarray, random: np.random.Generator
) -> Iterator[tuple[str, str, float, float]]:
    """(metric, labels, value, at) of each scrape of each server."""
    for server in range(3):
        mine = times[server::3]
        done: list[float] = []
        slots = [0.0] * 16
        for at, took in zip(mine, random.gamma(4.0, 1.0, len(mine)), strict=True):
            free = heapq.heappop(slots)
            done.append(max(at, free) + took)
            heapq.heappush(slots, done[-1])
        ends = np.sort(done)
        for at in np.arange(server * 4.0, QUIET_S + LOADED_S, SCRAPES_S):
            finished = int(np.searchsorted(ends, at))
            held = int(np.searchsorted(mine, at)) - finished
            label = f'{{model_name="{model}",instance="{server}"}}'
            yield "vllm:request_success_total", label, finished, at
            yield "vllm:num_requests_running", label, min(held, 16), at
            yield "vllm:num_requests_waiting", label, max(0, held - 16), at


@pytest.fixture(scope="module")
def truth() -> dict[str, np.ndarray]:
    return {f"m{load}": arrivals_of(load, np.random.default_rng(int(10 * load))) for load in LOADS}


@pytest.fixture(scope="module")
def server(
    binaries: Path, truth: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a Prometheus with all samples."""
    folder = tmp_path_factory.mktemp("tsdb")
    lines: dict[str, list[str]] = {}
    for model, times in truth.items():
        for metric, label, value, at in samples(model, times, np.random.default_rng(7)):
            lines.setdefault(metric, []).append(f"{metric}{label} {value} {START_S + at}")
    text = ""
    for metric, own in lines.items():
        kind = "counter" if metric.endswith("_total") else "gauge"
        text += f"# TYPE {metric.removesuffix('_total')} {kind}\n" + "\n".join(own) + "\n"
    with running_prometheus(binaries, folder, f"{text}# EOF\n") as url:
        yield url


def query_rate(url: str, query: str, at: float) -> float:
    given = urllib.parse.urlencode({"query": query, "time": START_S + at})
    with urllib.request.urlopen(f"{url}/api/v1/query?{given}", timeout=10) as reply:  # noqa: S310
        rate = rate_of(summed(json.load(reply)["data"]["result"]))
    assert rate is not None
    return rate


@pytest.mark.parametrize(("load", "within"), [(0.2, 0.1), (0.6, 0.1), (1.0, 0.1), (1.5, 0.2)])
def test_demand_is_reconstructed_from_completions_and_queue_growth(
    server: str, truth: dict[str, np.ndarray], load: float, within: float
) -> None:
    """The error is at most a tenth over ten minutes and over each two minutes, the window of plans.
    It is at most a fifth if half of the requests must wait.
    """
    model, query = f"m{load}", arrivals_query(f"m{load}")
    grid = np.arange(QUIET_S + 60, QUIET_S + LOADED_S, 5.0)
    rates = np.array([query_rate(server, query, at) for at in grid])
    times = truth[model]

    def true_rate(at: float) -> float:
        return float(np.searchsorted(times, at) - np.searchsorted(times, at - 60.0)) / 60.0

    true = np.array([true_rate(at) for at in grid])
    errors = [
        rates[k : k + 24].mean() / true[k : k + 24].mean() - 1.0
        for k in range(0, len(grid) - 23, 12)
    ]
    print(f"{load} x capacity: whole {rates.mean() / true.mean() - 1.0:+.1%}, worst two minutes "
          f"{max(errors, key=abs):+.1%}")  # fmt: skip
    assert abs(rates.mean() / true.mean() - 1.0) <= within
    assert max(map(abs, errors)) <= within
    if load > 1.0:
        completions = f'sum(rate(vllm:request_success_total{{model_name="{model}"}}[1m]))'
        served = query_rate(server, completions, QUIET_S + LOADED_S - 10)
        assert served < 0.75 * load * CAPACITY  # Completions alone underestimate the demand.
