"""Bad input gives one line with the error and its place, and exit code 2. No process starts."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from streams.cli.main import main
from tests.acceptance.conftest import Start
from tests.acceptance.shoal_up import ONE_MODEL, arguments

LARGE = """mode: act
regions:
  eu: {l4: {gpu: L4, per_node: 1, max: 3, price: 0.85}}
models:
  mini: {source: openai/gpt-oss-20b, slo: {ttft: 2s, tpot: 80ms}, min: 1}
  large:
    source: meta-llama/Llama-3.3-70B-Instruct
    slo: {ttft: 2s, tpot: 80ms}
    max_len: 65536
"""
TWICE = ONE_MODEL + ONE_MODEL[ONE_MODEL.index("  mini:") :]

CONFIGS = {
    "unknown GPU": (
        ONE_MODEL.replace("gpu: L4,", "gpu: L40X,"),
        ("shoal.yaml:3", "gpu", "'L40X'", "did you mean L40?"),
    ),
    "negative SLO": (ONE_MODEL.replace("ttft: 2s", "ttft: -2s"), ("shoal.yaml:7", "ttft", "-2s")),
    "misspelt key": (
        ONE_MODEL.replace("workload:", "worklaod:"),
        ("shoal.yaml:8", "worklaod", "did you mean workload?"),
    ),
    "misspelt root": (
        ONE_MODEL.replace("models:", "modles:"),
        ("shoal.yaml:4", "modles", "did you mean models?"),
    ),
    "duplicate model": (TWICE, ("shoal.yaml:11", "models.mini", "twice (first in line 5)")),
    "unknown model": (
        ONE_MODEL.replace("gpt-oss-20b", "gpt-oss-20x"),
        ("shoal.yaml:6", "gpt-oss-20x", "openai/gpt-oss-20b"),
    ),
    "empty": ("", ("shoal.yaml", "is empty")),
    "not YAML": ("models: [a: {", ("shoal.yaml:1", "is not YAML")),
    "not text": ("models: \x00\x01", ("shoal.yaml", "is not YAML")),
    "fits nowhere": (
        LARGE,
        ("shoal.yaml:9", "models.large", "141.1 GB of weights", "1xL4 of eu/l4", "20.0 GB"),
    ),
}

TRACES = {
    "foreign": (b"name,age\nada,36\n", ("trace.csv:1", "begins no trace", "Azure")),
    "empty": (b"", ("trace.csv", "empty", "Mooncake")),
    "bad row": (b"timestamp_ms,input_tokens,output_tokens\n5,x,1\n", ("trace.csv:2", "'x'")),
    "binary": (b"\xff\xfe\x00\x81", ("trace.csv", "not text")),
    "damaged gzip": (b"\x1f\x8b\x08\x00abc", ("trace.csv", "damaged gzip")),
}

OPTIONS: dict[str, tuple[Sequence[str], tuple[str, ...]]] = {
    "speed 0": (("--speed", "0"), ("--speed", "0.01")),
    "speed nan": (("--speed", "nan"), ("--speed", "nan")),
    "speed word": (("--speed", "fast"), ("--speed", "'fast'", "a number")),
    "speed of real engines": (
        ("--engine", "vllm", "--speed", "10"),
        ("--speed", "1 with --engine vllm"),
    ),
    "for 0": (("--for", "0"), ("--for", "0")),
    "for negative": (("--for", "-1"), ("--for", "-1")),
    "for nan": (("--for", "nan"), ("--for", "nan")),
    "port too high": (("--port", "70000"), ("--port", "65535")),
    "trace missing": (("--trace", "nowhere.csv"), ("nowhere.csv", "No such file")),
    "config missing": (("--config", "nowhere.yaml"), ("nowhere.yaml", "no such file")),
    "config is a folder": (("--config", "."), (".",)),
    "summary in no folder": (("--summary", "nowhere/out.json"), ("--summary", "nowhere/out.json")),
    "broker unreachable": (("--broker", "kafka://127.0.0.1:9"), ("--broker", "127.0.0.1:9")),
    "broker is no address": (("--broker", "http://x"), ("--broker", "http://x")),
    "unknown option": (("--sped", "5"), ("--sped",)),
}


@dataclass(frozen=True)
class Case:
    """Input of `up`, and words that its error line must contain. Traces are files."""

    said: Sequence[str]
    options: Sequence[str] = ()
    config: str = ONE_MODEL
    trace: bytes | None = None

    def option_arguments(self, folder: Path) -> Sequence[str]:
        """The option arguments of the case, with its trace in `folder`."""
        if self.trace is None:
            return self.options
        path = folder / "other" / "trace.csv"
        path.parent.mkdir()
        path.write_bytes(self.trace)
        return ("--trace", str(path))


CASES = {
    **{f"config: {name}": Case(said, config=text) for name, (text, said) in CONFIGS.items()},
    **{f"trace: {name}": Case(said, trace=content) for name, (content, said) in TRACES.items()},
    **{name: Case(said, options) for name, (options, said) in OPTIONS.items()},
}
AS_PROCESSES = {"config: fits nowhere", "trace: bad row", "unknown option", "broker unreachable"}
"""One case for each way in which `up` refuses. The other cases differ only in their message."""


def assert_said(errors: str, said: Sequence[str]) -> None:
    """Assert that `errors` is one line that contains all of `said`."""
    lines = errors.splitlines()
    assert len(lines) == 1, errors
    assert lines[0].startswith("shoal")
    for words in said:
        assert words in lines[0]
    assert "Traceback" not in lines[0]


def refused(start: Start, said: Sequence[str], *options: str, config: str | None = None) -> None:
    """Assert that the run ends with one line that contains all of `said` and has started no
    process.
    """
    run = start(*options, config=config)
    assert run.end() == 2
    assert_said(run.errors, said)
    assert run.lines == []
    assert run.processes() == []
    assert list(run.temporary.iterdir()) == []
    assert not run.summary_path.exists()


@pytest.mark.parametrize("case", sorted(CASES.keys() - AS_PROCESSES))
def test_bad_input_is_refused_before_any_process_starts(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command runs as a function."""

    def started(*argv: object, **_: object) -> None:
        raise AssertionError(f"it started {argv}")

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    one = CASES[case]
    argv = arguments(tmp_path, *one.option_arguments(tmp_path), config=one.config)
    try:
        code = main(argv)
    except SystemExit as ended:  # The argument parser raises this.
        code = ended.code
    assert code == 2
    printed = capsys.readouterr()
    assert_said(printed.err, one.said)
    assert printed.out == ""
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize("case", sorted(AS_PROCESSES))
def test_a_refused_run_starts_no_process(start: Start, tmp_path: Path, case: str) -> None:
    one = CASES[case]
    refused(start, one.said, *one.option_arguments(tmp_path), config=one.config)


def test_a_port_in_use(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused(start, (f"--port {port}", "in use"), "--port", str(port))
