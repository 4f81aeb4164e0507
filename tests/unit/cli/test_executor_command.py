"""`shoal executor`: its node (declared or detected), its address, and its state folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from executors.node.executor_config import parse_config
from streams.cli import run_executor
from streams.cli.main import main

CONFIG = str(Path(__file__).parent.parent / "files" / "sample.yaml")
NODE = "us-east.l40s.spot.1"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Collects the setups of executors instead of starting them, so no broker is needed."""
    files: list[dict[str, Any]] = []
    monkeypatch.setattr(run_executor, "reachable", lambda *_: "127.0.0.1:9092")
    monkeypatch.setattr(
        run_executor, "become", lambda *argv: files.append(orjson.loads(Path(argv[2]).read_bytes()))
    )
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    return files


def run(*options: str) -> int:
    return main(["executor", "--config", CONFIG, *options])


def test_an_executor_runs_only_its_own_node(started: list[dict[str, Any]], tmp_path: Path) -> None:
    """Each node has a separate state folder by default."""
    run("--node", NODE, "--advertise", "10.0.0.5", "--engine-env", "HF_TOKEN")
    (told,) = started
    assert [node["node"] for node in told["nodes"]] == [NODE]
    assert (told["advertise"], told["bind"]) == ("10.0.0.5", "10.0.0.5")
    assert told["engine_env"] == ["HF_TOKEN"]
    assert told["state_dir"] == str(tmp_path / "shoal" / "executor" / NODE)


def test_the_node_is_detected_by_host_name(
    started: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advertised address is that of the interface that reaches the broker."""
    monkeypatch.setattr("socket.gethostname", lambda: NODE)
    run()
    assert [node["node"] for node in started[0]["nodes"]] == [NODE]
    assert started[0]["advertise"] == "127.0.0.1"


def test_an_undeclared_host_is_refused_with_the_names_of_declared_nodes(
    started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown host must not take over the nodes of a region."""
    assert run("--node", "us-east.l40s.spot.400") == 2
    said = capsys.readouterr().err
    assert "us-east.l40s.spot.400: not a node" in said and "us-east.l40s.spot.0" in said
    assert started == []


def test_one_executor_can_run_a_region_of_virtual_nodes(started: list[dict[str, Any]]) -> None:
    """`shoal up` starts the nodes of a region on one machine in this way."""
    run("--region", "us-east")
    assert len(started[0]["nodes"]) > 1
    assert started[0]["advertise"] == "127.0.0.1"


def test_an_unusable_state_folder_is_refused(
    started: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error is one line that names the folder."""
    (tmp_path / "file").touch()
    assert run("--node", NODE, "--state-dir", str(tmp_path / "file" / "x")) == 2
    assert "name another one with --state-dir" in capsys.readouterr().err


def test_a_real_node_starts_vllm_and_loads_only_declared_weights(
    started: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """By default, virtual nodes start simulated engines."""
    run("--node", NODE, "--vllm", "/opt/vllm", "--weights", "mini=/models/mini")
    (told,) = started
    engine = told["engines"]["default"]
    assert (engine["kind"], engine["executable"]) == ("vllm", "/opt/vllm")
    assert told["models"]["mini"]["weights"] == "/models/mini"
    assert "/models/mini" in engine["weights"]
    assert parse_config(told).engines
    run("--region", "us-east")
    assert started[1]["engines"]["default"]["kind"] == "simulated"
    assert run("--node", NODE, "--weights", "nope=/x") == 2
    assert "--weights nope=/x" in capsys.readouterr().err
