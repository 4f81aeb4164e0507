"""The reclaim command is run periodically, and its faults are logged once."""

from __future__ import annotations

import asyncio

import pytest

from executors.node import reclaim_hook
from executors.node.reclaim_hook import poll_notices


async def polled(
    monkeypatch: pytest.MonkeyPatch, answers: list[float | Exception | None]
) -> tuple[list[float | None], list[float]]:
    """(the notices, the pauses) of a command that gives `answers`."""
    notices: list[float | None] = []
    pauses: list[float] = []

    async def read(command: object, node: str, limit_s: float) -> float | None:
        assert (command, node, limit_s) == (("hook",), "n1", 3.0)
        if not answers:
            raise asyncio.CancelledError
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def passes(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(reclaim_hook, "read_notice", read)
    monkeypatch.setattr(asyncio, "sleep", passes)
    with pytest.raises(asyncio.CancelledError):
        await poll_notices(("hook",), "n1", notices.append)
    return notices, pauses


async def test_every_answer_is_passed_on_after_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await polled(monkeypatch, [None, 30.0, None]) == ([None, 30.0, None], [5.0] * 3)


async def test_a_fault_is_logged_once_until_the_command_answers_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad = [OSError("not found"), TimeoutError(), ValueError("exit code 3")]
    notices, pauses = await polled(monkeypatch, [*bad, 7.0, TimeoutError()])
    assert (notices, pauses) == ([7.0], [5.0] * 5)
    assert [record.getMessage() for record in caplog.records] == [
        "reclaim command hook: not found",
        "reclaim command hook: no answer in time",
    ]
