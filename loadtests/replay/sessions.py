"""Locust users as chat sessions, for runs in which parts of a stack break.

A user opens a session with one model and one gateway and asks several times; each prompt repeats
all before it and adds to it, so a session shares a growing prefix. Think times and lengths are
drawn. A user may repeat a failed request at the next gateway, as behind a load balancer.
`loadtests.session_load` starts this file and reads one JSON line per request from `--report-fd`,
and at the end Locust's own statistics.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, cycle
from typing import Any

import gevent
import orjson
from locust import User, events, task

from loadtests.replay.client import Answer, BrokenAnswer, Client

_TURNS = (2, 8)
_FIRST_WORDS, _NEW_WORDS = 32, 16
_WITHOUT_ANSWER = 0


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    group = parser.add_argument_group("sessions")
    group.add_argument("--gateways", required=True, help="URL,URL,...")
    group.add_argument("--models", required=True, help="NAME,NAME,...")
    group.add_argument("--think-s", type=float, default=5.0, help="mean think time (5)")
    group.add_argument("--least-tokens", type=int, default=8, help="of an answer (8)")
    group.add_argument("--most-tokens", type=int, default=8, help="of an answer (8)")
    group.add_argument("--tries", type=int, default=1, help="of one request (1)")
    group.add_argument("--seed", type=int, default=1)
    group.add_argument("--timeout", type=float, default=60.0, help="s for one answer (60)")
    group.add_argument("--report-fd", type=int, required=True)


class Session(User):
    """One person after the other: a session, and then the next one with a new prefix."""

    _number = count()

    def on_start(self) -> None:
        """Choose model and gateway: users alternate, so that each pair gets as many."""
        options, number = self.environment.parsed_options, next(self._number)
        gateways, self.models = options.gateways.split(","), options.models.split(",")
        self.model = self.models[number % len(self.models)]
        first = number // len(self.models) % len(gateways)
        self.gateways = [*range(first, len(gateways)), *range(first)]
        self.clients = [Client(url, options.timeout, keep_alive=False) for url in gateways]
        self.random = random.Random(f"sessions {options.seed} {number}")
        self.name = f"{number}"
        self.turns = self._turns()
        gevent.sleep(self.random.uniform(0.0, options.think_s))

    def wait_time(self) -> float:
        """Think time in s, half to one and a half of the mean, so that no user is silent for
        long."""
        mean_s: float = self.environment.parsed_options.think_s
        return mean_s * self.random.uniform(0.5, 1.5)

    @task
    def ask(self) -> None:
        """Send the next prompt of the session."""
        options, prompt = self.environment.parsed_options, next(self.turns)
        tokens = self.random.randint(options.least_tokens, options.most_tokens)
        turn = f"{self.name}-{self.random.getrandbits(32):08x}"
        for tried, gateway in zip(range(options.tries), cycle(self.gateways), strict=False):
            if self._one(turn, tried, gateway, prompt, tokens):
                return
            gevent.sleep(0.2)

    def _turns(self) -> Iterator[str]:
        """Prompts; each one begins with the one before, until a new session begins."""
        while True:
            prompt = f"session {self.random.getrandbits(64):016x}" + " word" * _FIRST_WORDS
            for _ in range(self.random.randint(*_TURNS)):
                yield prompt
                prompt += " more" * _NEW_WORDS

    def _one(self, turn: str, tried: int, gateway: int, prompt: str, tokens: int) -> bool:
        sent_s, found, status, why = time.monotonic(), None, _WITHOUT_ANSWER, ""
        timeout_s = self.environment.parsed_options.timeout
        try:
            with gevent.Timeout(timeout_s):
                found = self.clients[gateway].ask(self.model, prompt, tokens, sent_s)
            status = 200
            if found.output_tokens != tokens:
                why = f"{found.output_tokens} of {tokens} tokens"
        except BrokenAnswer as error:
            status, why = error.status, str(error)
        except gevent.Timeout:
            why = "timeout"
        except Exception as error:
            why = type(error).__name__
        self._report(turn, tried, gateway, sent_s, found, status, why)
        return not why

    def _report(
        self, turn: str, tried: int, gateway: int, sent_s: float,
        found: Answer | None, status: int, why: str,
    ) -> None:  # fmt: skip
        """Tell Locust and the process that reads the requests."""
        took_s = time.monotonic() - sent_s
        record = {
            "turn": turn, "tried": tried, "model": self.model, "gateway": gateway,
            "sent_s": sent_s, "took_s": took_s, "status": status, "why": why,
            "first_ms": found.first_ms if found else 0.0,
            "last_ms": found.last_ms if found else 0.0,
            "tokens": found.output_tokens if found else 0,
        }  # fmt: skip
        _write(self.environment, record)
        self.environment.events.request.fire(
            request_type="session",
            name=f"{self.model} {gateway}",
            response_time=1000.0 * took_s,
            response_length=0,
            exception=BrokenAnswer(why) if why else None,
            context={},
        )


def _write(environment: Any, value: object) -> None:
    """One line, in a single write, so that lines of several greenlets do not mix."""
    with suppress(BrokenPipeError):
        os.write(environment.parsed_options.report_fd, orjson.dumps(value) + b"\n")


@events.init.add_listener
def _wire(environment: Any, **_: Any) -> None:
    """Write Locust's totals after the last request."""

    @environment.events.quit.add_listener
    def _end(**_: Any) -> None:
        total = environment.stats.total
        counts = {"requests": total.num_requests, "failed": total.num_failures}
        _write(environment, {"total": counts})
