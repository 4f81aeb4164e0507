"""`shoal console` prints the address with the token of this user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streams.cli import console
from streams.cli.main import main
from streams.files.keyfiles import console_token_file, write_key


def test_the_address_has_the_token_of_this_users_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(_: str) -> dict[str, Any]:
        return {}

    monkeypatch.setattr(console, "status", answer)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SHOAL_OPERATOR_TOKEN", raising=False)
    url = "http://127.0.0.1:8702"
    assert main(["console", "--url", f"{url}/"]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{url}/\n" and "SHOAL_OPERATOR_TOKEN" in shown.err
    write_key(console_token_file(url), "a-token-of-this-run")
    main(["console", "--url", url])
    assert capsys.readouterr().out == f"{url}/#operator=a-token-of-this-run\n"
    main(["console", "--url", "http://127.0.0.1:8703"])
    assert "#" not in capsys.readouterr().out
    monkeypatch.setenv("SHOAL_OPERATOR_TOKEN", "a-token&of=mine/1")
    main(["console", "--url", url])
    assert capsys.readouterr().out == f"{url}/#operator=a-token%26of%3Dmine%2F1\n"


def test_without_a_controller_it_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["console", "--url", "http://127.0.0.1:1"]) == 2
    assert "no controller answers" in capsys.readouterr().err
