"""A replay that cannot continue reports an error. It does not end as if its trace were over."""

from __future__ import annotations

import asyncio
import errno
import time

import aiohttp
import pytest

from streams.tools.replay.replay_report import Record
from streams.tools.replay.request_schedule import Job
from streams.tools.replay.request_sender import Sender, connection_words
from topics.time_base import TimeBase


class Broken(Sender):
    """A sender in which every exchange raises an unexpected error."""

    async def _exchange(self, job: Job, due_ns: int) -> None:
        raise ValueError("a bug")


async def test_an_unexpected_error_counts_as_a_failed_request_with_its_reason() -> None:
    """Only requests without an answer at the end count as dropped."""
    record = Record({"m": None})
    base = TimeBase(1.0, 0, time.monotonic_ns())
    sender = Broken("http://127.0.0.1:1", base, 0, record, 10.0)
    await sender.run([Job(0.0, "m", 1, 1)], asyncio.Event(), 1.0)
    assert record.requests() == {"sent": 1, "served": 0, "failed": 1, "dropped": 0}
    assert record.reasons == {"ValueError": 1}


async def test_a_generator_that_fails_ends_the_replay_with_its_error() -> None:
    """A run that ends early must not look like a run whose trace was over."""
    record = Record({"m": None})
    base = TimeBase(1.0, 0, time.monotonic_ns())
    sender = Broken("http://127.0.0.1:1", base, 0, record, 10.0)
    jobs = [Job(float("nan"), "m", 1, 1)]
    with pytest.raises(ValueError, match="NaN"):
        await sender.run(jobs, asyncio.Event(), 1.0)


def test_a_failed_connection_has_a_reason() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)")
    for error, said in (
        (refused, "connection refused"),
        (aiohttp.ClientOSError(errno.ECONNRESET, "x"), "connection reset by peer"),
        (aiohttp.ServerDisconnectedError(), "closed before the end of the answer"),
    ):
        assert connection_words(error) == said


class Answering(Sender):
    """A sender in which an answer of N output tokens takes N ms."""

    async def _exchange(self, job: Job, due_ns: int) -> None:
        sent.append((job.input_tokens, due_ns))
        await asyncio.sleep(job.output_tokens / 1000.0)
        ended[job.input_tokens] = time.monotonic_ns()


sent: list[tuple[int, int]] = []
ended: dict[int, int] = {}


async def test_turns_of_a_session_are_sent_after_the_answers_before_them() -> None:
    """The second turn is due early, but waits for its pause after the first answer. The third turn
    waits for its own time. A request without a session waits for no answer.
    """
    sent.clear()
    record = Record({"m": None})
    start_ns = time.monotonic_ns()
    sender = Answering("http://127.0.0.1:1", TimeBase(1.0, 0, start_ns), 0, record, 10.0)
    jobs = [
        Job(0.0, "m", 1, 30, session=7),
        Job(1.0, "m", 2, 1, session=7, delay_ms=20.0),
        Job(2.0, "m", 9, 1),
        Job(120.0, "m", 3, 1, session=7),
    ]
    await sender.run(jobs, asyncio.Event(), 5.0)
    due_ns = dict(sent)
    assert [turn for turn, _ in sent if turn != 9] == [1, 2, 3]
    assert due_ns[2] >= ended[1] + 20_000_000
    assert due_ns[3] == start_ns + 120_000_000
    assert due_ns[9] == start_ns + 2_000_000
    assert record.requests()["sent"] == 4
