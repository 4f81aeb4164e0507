"""Checks that `shoal up` makes before it starts any process, and its summary."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from streams.cli import up
from streams.cli.main import main
from streams.tools.up.session import Session

CONFIG = str(Path(__file__).parent.parent / "files" / "sample.yaml")


def test_an_address_in_use_is_refused_before_any_process_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Session, "run", None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["up", "--http", address]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"shoal: --http {address}: Address already in use")
    assert said.count("\n") == 1


@pytest.mark.parametrize(("is_free", "port"), [(True, 8702), (False, 0)])
def test_commands_find_a_run_at_their_default_address_if_it_is_free(
    is_free: bool, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "can_listen", lambda _host, _port: is_free)
    assert up._http_address(None) == f"127.0.0.1:{port}"
    assert up._http_address("") == ""


def test_an_invalid_host_name_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--http", "a..b:0"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("shoal: --http a..b:0: ") and said.count("\n") == 1


def test_a_summary_is_written_although_its_folder_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "gone" / "summary.json"
    assert up._write(path, {"speed": 1.0}) == ""
    assert path.exists()


def test_an_unwritable_summary_gives_one_error_line_after_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "summary.json"

    async def ran(_session: Session) -> dict[str, Any]:
        folder.rmdir()
        folder.write_text("a file now")
        return {}

    monkeypatch.setattr(Session, "run", ran)
    monkeypatch.setattr(up, "show", lambda *_: None)
    monkeypatch.setattr(up, "_compare", lambda *_: None)
    assert main(["up", "--config", CONFIG, "--summary", str(path)]) == 1
    said = capsys.readouterr().err
    assert said == f"shoal: --summary {path}: cannot be written (File exists)\n"
