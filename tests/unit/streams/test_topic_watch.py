"""Topics of a running controller: corrected settings, and an unreachable broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import EnsuredTopics
from streams.controller import topic_watch
from tests.hang_limit import HANG_S


class Readers:
    """Replaces the readers of topics."""

    def __init__(self) -> None:
        self.partitions: list[Mapping[str, int]] = []

    def repartition(self, partitions: Mapping[str, int]) -> None:
        self.partitions.append(partitions)


async def test_corrected_topics_and_an_unreachable_broker_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names each corrected topic setting. It states once why the broker does not answer."""
    away = BrokerUnreachable("b:1", "tls.crt cannot be read")
    answers: list[EnsuredTopics | BrokerUnreachable] = [
        EnsuredTopics(False, (), {"status": 4}, ("shoal.status",)),
        away,
        away,
        EnsuredTopics(False, ("shoal.controls",), {"status": 4}),
    ]
    over = asyncio.Event()

    async def ensure(*_: Any) -> EnsuredTopics:
        answer = answers.pop(0)
        if not answers:
            over.set()
        if isinstance(answer, BrokerUnreachable):
            raise answer
        return answer

    monkeypatch.setattr(topic_watch, "ensure_topics", ensure)
    monkeypatch.setattr(topic_watch, "_PAUSE_S", 0.0)
    readers: Any = Readers()
    created: list[str] = []
    watching = asyncio.ensure_future(
        topic_watch.TopicWatch("b:1", "shoal.", readers, readers, created.append).run()
    )
    async with asyncio.timeout(HANG_S):
        await over.wait()
    watching.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await watching
    assert [record.message for record in caplog.records] == [
        "settings of topics were corrected: shoal.status",
        "topics: Kafka at b:1 cannot be used: tls.crt cannot be read",
    ]
    assert created == ["controls"] and readers.partitions[0] == {"status": 4}
