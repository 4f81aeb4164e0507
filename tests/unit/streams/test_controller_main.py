"""Exit codes of the controller process."""

from __future__ import annotations

from typing import Any

import pytest

import streams.controller.controller_process as controller_main
from autoscaler.domain.validation import InvalidValue
from streams.files.user_errors import UserError


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvalidValue("number", -1, "a count"), 1, ""),
        (InvalidValue("pool", "x", "y"), 1, ""),
        (UserError("shoal.yaml:1: no"), 2, "controller: shoal.yaml:1: no"),
    ],
)
def test_a_bug_crashes_the_controller_and_bad_input_does_not(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    code: int,
    said: str,
) -> None:
    """Bad records are refused earlier, so a ValueError in a running controller is a bug."""

    async def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(controller_main, "run_controller", fails)
    monkeypatch.setattr(controller_main, "log_to_stderr", lambda *_, **_options: None)
    assert controller_main.main(["--config", "shoal.yaml", "--broker", "b:1"]) == code
    assert said in capsys.readouterr().err
