"""Topics of a running controller: settings, an unreachable broker, and bad records."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import streams.controller.__main__ as controller_main
from autoscaler.domain.cluster import Mode
from autoscaler.domain.validation import InvalidValue
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import EnsuredTopics
from streams.controller import composition
from streams.files.user_errors import UserError
from topics.checks import InvalidRecord
from topics.time_base import TimeBase

OPTIONS = composition.Options(
    Path("shoal.yaml"), "b:1", TimeBase(1.0, 1, 0), "ctl-1", "shoal.", Mode.ACT
)


class Readers:
    """Replaces the readers of topics and the control loop, and counts its calls."""

    def __init__(self) -> None:
        self.partitions: list[Mapping[str, int]] = []
        self.said_again = 0

    def repartition(self, partitions: Mapping[str, int]) -> None:
        self.partitions.append(partitions)

    def say_again(self) -> None:
        self.said_again += 1


async def test_corrected_topics_and_an_unreachable_broker_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names each corrected topic setting. It states once why the broker does not answer."""
    away = BrokerUnreachable("b:1", "tls.crt cannot be read")
    answers: list[EnsuredTopics | BrokerUnreachable] = [
        EnsuredTopics(False, (), {"status": 4}, ("shoal.status",)),
        away,
        away,
        EnsuredTopics(False, (), {"status": 4}),
    ]
    over = asyncio.Event()

    async def ensure(*_: Any) -> EnsuredTopics:
        answer = answers.pop(0)
        if not answers:
            over.set()
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer

    monkeypatch.setattr(composition, "ensure_topics", ensure)
    monkeypatch.setattr(composition, "_WATCH_TOPICS_S", 0.0)
    readers: Any = Readers()
    watching = asyncio.ensure_future(composition._watching(OPTIONS, readers, readers, readers)())
    async with asyncio.timeout(5):
        await over.wait()
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert [record.message for record in caplog.records] == [
        "settings of topics were put right: shoal.status",
        "topics: Kafka at b:1 cannot be used: tls.crt cannot be read",
    ]
    assert readers.said_again == 0 and readers.partitions[0] == {"status": 4}


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (InvalidRecord("number", -1, "a count"), 1, ""),
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
    monkeypatch.setattr(controller_main, "log_to_stderr", lambda *_: None)
    assert controller_main.main(["--config", "shoal.yaml", "--broker", "b:1"]) == code
    assert said in capsys.readouterr().err
