"""Chat sessions by Locust in a process of its own, as the load of a run that breaks parts.

`loadtests.replay.sessions` has the users. Each request is read back within milliseconds, and at the
end Locust's own totals must equal the requests that were read.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import orjson

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Request:
    """One try of a request. status: 0 without an answer. why: reason of a failure; "" if the answer
    is whole, with all of its tokens. turn: the same for all tries (0, 1, ...) of a request.
    first_ms, last_ms: times of the first and the last token, from the moment of sending."""

    model: str
    gateway: str
    sent_s: float
    took_s: float
    status: int
    why: str = ""
    turn: str = ""
    tried: int = 0
    first_ms: float = 0.0
    last_ms: float = 0.0
    tokens: int = 0


@dataclass(slots=True)
class SessionLoad:
    """Sessions on some gateways. gateways: address by name. users: their number. think_s: mean
    think time. tokens: least and most of an answer. tries: of one request. log: file of Locust's
    own messages. on_request: receives each request as it ends.

    excused: (gateway, since, until) of restarts on purpose.

    The load is about users / (think_s + time of an answer) requests/s.
    """

    gateways: dict[str, str]
    models: Sequence[str]
    users: int
    log: Path
    think_s: float = 5.0
    tokens: tuple[int, int] = (8, 8)
    tries: int = 1
    seed: int = 1
    on_request: Callable[[Request], None] = lambda _: None
    requests: list[Request] = field(default_factory=list)
    total: dict[str, int] = field(default_factory=dict)
    ended: bool = False
    excused: list[tuple[str, float, float]] = field(default_factory=list)

    async def run(self) -> None:
        """Send requests until cancelled, then wait for the answers under way. RuntimeError: Locust
        ended by itself."""
        read_fd, write_fd = os.pipe()
        with self.log.open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                *self._command(write_fd), cwd=ROOT, pass_fds=(write_fd,), stdout=log, stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        os.close(write_fd)
        reading = asyncio.create_task(self._read(read_fd))
        try:
            await asyncio.shield(reading)
        except asyncio.CancelledError:
            process.send_signal(signal.SIGTERM)
            await reading
            raise
        finally:
            self.ended = True
            await process.wait()
        raise RuntimeError(f"Locust ended with exit code {process.returncode}; see {self.log}")

    def unread(self) -> str:
        """How Locust's statistics differ from the requests that were read; "" if they agree."""
        failed = sum(bool(one.why) for one in self.requests)
        read = {"requests": len(self.requests), "failed": failed}
        return "" if self.total == read else f"Locust counts {self.total}, but {read} were read"

    def failed(self, since_s: float, until_s: float) -> list[Request]:
        """Requests sent between `since_s` and `until_s` without a whole answer, except those to a
        gateway that was restarted on purpose meanwhile."""
        return [
            one
            for one in self.requests
            if one.why and since_s <= one.sent_s < until_s and not self._excused(one)
        ]

    def _excused(self, request: Request) -> bool:
        return any(
            name == request.gateway
            and request.sent_s <= until_s
            and request.sent_s + request.took_s >= since_s
            for name, since_s, until_s in self.excused
        )

    def _command(self, report_fd: int) -> list[str]:
        return [
            str(Path(sys.executable).parent / "locust"), "-f", "loadtests/replay/sessions.py",
            "--headless", "--users", str(self.users), "--spawn-rate", str(self.users),
            "--loglevel", "WARNING", "--stop-timeout", "60", "--only-summary",
            "--gateways", ",".join(self.gateways.values()), "--models", ",".join(self.models),
            "--think-s", str(self.think_s), "--least-tokens", str(self.tokens[0]),
            "--most-tokens", str(self.tokens[1]), "--tries", str(self.tries),
            "--seed", str(self.seed), "--report-fd", str(report_fd),
        ]  # fmt: skip

    async def _read(self, read_fd: int) -> None:
        """Read requests until Locust closes the pipe."""
        names, reader = [*self.gateways], asyncio.StreamReader()
        with os.fdopen(read_fd, "rb") as pipe:
            await asyncio.get_running_loop().connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(reader), pipe
            )
            while line := await reader.readline():
                found = orjson.loads(line)
                if "total" in found:
                    self.total = found["total"]
                    continue
                found["gateway"] = names[found["gateway"]]
                self.requests.append(Request(**found))
                self.on_request(self.requests[-1])
