"""A trace that is rebuilt from the metrics of a vLLM with known requests, served over HTTP."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import numpy as np
import pytest

from streams.cli.main import main
from streams.files.prometheus_section import PrometheusServer
from streams.files.user_errors import UserError
from streams.ports.engine_metrics import VLLM
from streams.tools.backtest.prometheus_source import ask_range
from streams.tools.backtest.prometheus_trace import rebuild
from streams.tools.replay.traces import load_trace

END_S = 1_800_000_000
SPAN_S = 3 * 3600
EDGES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, float("inf")]
SELECTOR = re.compile(
    r"vllm\[:_\](\w+)\",model_name(=~|!=|=)\"(.*?)\"(?:,__source__=\"\")?\}\[(\d+)s\]"
)
PROMPT, ANSWER = VLLM.prompt, VLLM.answer


class Truth:
    """Requests of two models. One model doubles its rate and its prompt lengths
    in the second hour.
    """

    def __init__(self) -> None:
        self.missing: Callable[[float], bool] = lambda _: False
        random = np.random.default_rng(7)
        self.at_s: dict[str, np.ndarray] = {}
        self.lengths: dict[tuple[str, str], np.ndarray] = {}
        for model, rates in {"a": (0.5, 1.0, 0.5), "org/b": (0.2, 0.2, 0.2)}.items():
            at = [3600 * h + 3600 * random.random(int(3600 * rate)) for h, rate in enumerate(rates)]
            self.at_s[model] = END_S - SPAN_S + np.sort(np.concatenate(at))
            late = (self.at_s[model] >= END_S - 7200) & (self.at_s[model] < END_S - 3600)
            prompt = random.lognormal(6.0, 0.8, len(late)) * np.where(late, 2.0, 1.0)
            self.lengths[model, PROMPT] = np.maximum(1, prompt.astype(int))
            answer = random.lognormal(4.5, 0.6, len(late))
            self.lengths[model, ANSWER] = np.maximum(1, answer.astype(int))

    def answer(self, query: str, from_s: float, to_s: float, step_s: float) -> list[dict[str, Any]]:
        if query.startswith("count by (model_name)"):
            return [{"metric": {"model_name": m}, "values": [[to_s, "1"]]} for m in self.at_s]
        if "timestamp(" in query:
            return []  # The values are those at the end of each step.
        match = SELECTOR.search(query)
        assert match is not None, query
        metric, width_s = match[1], int(match[4])
        names = [name.replace("\\\\", "") for name in match[3].split("|")]
        moments = np.arange(from_s, to_s + 0.5, step_s)
        found = []
        for model, at_s in self.at_s.items():
            if match[2] != "!=" and model not in names:
                continue
            inside = [(at_s > t - width_s) & (at_s <= t) for t in moments]
            base = metric.removesuffix("_bucket").removesuffix("_sum")
            if metric == "request_success_total":
                moments = moments[[not self.missing(t) for t in moments]]
                series = {"": [(at_s <= t).sum() for t in moments]}
            elif metric.endswith("_sum"):
                series = {"": [self.lengths[model, base][mask].sum() for mask in inside]}
            else:
                tokens = self.lengths[model, base]
                series = {
                    ("+Inf" if edge == float("inf") else str(float(edge))): [
                        (tokens[mask] <= edge).sum() for mask in inside
                    ]
                    for edge in EDGES
                }
            for le, values in series.items():
                name = {"model_name": model, **({"le": le} if le else {})}
                pairs = [[t, str(v)] for t, v in zip(moments.tolist(), values, strict=True)]
                found.append({"metric": name, "values": pairs})
        return found


@pytest.fixture(scope="module")
def truth() -> Truth:
    return Truth()


@pytest.fixture
def url(truth: Truth) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = {key: v[0] for key, v in parse_qs(urlparse(self.path).query).items()}
            step_s = float(asked["step"].removesuffix("s"))
            result = truth.answer(
                asked["query"], float(asked["start"]), float(asked["end"]), step_s
            )
            body = json.dumps({"status": "success", "data": {"result": result}}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_counts_rates_and_lengths_are_recovered_within_the_stated_error(
    truth: Truth, url: str, tmp_path: Path
) -> None:
    found = rebuild(
        ask_range(PrometheusServer(url)), url, END_S, SPAN_S, tmp_path, 1, {"org/b": "b"}
    )
    trace = load_trace(found.path)
    names = np.array(trace.models)
    at_s = np.array(trace.arrivals_ms) / 1000.0
    for model, ours in (("a", "a"), ("org/b", "b")):
        mine = names == ours
        assert abs(mine.sum() - len(truth.at_s[model])) <= 1
        for begin in range(0, SPAN_S, 60):  # equal in every minute, except for carried fractions
            true = ((truth.at_s[model] - END_S + SPAN_S) // 60 == begin // 60).sum()
            assert abs(((at_s[mine] // 60) == begin // 60).sum() - true) <= 1
        for metric, tokens in ((PROMPT, trace.input_tokens), (ANSWER, trace.output_tokens)):
            drawn, told = np.array(tokens)[mine], truth.lengths[model, metric]
            assert drawn.mean() == pytest.approx(told.mean(), rel=0.01)
            for level in (0.5, 0.9, 0.99):  # a bucket holds up to 2.5 times its lower edge
                assert np.quantile(drawn, level) == pytest.approx(
                    np.quantile(told, level), rel=0.25
                )
    # Lengths are those of their hour: prompts of the second hour are twice as long.
    prompts = np.array(trace.input_tokens)[names == "a"]
    second = (at_s[names == "a"] // 3600) == 1
    assert prompts[second].mean() == pytest.approx(2.0 * prompts[~second].mean(), rel=0.15)
    assert [note.split(":")[0] for note in found.notes] == ["a", "org/b"]
    assert all("known to 60 s" in note for note in found.notes)


def test_the_same_seed_gives_the_same_trace(truth: Truth, tmp_path: Path) -> None:
    texts = []
    for folder, seed in (("x", 1), ("y", 1), ("z", 2)):
        (tmp_path / folder).mkdir()
        found = rebuild(truth.answer, "u", END_S, SPAN_S, tmp_path / folder, seed)
        texts.append(found.path.read_text())
    assert texts[0] == texts[1] != texts[2]


def test_no_data_and_no_answer_give_one_error_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"no vllm:request_success_total in the last 3600 s$"):
        rebuild(lambda *_: [], "http://x", END_S, 3600.0, tmp_path, 1)
    assert main(["backtest", "--prometheus", "http://127.0.0.1:9", "--since", "1h"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "shoal: --prometheus http://127.0.0.1:9: cannot be reached (Connection refused)\n"
    )
    assert main(["backtest", "--prometheus", "localhost:9090"]) == 2
    assert "'localhost:9090' is not allowed; allowed: http(s)://HOST" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [None, 3, [1], [{"values": []}], KeyError("data")])
def test_an_unexpected_answer_gives_one_error_line(answer: Any, tmp_path: Path) -> None:
    def ask(*_: object) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(UserError, match="--prometheus u: the answer is no result"):
        rebuild(ask, "u", END_S, SPAN_S, tmp_path, 1)


def test_a_trace_or_a_prometheus_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backtest"]) == 2
    assert "either --trace FILE or --prometheus URL" in capsys.readouterr().err


def test_a_minute_without_a_sample_is_not_a_minute_without_requests(tmp_path: Path) -> None:
    """Every second minute is missing: the counters still tell all requests, and a note says where
    they are only known on average."""
    truth = Truth()
    truth.missing = lambda at_s: at_s % 120 == 60
    found = rebuild(truth.answer, "u", END_S, SPAN_S, tmp_path, 1)
    trace = load_trace(found.path)
    names = np.array(trace.models)
    for model, at_s in truth.at_s.items():
        assert abs((names == model).sum() - len(at_s)) <= 1
    at_s = np.array(trace.arrivals_ms)[names == "a"] / 1000.0
    even, odd = ((at_s // 60 % 2 == half).sum() for half in (0, 1))
    assert even == pytest.approx(odd, rel=0.1)
    assert all("In 3.0 h of 3.0 h a server had no samples" in note for note in found.notes)


def test_the_trace_begins_with_the_series(tmp_path: Path) -> None:
    """The retention of Prometheus is shorter than --since: nothing is known about the time before,
    so it is no time without requests."""
    truth = Truth()
    truth.missing = lambda at_s: at_s < END_S - 3600
    found = rebuild(truth.answer, "u", END_S, SPAN_S, tmp_path, 1)
    trace = load_trace(found.path)
    assert 3500.0 < max(trace.arrivals_ms) / 1000.0 < 3600.0
    assert min(trace.arrivals_ms) / 1000.0 < 60.0
    assert found.notes[0] == "the series begin 2.0 h after --since, and the trace with them"


def test_series_that_end_are_named(tmp_path: Path) -> None:
    """The scrapes stopped, or the servers were removed: the counters do not tell."""
    truth = Truth()
    truth.missing = lambda at_s: at_s > END_S - 1800
    found = rebuild(truth.answer, "u", END_S, SPAN_S, tmp_path, 1)
    assert all("no sample in the last 30 min; the trace has no" in note for note in found.notes)
    truth.missing = lambda at_s: False
    found = rebuild(truth.answer, "u", END_S, SPAN_S, tmp_path, 1)
    assert not any("no sample in the last" in note for note in found.notes)


def test_only_names_of_declared_models_are_read(truth: Truth, tmp_path: Path) -> None:
    names = {"org/b": "mine", "old": "mine", "c": "cold", "acme/c": "cold"}
    found = rebuild(truth.answer, "u", END_S, SPAN_S, tmp_path, 1, names, declared_only=True)
    trace = load_trace(found.path)
    assert set(trace.models) == {"mine"}
    assert abs(len(trace.models) - len(truth.at_s["org/b"])) <= 1
    assert found.notes[:2] == (
        'cold: no series with model_name "c", "acme/c"',
        'not read, because no model is served under these names: "a"',
    )
    said = r'model_name "x" in the last 3600 s; there are: "a", "org/b". Declare the right name'
    with pytest.raises(UserError, match=said):
        rebuild(truth.answer, "u", END_S, 3600.0, tmp_path, 1, {"x": "x"}, declared_only=True)


def test_servers_without_a_request_are_not_missing_servers(tmp_path: Path) -> None:
    truth = Truth()
    truth.at_s = {"a": np.zeros(0)}
    with pytest.raises(UserError, match='servers of "a" finished no request in the last 3600 s'):
        rebuild(truth.answer, "u", END_S, 3600.0, tmp_path, 1)
