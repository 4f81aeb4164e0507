"""Operator commands to a running controller through a broker: pause, resume,
approve, feed, replay.
"""

from __future__ import annotations

import getpass
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streams.cli.controller_client import status
from streams.cli.main import main
from streams.files.user_errors import UserError
from streams.tools.up.host_resources import free_port
from tests.hang_limit import HANG_S
from tests.integration.child_processes import end

CONFIG = """\
mode: act
regions: {us: {l4: {gpu: L4, max: 12, price: 1.0}}}
engines: {fp8: {args: [--quantization=fp8]}}
defaults: {max_len: 8192}
models:
  acts: {source: meta-llama/Llama-3.1-8B, engine: fp8, slo: {ttft: 2s, tpot: 100ms}, min: FLOOR}
  asks: {source: meta-llama/Llama-3.1-8B, engine: fp8, slo: {ttft: 2s, tpot: 100ms}, min: 1,
         mode: approve}
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A controller with its own embedded broker. Its decision log is in tmp_path/log."""
    (tmp_path / "shoal.yaml").write_text(CONFIG.replace("FLOOR", "1"))
    (tmp_path / "more.yaml").write_text(CONFIG.replace("FLOOR", "3"))
    port = free_port()
    argv = [sys.executable, "-m", "streams.cli.main", "controller", "--id", "ctl-1"]
    argv += ["--config", str(tmp_path / "shoal.yaml"), "--http", f"127.0.0.1:{port}"]
    argv += ["--record", str(tmp_path / "log")]
    with (tmp_path / "controller.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    yield f"http://127.0.0.1:{port}"
    end(process)


def controller_status(url: str) -> dict[str, Any]:
    try:
        return status(url)
    except UserError:
        return {"writes": 0, "models": [], "held": {}}


def until(check: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + HANG_S
    while not check():
        assert time.monotonic() < end, f"{what}: not within {HANG_S:g} s"
        time.sleep(0.1)


def model(url: str, name: str) -> dict[str, Any]:
    return next(
        (m for m in controller_status(url)["models"] if m["model"] == name),
        {"wanted": 0, "proposal": 0},
    )


@pytest.mark.slow
def test_operator_commands_take_effect(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    until(lambda: model(url, "acts")["wanted"] == 1, "the floor")

    # A pause delays the scale-out for a higher minimum until the operator resumes.
    assert main(["pause", "--all", "--why", "a drill", "--url", url]) == 0
    until(lambda: "*/pause" in controller_status(url)["held"], "the pause")
    writes = controller_status(url)["writes"]
    assert main(["apply", "--config", str(tmp_path / "more.yaml"), "--url", url]) == 0
    time.sleep(5.0)
    assert controller_status(url)["writes"] == writes
    assert main(["status", "--url", url]) == 0
    assert f"paused by {getpass.getuser()}: a drill" in capsys.readouterr().out
    assert main(["resume", "--all", "--url", url]) == 0
    until(lambda: model(url, "acts")["wanted"] == 3, "the higher floor")

    # A proposal waits, is applied once it is approved, and cannot be approved again.
    number = str(model(url, "asks")["proposal"])
    assert int(number) > 0 and model(url, "asks")["wanted"] == 0
    assert main(["approve", number, "--why", "fine", "--url", url]) == 0
    until(lambda: model(url, "asks")["wanted"] == 1, "the approved proposal")
    assert main(["approve", "999", "--url", url]) == 2
    assert "#999: no such proposal" in capsys.readouterr().err
    assert main(["reject", number, "--why", "late", "--url", url]) == 2
    assert f"#{number}: approved already by" in capsys.readouterr().err

    # An undeclared name is refused. An undeclared pool of a feed is reported.
    assert main(["pause", "akts", "--why", "a drill", "--url", url]) == 2
    assert "akts: no model of this name; did you mean acts?" in capsys.readouterr().err

    # A price reaches the controller with its age.
    (tmp_path / "prices.yaml").write_text("us/l4: 1.1\nus/l5: 1.1\n")
    feed = ["feed", "prices", "--from", str(tmp_path / "prices.yaml"), "--url", url]
    assert main(feed) == 0
    assert "2 pools published; not declared, so without effect: us/l5/on-demand" in (
        capsys.readouterr().out
    )
    until(lambda: controller_status(url)["supply_age_s"]["prices"], "the price")

    # `explain` fits 80 columns, and the whole log replays.
    capsys.readouterr()
    assert main(["explain", "asks", "--url", url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(f"#{number} approved by" in line for line in lines[:3])
    assert any("limited by" in line for line in lines)
    assert main(["replay", "--from", str(tmp_path / "log")]) == 0
    assert "the same, byte for byte" in capsys.readouterr().out
