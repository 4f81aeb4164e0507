"""`shoal profile import` and `measure`: measurements change the plan, and the plan names them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from executors.engines.vllm import tiny_model
from streams.cli.main import main

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
REAL = Path(__file__).parents[2] / "data" / "vllm_bench"
CONFIG = """
measurements: measurements.json
defaults: {max_len: 8192}
regions: {eu: {l4: {gpu: L4, max: 30, price: 0.8}}}
models:
  mini:
    source: SOURCE
    slo: {ttft: 2s, tpot: 90ms}
    workload: {req_per_s: 5, input: 1024, output: 128}
"""


def result(load: int, ttft_ms: float, tpot_ms: float) -> str:
    value = {
        "date": "20261120-101530", "model_id": MODEL, "request_rate": "inf",
        "max_concurrency": load, "completed": 100, "total_input_tokens": 102_400,
        "total_output_tokens": 12_800, "mean_ttft_ms": ttft_ms,
        "request_throughput": 1e3 * load / (ttft_ms + 128 * tpot_ms),
        "mean_tpot_ms": tpot_ms,
    }  # fmt: skip
    return json.dumps(value)


def planned(path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    main(["plan", "--config", str(path), "--no-explain", "--json"])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_an_imported_result_changes_the_plan_and_is_named_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, kept = tmp_path / "shoal.yaml", tmp_path / "measurements.json"
    path.write_text(CONFIG.replace("SOURCE", MODEL).replace("measurements: measurements.json", ""))
    before = planned(path, capsys)
    assert before["measured"] == []
    files = []
    for load, ttft_ms, tpot_ms in ((1, 420.0, 70.0), (4, 700.0, 79.0), (8, 1100.0, 92.0)):
        files.append(tmp_path / f"{load}.json")
        files[-1].write_text(result(load, ttft_ms, tpot_ms))
    options = ["--gpu", "NVIDIA-L4", "--into", str(kept)]
    assert main(["profile", "import", *map(str, files), *options]) == 0
    said = capsys.readouterr().out
    assert f"{MODEL} on 1xL4: measured 2026-11-20, 3 points, error " in said
    path.write_text(CONFIG.replace("SOURCE", MODEL))
    after = planned(path, capsys)
    assert [row["model"] for row in after["measured"]] == ["mini"]  # type: ignore[attr-defined]
    capacity = [
        max(c["req_per_s"] for c in plan["models"]["mini"]["combos"])  # type: ignore[index]
        for plan in (before, after)
    ]
    assert capacity[0] != pytest.approx(capacity[1], rel=0.01)
    main(["plan", "--config", str(path), "--no-explain"])
    out = capsys.readouterr().out
    error = json.loads(kept.read_text())[0]["error"]
    assert f"mini on L4: measured 2026-11-20, error {error:.0%}" in out


def test_a_real_result_of_vllm_bench_serve_changes_the_plan_and_is_named_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """vLLM 0.32 produced this result on a CPU. The test imports it as a result of an L4."""
    tiny_model.write(tmp_path)
    path, kept = tmp_path / "shoal.yaml", tmp_path / "measurements.json"
    config = CONFIG.replace("SOURCE", "./config.json").replace("max_len: 8192", "max_len: 2048")
    path.write_text(config.replace("measurements: measurements.json", ""))
    before = planned(path, capsys)
    options = ["--model", str(tmp_path / "config.json"), "--gpu", "L4", "--into", str(kept)]
    assert main(["profile", "import", *map(str, sorted(REAL.glob("*.json"))), *options]) == 0
    assert "measured 2026-11-22, 4 points" in capsys.readouterr().out
    path.write_text(config)
    after = planned(path, capsys)
    rates = [
        max(combo["req_per_s"] for combo in plan["models"]["mini"]["combos"])  # type: ignore[index]
        for plan in (before, after)
    ]
    assert rates[1] < 0.8 * rates[0]
    main(["plan", "--config", str(path), "--no-explain"])
    assert "mini on L4: measured 2026-11-22, error " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpu", "L5"], "--gpu"),
        (["--gpu", "L4", "--gpus", "0"], "--gpus"),
        (["--gpu", "B300"], None),
        (["--gpu", "T4", "--model", "unknown-9b"], "--model"),
        (["--gpu", "T4", "--model", "Qwen/Qwen3-235B-A22B"], "is this the GPU"),
    ],
)
def test_contradicting_options_give_one_error_line(
    options: list[str], said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "result.json"
    path.write_text(result(4, 50.0, 20.0))
    code = main(["profile", "import", str(path), *options, "--into", str(tmp_path / "m.json")])
    error = capsys.readouterr().err
    if said is None:
        assert code == 0
        return
    assert code == 2
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("text", ["{", "{}", "[1]", '[{"gpu": "L4"}]'])
def test_a_damaged_measurements_file_gives_one_error_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "measurements.json").write_text(text)
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG.replace("SOURCE", MODEL))
    assert main(["plan", "--config", str(path)]) == 2
    error = capsys.readouterr().err
    assert "measurements.json" in error
    assert error.count("\n") == 1


def test_a_server_that_does_not_answer_gives_one_error_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--gpu", "L4", "--into", str(tmp_path / "m.json")]
    assert main(["profile", "measure", "--url", "http://ann:hush@127.0.0.1:9", *options]) == 2
    error = capsys.readouterr().err
    assert "--url http://127.0.0.1:9" in error
    assert error.count("\n") == 1


TOKENS = (
    b'data: {"choices": [{"text": "x"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": 8}}\n\n'
)


@contextmanager
def answering(*answers: tuple[int, bytes], listed: bytes = b"") -> Iterator[tuple[str, list[str]]]:
    """(address of a server, Authorization header of each completion request).

    Completions get the (status, body) pairs of `answers` in order; the last pair is repeated.
    listed: body of the list of models.
    """
    left, headers = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, listed or json.dumps({"data": [{"id": MODEL}]}).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            headers.append(self.headers.get("Authorization", ""))
            self._answer(*(left.pop(0) if len(left) > 1 else left[0]))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore the error: a client may close the connection early."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", headers
        server.shutdown()


@pytest.mark.parametrize(
    ("last", "listed", "said"),
    [
        ((500, b"out of memory\n"), b"", "500: out of memory"),
        ((200, b"data: {nothing\n\n"), b"", "not an event of a completion: {nothing"),
        ((200, b'data: "text"\n\n'), b"", 'not an event of a completion: "text"'),
        ((200, b'data: {"usage": {"prompt_tokens": []}}\n\n'), b"", "not an event of a completion"),
        ((200, b"data: [DONE]\n\n"), b"", "no stream of tokens with usage"),
        ((200, b"data: " + 300_000 * b"x"), b"", "not an event of a completion: xxx"),
        ((200, TOKENS), b"<html>", "/v1/models lists no model"),
    ],
)
def test_a_server_that_fails_during_a_sweep_gives_one_error_line(
    last: tuple[int, bytes],
    listed: bytes,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--gpu", "L4", "--concurrency", "2", "--into", str(tmp_path / "m.json")]
    with answering((200, TOKENS), (200, TOKENS), last, listed=listed) as (url, _):
        assert main(["profile", "measure", "--url", url, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_api_key_can_come_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("hush\n")
    (tmp_path / "empty").write_text("\n")
    with answering((500, b"no")) as (url, headers):
        measure = ["profile", "measure", "--url", url, "--gpu", "L4"]
        for option in ("--api-key-file", str(tmp_path / "key")), ("--api-key", "hush"):
            assert main([*measure, *option]) == 2
        assert headers == ["Bearer hush", "Bearer hush"]
        capsys.readouterr()
        for name, why in ("empty", "holds no key"), ("none", "cannot be read (No such file"):
            file = str(tmp_path / name)
            assert main([*measure, "--api-key-file", file]) == 2
            assert f"--api-key-file {file}: {why}" in capsys.readouterr().err
