"""The wheel in an empty environment, outside of the repository: each command runs."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CONFIG = """
mode: act
regions:
  us: {l4: {gpu: L4, per_node: 1, max: 2, price: 0.7}}
models:
  tiny:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 2s, tpot: 100ms}
    workload: {req_per_s: 0.5, input: 200, output: 20}
    max_len: 4096
"""
pytestmark = pytest.mark.timeout(600)


def _environment() -> dict[str, str]:
    kept = {"PATH", "HOME", "LANG", "TMPDIR", "SSL_CERT_FILE"}
    return {name: value for name, value in os.environ.items() if name in kept}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shoal.yaml").write_text(CONFIG)
    rows = [f"{second * 1000},200,20" for second in range(0, 600, 2)]
    (tmp_path / "trace.csv").write_text(
        "\n".join(["timestamp_ms,input_tokens,output_tokens", *rows])
    )
    return tmp_path


def _run(installed: Path, folder: Path, *argv: str) -> str:
    done = subprocess.run(
        [installed / "shoal", *argv], cwd=folder, capture_output=True, text=True, timeout=400,
        env=_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_plan_and_backtest_read_the_users_files(installed: Path, folder: Path) -> None:
    plan = _run(installed, folder, "plan", "--config", "shoal.yaml", "--json", "--no-explain")
    assert "tiny" in plan
    compared = _run(
        installed, folder, "backtest", "--config", "shoal.yaml", "--trace", "trace.csv",
        "--policies", "shoal,fixed-peak",
    )  # fmt: skip
    assert "fixed-peak" in compared


def test_up_plays_the_default_scenario(installed: Path, folder: Path) -> None:
    _run(installed, folder, "up", "--for", "90", "--summary", "summary.json")
    assert json.loads((folder / "summary.json").read_text())["requests"]["served"] > 0


def test_the_package_is_typed_and_installed_by_itself(installed: Path, folder: Path) -> None:
    code = "import streams; print(streams.__path__[0])"
    done = subprocess.run(
        [installed / "python", "-c", code], cwd=folder, capture_output=True, text=True, check=True,
        env=_environment(),
    )  # fmt: skip
    package = Path(done.stdout.strip())
    assert package.is_relative_to(installed.parent)
    assert (package / "py.typed").is_file()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def gateway(installed: Path, folder: Path) -> Iterator[str]:
    """The address of a gateway, next to a controller and an executor of simulated engines."""
    port, controller = _free_port(), _free_port()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                installed / "shoal", "single", "--config", "shoal.yaml",
                "--controller", f"--http 127.0.0.1:{controller} --record ''",
                "--gateway", f"--port {port} --hold-s 200",
                "--executor", f"--region us --state-dir {folder / 'state'}",
            ],
            cwd=folder, env=_environment(), stdout=log, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    yield f"127.0.0.1:{port}"
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(60) == 0, (folder / "log").read_text()[-3000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def _post(address: str, path: str, body: dict[str, object]) -> dict[str, object] | None:
    """The answer to a POST; None if the server does not answer with 200."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=250)) as connection:
        try:
            connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            return dict(json.load(answer)) if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None


def test_controller_gateway_and_executor_serve_a_request(gateway: str, folder: Path) -> None:
    body: dict[str, object] = {"model": "tiny", "prompt": "one two", "max_tokens": 4}
    deadline = time.monotonic() + 400
    while (answer := _post(gateway, "/v1/completions", body)) is None:
        assert time.monotonic() < deadline, (folder / "log").read_text()[-3000:]
        time.sleep(1)
    usage = answer["usage"]
    assert isinstance(usage, dict)
    assert usage["completion_tokens"] == 4
