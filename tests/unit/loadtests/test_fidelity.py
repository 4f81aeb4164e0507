"""The simulator compared with a running stack: pairs of requests, deviations, the limit, and the
replay clock.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from autoscaler.simulation.arrivals import Arrival
from executors.engines.vllm import tiny_model
from loadtests.fidelity import main, play, simulated
from loadtests.fidelity_figures import (
    Latency,
    bar,
    compare,
    deviation,
    quantiles,
    table,
)
from loadtests.fidelity_stack import fixed_fleet, one_vllm, shortened
from streams.files.shoal_yaml import load_config
from streams.tools.backtest.backtest_demand import load_workload
from streams.tools.backtest.demand_options import Demand

REAL = {0: Latency(100.0, 1000.0), 1: Latency(200.0, 2000.0), 2: Latency(50.0, 0.0)}


def test_requests_are_paired_by_number_and_unpaired_ones_are_left_out() -> None:
    run = {1: Latency(220.0, 1800.0), 2: Latency(40.0, 0.0), 9: Latency(1.0, 1.0)}
    prefill = deviation(run, REAL, "prefill")
    assert prefill.pairs == 2
    assert prefill.mean == pytest.approx((0.1 + 0.2) / 2)
    assert prefill.shift_ms == pytest.approx(5.0)
    decode = deviation(run, REAL, "decode")  # Request 2 has a single token.
    assert (decode.pairs, decode.mean) == (1, pytest.approx(0.1))


def test_runs_that_share_no_request_have_no_deviation() -> None:
    assert math.isnan(deviation({7: Latency(1.0, 1.0)}, REAL, "prefill").mean)


def test_the_limit_is_corals_figure_or_1_5_times_the_deviation_of_two_real_runs() -> None:
    assert bar("prefill", 0.01) == 0.056
    assert bar("decode", 0.10) == pytest.approx(0.15)


def test_a_simulation_passes_if_its_deviation_is_within_the_limit() -> None:
    again = {k: Latency(1.1 * one.prefill_ms, one.decode_ms) for k, one in REAL.items()}
    close = {k: Latency(1.12 * one.prefill_ms, one.decode_ms) for k, one in REAL.items()}
    far = {k: Latency(2.0 * one.prefill_ms, one.decode_ms) for k, one in REAL.items()}
    prefill, decode = compare(close, (REAL, again))
    assert (prefill.is_within_limit, decode.is_within_limit) == (True, True)
    assert prefill.bar == pytest.approx(0.15)
    assert [one.is_within_limit for one in compare(far, (REAL, again))] == [False, True]
    assert "| prefill | 3 |" in "\n".join(table(compare(far, (REAL, again))))


def test_widely_different_real_runs_prove_nothing() -> None:
    slow = {k: Latency(3.0 * one.prefill_ms, one.decode_ms) for k, one in REAL.items()}
    prefill, decode = compare(REAL, (REAL, slow))
    assert prefill.simulated <= prefill.bar
    assert (prefill.judged, prefill.is_within_limit) == (False, False)
    assert (decode.judged, decode.is_within_limit) == (True, True)


def test_distributions_are_shown_side_by_side() -> None:
    runs = {"real run 1": REAL, "simulator": REAL}
    rows = quantiles(runs)
    assert [row.split(" | ")[0] for row in rows[2:]] == ["| real run 1", "| simulator"]


@pytest.mark.parametrize("instances", [1, 2])
def test_the_simulated_fleet_is_fixed_and_answers_every_request(
    tmp_path: Path, instances: int
) -> None:
    (tmp_path / "shoal.yaml").write_text(fixed_fleet(instances))
    trace = tmp_path / "t.csv"
    trace.write_text(
        "time,model,input_tokens,output_tokens\n0,chat,500,20\n0,chat,500,20\n9,chat,500,1\n"
    )
    workload = load_workload(Demand((str(trace),), tmp_path / "shoal.yaml"), 1)
    run = simulated(workload.scenario)
    assert sorted(run) == [0, 1, 2]
    assert run[2].decode_ms == 0.0 < run[0].decode_ms


def test_a_trace_is_cut_to_the_context_of_the_small_model(tmp_path: Path) -> None:
    (tmp_path / "shoal.yaml").write_text(one_vllm(tiny_model.write(tmp_path / "tiny")))
    long, short = shortened([Arrival(0.0, "small", 9000, 5000), Arrival(1.0, "small", 1, 1)])
    cluster = load_config(tmp_path / "shoal.yaml").cluster
    assert 2 * long.input_tokens + long.output_tokens <= cluster.services[0].max_len_tokens
    assert cluster.services[0].architecture.layers == 4
    assert (short.input_tokens, short.output_tokens, short.at_s) == (1, 1, 1.0)


class _Front(BaseHTTPRequestHandler):
    """A server that streams two tokens and refuses the model "none"."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"]))
        refused = b'"none"' in asked
        self.send_response(503 if refused else 200)
        body = (
            b""
            if refused
            else b'data: {"choices":[{"text":"a"}]}\n\ndata: {"choices":[{"text":"b"}]}\n\n'
            b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}\n\n'
            b"data: [DONE]\n\n"
        )
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def front() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Front)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_answers_are_matched_by_number_and_refusals_counted(front: str) -> None:
    arrivals = [Arrival(0.0, "none", 5, 2), Arrival(0.0, "chat", 5, 2), Arrival(0.05, "chat", 5, 2)]
    played = play(front, arrivals, start_s=0.05)
    assert sorted(played.run) == [1, 2]
    assert played.failed == 1
    assert [one.input_tokens for one in played.sent] == [5, 9, 9]  # the counts of the server
    assert all(one.prefill_ms > 0.0 and one.decode_ms >= 0.0 for one in played.run.values())


@pytest.mark.parametrize(
    "argv",
    [
        ["--for", "1"],
        ["--rate-scale", "0"],
        ["--rate-scale", "nan"],
        ["--instances", "3"],
        ["--url", "http://127.0.0.1:1"],
        ["--engine", "vllm", "--instances", "2"],
    ],
)
def test_bad_options_are_refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert argv[0] in capsys.readouterr().err


def test_a_missing_trace_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--trace", str(tmp_path / "none.csv")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "none.csv" in said
