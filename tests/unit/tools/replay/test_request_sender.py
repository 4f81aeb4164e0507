"""A replay that cannot continue reports an error. It does not end as if its trace were over."""

from __future__ import annotations

import asyncio
import errno
import time
from types import SimpleNamespace

import aiohttp
import pytest

from loadtests.invariants.virtual import Process
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
    """A sender in which an answer of N output tokens takes N ms, in virtual time.

    sent: (input tokens, due, sent), in ns. ended: end of the answer in ns, by input tokens.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.process = Process(0.0)
        clock = SimpleNamespace(monotonic_ns=self.now_ns)
        patch.setattr("streams.tools.replay.request_sender.time", clock)
        self.record = Record({"m": None})
        self.sent: list[tuple[int, int, int]] = []
        self.ended: dict[int, int] = {}
        super().__init__("http://127.0.0.1:1", TimeBase(), 0, self.record, 10.0)

    def now_ns(self) -> int:
        return round(self.process.now_s * 1e9)

    def answer_all(self, jobs: list[Job]) -> None:
        self.process.start(self.run(jobs, asyncio.Event(), 5.0))
        self.process.run_until(60.0)
        self.process.kill()

    async def _exchange(self, job: Job, due_ns: int) -> None:
        self.sent.append((job.input_tokens, due_ns, self.now_ns()))
        await asyncio.sleep(job.output_tokens / 1000.0)
        self.ended[job.input_tokens] = self.now_ns()


def test_requests_are_sent_at_recorded_times_without_waiting_for_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each answer takes ten times as long as the time to the next request."""
    sender = Answering(monkeypatch)
    sender.answer_all([Job(50.0 * n, "m", n, 500) for n in range(1, 21)])
    ms = 1_000_000
    assert sender.sent == [(n, 50 * n * ms, 50 * n * ms) for n in range(1, 21)]
    assert len(sender.ended) == 20


def test_turns_of_a_session_are_sent_after_the_answers_before_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second turn is due early, but waits for its pause after the first answer. The third turn
    waits for its own time. A request without a session waits for no answer.
    """
    sender = Answering(monkeypatch)
    sender.answer_all(
        [
            Job(0.0, "m", 1, 30, session=7),
            Job(1.0, "m", 2, 1, session=7, delay_ms=20.0),
            Job(2.0, "m", 9, 1),
            Job(120.0, "m", 3, 1, session=7),
        ]
    )
    ms = 1_000_000
    assert sender.sent == [(1, 0, 0), (9, 2 * ms, 2 * ms), (2, 50 * ms, 50 * ms),
                           (3, 120 * ms, 120 * ms)]  # fmt: skip
    assert sender.record.requests()["sent"] == 4
