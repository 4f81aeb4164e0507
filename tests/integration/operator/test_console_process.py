"""The console of a running controller: signed commands, and its history after a restart."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest

from streams.tools.up.host_resources import free_port
from tests.hang_limit import HANG_S
from tests.integration.child_processes import end

TOKEN = "an-operator-token"
CONFIG = """\
mode: approve
regions: {us: {l4: {gpu: L4, max: 12, price: 1.0}}}
engines: {fp8: {args: [--quantization=fp8]}}
defaults: {max_len: 8192}
models:
  asks: {source: meta-llama/Llama-3.1-8B, engine: fp8, slo: {ttft: 2s, tpot: 100ms}, min: 1}
"""


@contextmanager
def controller(folder: Path, key: str) -> Iterator[str]:
    """A controller with its own broker, signing keys and a decision log; yields its URL."""
    (folder / "shoal.yaml").write_text(CONFIG)
    port = free_port()
    argv = [sys.executable, "-m", "streams.cli.main", "controller", "--id", "ctl-1"]
    argv += ["--config", str(folder / "shoal.yaml"), "--http", f"127.0.0.1:{port}"]
    argv += ["--record", str(folder / "log")]
    env = {**os.environ, "SHOAL_CLUSTER_KEY": key, "SHOAL_OPERATOR_TOKEN": TOKEN}
    with (folder / "controller.log").open("ab") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


def ask(url: str, path: str, **command: Any) -> Any:
    """The JSON at `path`; with `command`, the answer to a POST of it."""
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    body = orjson.dumps(command) if command else None
    request = urllib.request.Request(url + path, body, headers)  # noqa: S310  loopback
    with urllib.request.urlopen(request, timeout=10.0) as answer:  # noqa: S310  loopback
        return orjson.loads(answer.read())


def until(check: Callable[[], Any], what: str) -> Any:
    end_s = time.monotonic() + HANG_S
    while True:
        try:
            found = check()
        except OSError:
            found = None
        if found:
            return found
        assert time.monotonic() < end_s, f"{what}: not within {HANG_S:g} s"
        time.sleep(0.2)


@pytest.mark.slow
def test_a_command_in_the_console_is_signed_and_the_past_outlives_a_restart(
    tmp_path: Path,
) -> None:
    key = secrets.token_hex(32)
    with controller(tmp_path, key) as url:
        waiting = until(lambda: ask(url, "/v1/console")["proposals"].get("asks"), "a proposal")
        ask(url, "/v1/controls", command="freeze", model="asks", who="ann", why="quiet hours")
        asked = {"command": "approve", "proposal": waiting["number"], "who": "ann", "why": "go"}
        assert "approved" in ask(url, "/v1/controls", **asked)["said"]

        def carried_out() -> bool:
            state = ask(url, "/v1/console")
            return bool(state["nodes"]) and "asks/frozen" in state["controller"]["held"]

        until(carried_out, "the approved change")
        assert ask(url, "/v1/status")["records_refused"] == 0
        columns = until(lambda: ask(url, "/v1/console/history?model=asks")["t"], "history")
        first_ms = columns[0]
    with controller(tmp_path, key) as url:

        def remembers() -> bool:
            times = ask(url, "/v1/console/history?model=asks")["t"]
            return bool(times) and times[0] < first_ms + 1000

        until(remembers, "history from the decision log")
        kinds = [one["kind"] for one in ask(url, "/v1/console/decisions")["decisions"]]
        assert "scale_out" in kinds
