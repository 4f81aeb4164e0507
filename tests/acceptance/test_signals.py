"""A signal at any stage stops a run soon and with a summary."""

from __future__ import annotations

import os
import signal

import pytest

from tests.acceptance.conftest import Start
from tests.acceptance.shoal_up import Run

LOADED = {signal.SIGINT: 130, signal.SIGTERM: 143}
pytestmark = pytest.mark.usefixtures("loaded")


@pytest.fixture(scope="module")
def loaded(start: Start) -> dict[signal.Signals, Run]:
    """A run per signal, all of them under load.

    The runs start in parallel, and the first tests of this file run in the meantime.
    """
    return {number: start() for number in LOADED}


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


@pytest.mark.parametrize("number", LOADED)
def test_a_signal_under_load_ends_the_run(
    loaded: dict[signal.Signals, Run], number: signal.Signals
) -> None:
    """All processes end. The summary still accounts for all sent requests."""
    run = loaded[number]
    run.url()
    run.until(run.serving, "engines that serve")
    os.kill(run.process.pid, number)
    assert run.end() == LOADED[number]
    assert run.processes() == []
    assert list(run.temporary.iterdir()) == []
    requests = run.summary["requests"]
    assert requests["served"] > 0
    assert requests["sent"] == requests["served"] + requests["failed"] + requests["dropped"]
    assert requests["failed"] == 0  # a request that was cut off by the end is dropped, not failed
    assert f"{requests['sent']} sent, " in "\n".join(run.lines)
    assert run.errors == ""
