"""Behaviour that all `shoal` commands share: version, completion, refusals, no tracebacks."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from streams.cli import run_executor, run_part
from streams.cli.main import COMMANDS, main

CONFIG = str(Path(__file__).parent.parent / "files" / "sample.yaml")
ROLES = {"controller": (), "executor": ("--region", "eu-west"), "gateway": ()}


@pytest.fixture
def nobody() -> str:
    """An address on which no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return f"127.0.0.1:{taken.getsockname()[1]}"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"shoal \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_code_is_printed(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "shoal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "found"),
    [("shoal ", set(COMMANDS)), ("shoal plan --str", {"--strategy"}), ("shoal 'x", set())],
)
def test_a_shell_gets_the_possible_completions(line: str, found: set[str], tmp_path: Path) -> None:
    said = tmp_path / "said"
    asked = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_STDOUT_FILENAME": str(said), "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line, "COMP_POINT": str(len(line)),
    }  # fmt: skip
    command = [str(Path(sys.executable).with_name("shoal"))]
    ran = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, timeout=60.0)
    assert ran.stderr == b""
    words = {word.strip() for word in said.read_text().split("\n")} - {""}
    assert found <= words
    assert found or not words


@pytest.mark.parametrize("role", ROLES)
def test_a_role_without_a_reachable_broker_exits_at_once(
    role: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([role, "--config", CONFIG, "--broker", nobody, *ROLES[role]]) == 2
    said = capsys.readouterr().err
    assert said == f"shoal: Kafka at {nobody} cannot be used: connection refused\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("up --http nowhere", "shoal: --http nowhere: not HOST:PORT"),
        ("controller --http 127.0.0.1:70000", "shoal: --http 127.0.0.1:70000: not HOST:PORT"),
        ("up --record /dev/null/x", "shoal: --record /dev/null/x: cannot be written to"),
        ("controller --record /proc", "shoal: --record /proc: cannot be written to"),
        ("up --alert-token-file none.txt", "shoal: --alert-token-file none.txt: cannot be read"),
        ("up --port 7.5", "shoal: --port: '7.5' is not allowed; allowed: a whole number"),
        ("up --seed -1", "shoal: --seed: '-1' is not allowed; allowed: a whole number"),
    ],
)
def test_a_bad_option_is_refused_before_any_process_starts(
    command: str, said: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--config", CONFIG, "--broker", nobody]
    assert main([*command.split(), *more]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_up_refuses_a_malformed_broker_address_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "shoal.yaml"
    config.write_text(f"kafka: myhost\n{Path(CONFIG).read_text()}")
    assert main(["up", "--config", str(config)]) == 2
    said = f"shoal: {config}: kafka: 'myhost' is not allowed; allowed: kafka://HOST:PORT or"
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["pause", "chat", "--why", " "], "--why: '' is not allowed; allowed: the reason"),
        (["pause", "chat", "--for", "5", "--why", "x"], "--for: '5' is not allowed"),
        (["feed", "prices", "--from", "x", "--every", "0s"], "--every: '0s' is not allowed"),
    ],
)
def test_a_refused_operator_command_names_its_option(
    command: list[str], said: str, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--broker", nobody]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("number", ["0", "-3", "three", "1.5"])
def test_proposal_numbers_below_1_are_refused(
    number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["approve", number])
    assert ended.value.code == 2
    assert f"'{number}' is not allowed; allowed: a number from 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("role", "file"), [("gateway", "routes.jsonl"), ("executor", "eu-west-l4-spot-0-1234abcd.json")]
)
def test_a_role_with_stored_state_starts_without_a_broker(
    role: str,
    file: str,
    nobody: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Gateways and executors can restart while the broker is unreachable."""
    remembered = tmp_path / file
    remembered.parent.mkdir(exist_ok=True)
    remembered.write_text("{}")
    became: list[tuple[str, ...]] = []
    for module in (run_part, run_executor):
        monkeypatch.setattr(module, "become", lambda *argv: became.append(argv))
    options = ["--config", CONFIG, "--broker", nobody, "--state-dir", str(tmp_path), *ROLES[role]]
    main([role, *options, "--log-level", "debug"])
    assert len(became) == 1
    assert "debug" in became[0]
    said = capsys.readouterr().err
    assert f"Kafka at {nobody} cannot be used" in said
    assert "continuing with" in said


def test_the_gateway_gets_every_option_and_the_models_that_are_not_in_mode_act(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options are those of `--help`."""
    (tmp_path / "routes.jsonl").write_text("{}")
    config = tmp_path / "shoal.yaml"
    text = Path(CONFIG).read_text()
    config.write_text(text.replace("  mini:\n", "  mini:\n    mode: recommend\n"))
    became: list[tuple[str, ...]] = []
    monkeypatch.setattr(run_part, "become", lambda *argv: became.append(argv))
    given = {"hold-s": "7.0", "queue-s": "8.0", "stall-s": "9.0", "request-s": "10.0",
             "drain-s": "11.0", "between": "equal", "inside": "prefix",
             "keys-file": "keys.yaml", "state-dir": str(tmp_path)}  # fmt: skip
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    main(["gateway", "--config", str(config), "--broker", "127.0.0.1:9", *options])
    expected = {f"--{name}={value}" for name, value in given.items()}
    assert {*expected, "--advised=mini,openai/gpt-oss-20b"} <= set(became[0])
    assert "--declared=mini=openai/gpt-oss-20b" in became[0]


def test_ctrl_c_during_an_import_leaves_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "slow_part.py").write_text("print('importing', flush=True)\ninput()\n")
    with subprocess.Popen(
        [sys.executable, "-m", "streams.cli.start_part", "slow_part"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ) as part:
        assert part.stdout is not None
        assert part.stderr is not None
        assert part.stdout.readline() == b"importing\n"
        part.send_signal(signal.SIGINT)
        assert part.stderr.read() == b""
        assert part.wait(10.0) == -signal.SIGINT


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("status --jsn", "shoal status: unknown option --jsn; did you mean --json?"),
        ("plan --confg=x", "shoal plan: unknown option --confg; did you mean --config?"),
        ("status now", "shoal status: unknown argument now"),
    ],
)
def test_a_mistyped_option_names_the_nearest(
    line: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(error)


def test_the_file_in_this_folder_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = Path(CONFIG).read_text()
    monkeypatch.chdir(tmp_path)
    assert main(["plan"]) == 2
    assert "shoal.yaml: no such file" in capsys.readouterr().err
    (tmp_path / "shoal.yaml").write_text(text + "\nwrong: 1\n")
    assert main(["plan"]) == 2
    assert "shoal.yaml" in (found := capsys.readouterr().err) and "wrong" in found
