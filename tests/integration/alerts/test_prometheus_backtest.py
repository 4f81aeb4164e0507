"""A trace rebuilt from a real Prometheus in which two of three minutes are missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from streams.files.prometheus_section import PrometheusServer
from streams.ports.vllm_queries import text_literal
from streams.tools.backtest.prometheus_source import ask_range
from streams.tools.backtest.prometheus_trace import Rebuilt, rebuild
from streams.tools.replay.traces import load_trace
from tests.integration.alerts.prometheus_server import running_prometheus

START_S, SPAN_S = 1_700_000_040 // 60 * 60, 7200
NAME = "meta-llama/Llama-3.1-8B-Instruct"
EDGES = ("100.0", "1000.0", "+Inf")


def samples(name: str, every_s: int, missing: bool) -> Iterator[tuple[str, str, float, int]]:
    """(metric, labels, value, time) of two servers of `name`. The second restarts after an hour.

    Together they finish 1.5 requests per second of 500 prompt and 50 answer tokens.
    """
    for server, rate in ((0, 1.0), (1, 0.5)):
        for at in range(0, SPAN_S + 1, every_s):
            if missing and at // 60 % 3:
                continue
            since = at - 3600 if server and at >= 3600 else at
            count = rate * since
            target = f'model_name={text_literal(name)},instance="10.0.0.{server}:8000",engine="0"'
            yield "vllm:request_success_total", f'{target},finished_reason="stop"', count, at
            yield "vllm:num_requests_running", target, 2.0, at
            for metric, tokens in (("prompt", 500), ("generation", 50)):
                base = f"vllm:request_{metric}_tokens"
                yield f"{base}_sum", target, count * tokens, at
                for edge in EDGES:
                    inside = count if tokens <= float(edge) else 0.0
                    yield f"{base}_bucket", f'{target},le="{edge}"', inside, at


@pytest.fixture(scope="module")
def url(binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    lines: dict[str, list[str]] = {}
    for name, every_s, missing in ((NAME, 15, True), ("rare", 60, False), ("foreign", 15, False)):
        for metric, labels, value, at in samples(name, every_s, missing):
            lines.setdefault(metric, []).append(f"{metric}{{{labels}}} {value} {START_S + at}")
    text = "\n".join(row for rows in lines.values() for row in rows)
    folder = tmp_path_factory.mktemp("backtest")
    with running_prometheus(binaries, folder, f"{text}\n# EOF\n") as found:
        yield found


def rebuilt(url: str, folder: Path, name: str) -> Rebuilt:
    ask = ask_range(PrometheusServer(url))
    return rebuild(ask, url, START_S + SPAN_S, SPAN_S, folder, 1, {name: "mini"}, True)


@pytest.mark.parametrize("name", [NAME, "rare"])
def test_no_request_is_lost_in_gaps_restarts_and_rare_scrapes(
    url: str, tmp_path: Path, name: str
) -> None:
    """`rare` is scraped once a minute, so no window of a minute has two samples. Requests of the
    second server between its last sample and its restart are lost, at most three minutes of them.
    """
    found = rebuilt(url, tmp_path, name)
    trace = load_trace(found.path)
    at_s = np.array(trace.arrivals_ms) / 1000.0
    assert 1.5 * SPAN_S - 180 * 0.5 - 1 <= len(at_s) <= 1.5 * SPAN_S + 1
    for begin in range(0, SPAN_S, 600):
        if begin != 3000:  # the restart
            inside = ((at_s >= begin) & (at_s < begin + 600)).sum()
            assert inside == pytest.approx(900, rel=0.06)
    assert np.mean(trace.input_tokens) == pytest.approx(500, rel=0.02)
    assert set(trace.models) == {"mini"}


def test_notes_tell_gaps_and_names_that_are_not_read(url: str, tmp_path: Path) -> None:
    names, note = rebuilt(url, tmp_path, NAME).notes
    assert names.startswith("not read, because no model is served under these names: ")
    assert '"foreign"' in names and '"rare"' in names
    assert "of 2.0 h a server had no samples" in note
    assert "no samples" not in rebuilt(url, tmp_path, "rare").notes[-1]
