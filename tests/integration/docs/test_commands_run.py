"""The quick commands of the documentation run, and print the output that their page shows.

Each page has a folder of its own with the files that the pages ask the reader to bring, and its
commands run there in order. A line of output with `...` is not compared. Commands that ask a
controller run against one controller on the fleet of the tutorial.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from streams.cli.controller_client import status
from streams.cli.main import main
from streams.files.user_errors import UserError
from streams.tools.up.host_resources import free_port
from tests.integration.child_processes import end
from tests.integration.docs.json_forms import undocumented
from tests.integration.docs.page_commands import PAGES, ROOT, Command, blocks, commands

RUN = {
    ("config", "check"), ("config", "init"), ("config", "schema"), ("plan",), ("diff",),
    ("models",), ("gpus",), ("keys", "new"), ("keys", "derive"), ("workload",), ("backtest",),
}  # fmt: skip
"""Commands that run here, by their first words."""
ELSEWHERE = {"--from-cluster", "--vllm", "--broker", "--prometheus", "--fluid", "--supply",
             "--from", "FILE"}  # fmt: skip
"""Options that need a service, or files that the page does not show."""
ASK_A_CONTROLLER = {"status", "explain", "doctor"}

FLEET = """\
regions: {us-east: {l40s: {gpu: L40S, max: 4, price: 1.9}}}
defaults: {max_len: 8192}
models:
  chat:
    source: meta-llama/Llama-3.1-8B-Instruct
    slo: {ttft: 2s, tpot: 100ms}
    workload: {req_per_s: 1, input: 600, output: 150}
  code:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 100ms}
    workload: {req_per_s: 1, input: 600, output: 150}
"""
AUTOSCALERS = "kind: List\nitems:\n" + "".join(
    f"""\
- apiVersion: keda.sh/v1alpha1
  kind: ScaledObject
  metadata: {{name: {model}}}
  spec:
    scaleTargetRef: {{name: {model}}}
    triggers:
    - type: prometheus
      metadata: {{query: "sum(vllm:num_requests_running)", threshold: "8"}}
"""
    for model in ("chat", "code")
)
REQUESTS = "time,model,input_tokens,output_tokens\n" + "".join(
    f"{second},chat,{300 + 10 * second},{60 + second}\n" for second in range(20)
)


def _runs_here(command: Command) -> bool:
    words = command.words
    quick = words[0] == "shoal" and (words[1:2] in RUN or words[1:3] in RUN)
    return (quick or words[0] == "export") and not ELSEWHERE & set(words)


ON_A_CLUSTER = ROOT / "docs" / "tutorials" / "kubernetes.md"
"""tests/kubernetes runs this page."""
PAGES_TO_RUN = [
    page for page in PAGES if any(map(_runs_here, commands(page))) and page != ON_A_CLUSTER
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder, with the files of the reader."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    (tmp_path / "streams").mkdir()
    (tmp_path / "streams/data").symlink_to(ROOT / "streams/data")
    (tmp_path / "shoal.yaml").write_text(FLEET)
    for name in ("requests", "monday", "tuesday", "wednesday", "lastweek"):
        (tmp_path / f"{name}.csv").write_text(REQUESTS)
    (tmp_path / "mine.yaml").write_text(AUTOSCALERS)
    (tmp_path / "demand.yaml").write_text("chat: {req_per_s: 2}\n")
    (tmp_path / "fleet.yaml").write_text("chat:a1@us-east/l40s/on-demand: 2\n")
    with patch.dict(os.environ):
        yield tmp_path


def _arguments(command: Command) -> list[str]:
    """The arguments, with two policies in a backtest that would run or tune all, and with the
    begin of a trace of the package."""
    arguments = list(command.words[1:])
    if arguments[0] == "backtest" and "--policies" not in arguments:
        arguments += ["--policies", "shoal,fixed-peak"]
    if any(word.startswith("streams/data/") for word in arguments) and "--to" not in arguments:
        arguments += ["--to", "5m"]
    return arguments


def _run(command: Command, capfd: pytest.CaptureFixture[str]) -> None:
    """Run a command; its exit code is 0 and its output holds the lines that the page shows."""
    capfd.readouterr()
    if command.words[0] == "export":
        os.environ.update(word.split("=") for word in command.words[1:])
        return
    code = main(_arguments(command))
    out, err = capfd.readouterr()
    if command.output_file:
        Path(command.output_file).write_text(out)
    assert code == 0, (command, out, err)
    printed = iter([line.rstrip() for line in (out + err).splitlines()])
    for line in command.shown:
        wanted = line.rstrip()
        if "..." not in wanted:
            assert wanted in printed, f"{command.place} shows a line that is not printed: {wanted}"


@pytest.mark.parametrize("page", PAGES_TO_RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_quick_command_runs(
    page: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for block in blocks(page):
        if block.text.startswith("time,model,"):
            (folder / "requests.csv").write_text(block.text)
    for command in filter(_runs_here, commands(page)):
        if command.words[1:3] == ("config", "init"):
            (folder / "shoal.yaml").unlink()
        _run(command, capfd)
        report = folder / "out.json"
        if report.exists():
            assert undocumented("shoal backtest", json.loads(report.read_bytes())) == []
        if command.words[1:3] == ("config", "init"):  # The page then tells to add this line.
            with (folder / "shoal.yaml").open("a") as file:
                file.write("\ndefaults: {max_len: 8192}\n")


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The address and the decision log of a controller with an embedded broker."""
    folder = tmp_path_factory.mktemp("controller")
    (folder / "shoal.yaml").write_text(FLEET)
    port = free_port()
    argv = [sys.executable, "-m", "streams.cli.main", "controller", "--http", f"127.0.0.1:{port}"]
    argv += ["--config", str(folder / "shoal.yaml"), "--record", str(folder / "log")]
    with (folder / "output").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            assert process.poll() is None, (folder / "output").read_text()
            try:
                if status(url)["models"] and main(["explain", "chat", "--url", url]) == 0:
                    break
            except UserError:
                pass
            time.sleep(1.0)
        yield url, folder / "log"
    finally:
        end(process)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_ask_a_controller_run(
    page: Path, folder: Path, request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str]
) -> None:
    for command in commands(page):
        if command.words[0].endswith("shoal") and command.words[1] in ASK_A_CONTROLLER:
            url, _ = request.getfixturevalue("controller")
            words = ["chat" if word.startswith("Llama") else word for word in command.words[1:]]
            code = main([*words, "--url", url])
            out, _ = capfd.readouterr()
            # A doctor reports that this controller has no telemetry.
            assert (code, bool(out)) in ((0, True), (int(words[0] == "doctor"), True)), command


def test_each_key_of_a_controller_is_documented(
    controller: tuple[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    url, log = controller
    capfd.readouterr()
    for section, arguments in {
        "shoal status": ["status", "--url", url],
        "shoal explain": ["explain", "chat", "--url", url],
        "shoal doctor": ["doctor", "--url", url],
        "shoal replay": ["replay", "--from", str(log)],
    }.items():
        main([*arguments, "--json"])
        assert undocumented(section, json.loads(capfd.readouterr().out)) == []


def test_a_page_with_another_output_is_found(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("shoal", "config", "check", "shoal.yaml")
    _run(Command("page:1", words, shown=("shoal.yaml: ok (1 model, 1 pool, 1 region, ...",)), capfd)
    with pytest.raises(AssertionError, match="that is not printed"):
        _run(Command("page:1", words, shown=("shoal.yaml: fine",)), capfd)
    with pytest.raises(AssertionError):
        _run(Command("page:1", ("shoal", "plan", "--config", "none.yaml")), capfd)
