"""A signal at any stage of the start ends a run soon. `test_faults` sends signals under load."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.conftest import Start


@pytest.mark.parametrize("said", ["starting the controller", "waiting for the first fleet"])
def test_a_signal_during_the_start_ends_the_run(start: Start, said: str) -> None:
    """The run ends before its first request. All processes end, the exit code is 130, and the
    summary states that no request was sent.
    """
    run = start()
    run.line(said)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end() == 130
    assert run.processes() == []
    assert list(run.temporary.iterdir()) == []
    assert run.summary["requests"] == {"sent": 0, "served": 0, "failed": 0, "dropped": 0}
    assert run.errors == ""


def test_a_signal_at_once_ends_the_run(start: Start) -> None:
    """The signal comes as soon as the first process exists."""
    run = start()
    run.until(lambda: run.processes("streams.broker"), "broker")
    os.kill(run.process.pid, signal.SIGINT)
    assert run.end() == 130
    assert run.processes() == []
    assert list(run.temporary.iterdir()) == []
    assert run.errors == ""
