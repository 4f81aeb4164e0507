"""Request bodies to calls, without holding up everyone else.

Owns the process that parses heavy bodies: a few megabytes of small values take a parser a third of
a second, in which an event loop would serve nobody, and threads do not help because parsing holds
the interpreter's lock. Ordinary bodies are parsed at once. The process is this module; it answers
frames on its standard input and ends when that does, so it never outlives the gateway.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
from collections.abc import Collection, Mapping
from typing import Any, BinaryIO

import orjson

from executors.gateway.allowed_fields import BadRequest
from executors.gateway.openai_format import Call, is_heavy, parse_call
from executors.gateway.wire.body_blocks import Blocks, BodyBuffer

_NICE = 10  # where cores are short, heavy bodies wait for everybody else


class ParserBusy(Exception):
    """The process that parses heavy bodies ended, for its memory perhaps."""


class Parser:
    """Parses in this process or, if that would take long, in another one (started when needed).
    domains: from which engines may fetch media."""

    def __init__(self, domains: Collection[str] = ()) -> None:
        self._domains = domains
        self.process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    async def parse(
        self, path: str, raw: Blocks, names: Mapping[str, str], scored: Collection[str] = ()
    ) -> Call:
        """The call in `raw`; BadRequest, ParserBusy."""
        if not is_heavy(raw):
            return parse_call(path, b"".join(raw), names, scored, self._domains)
        try:
            await self._turn.acquire()  # what waits is bounded by the budget of bodies
            asked = {
                "path": path,
                "names": names,
                "scored": list(scored),
                "domains": list(self._domains),
            }
            asking = asyncio.create_task(self._asked(orjson.dumps(asked), raw))
            asking.add_done_callback(self._over)
            # A client that leaves meanwhile must not cost the process: to start one takes longer
            # than to finish.
            head, core = await asyncio.shield(asking)
        except (EOFError, ConnectionError) as error:
            raise ParserBusy from error
        said = orjson.loads(head)
        if "refused" in said:
            raise BadRequest(said["refused"], said["field"])
        return Call(**said, core=core)

    def _over(self, asking: asyncio.Task[tuple[bytes, Blocks]]) -> None:
        self._turn.release()
        if not asking.cancelled():
            asking.exception()  # nobody may be waiting any more

    async def close(self) -> None:
        """End the other process."""
        process, self.process = self.process, None
        if process is not None and process.returncode is None:
            process.kill()
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()

    async def _asked(self, head: bytes, raw: Blocks) -> tuple[bytes, Blocks]:
        """The answer's head and the core; whatever goes wrong, the next one asks a new process."""
        process = self.process
        if process is None or process.returncode is not None:
            process = self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "executors.gateway.body_parsing",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        assert process.stdin is not None and process.stdout is not None  # noqa: S101 - pipes
        done = False
        try:
            process.stdin.write(_frame(len(head), sum(map(len, raw))) + head)
            for block in raw:
                process.stdin.write(block)
                await process.stdin.drain()
                await asyncio.sleep(0)  # one block an iteration, however fast they are taken
            sizes = (await process.stdout.readuntil(b"\n")).split()
            answer = await process.stdout.readexactly(int(sizes[0]))
            core, left = BodyBuffer(), int(sizes[1])
            while left:
                part = await process.stdout.read(left)
                if not part:
                    raise EOFError("the parser ended amid an answer")
                core.add(part)
                left -= len(part)
            done = True
        finally:
            if not done:  # cut off in the middle
                await self.close()
        return answer, core.take()


def _frame(head: int, body: int) -> bytes:
    return b"%d %d\n" % (head, body)


def _answer(head: bytes, raw: bytes) -> tuple[bytes, bytes]:
    asked = orjson.loads(head)
    try:
        call = parse_call(asked["path"], raw, asked["names"], asked["scored"], asked["domains"])
    except BadRequest as error:
        return orjson.dumps({"refused": str(error), "field": error.field}), b""
    fields: dict[str, Any] = {
        field.name: getattr(call, field.name)
        for field in dataclasses.fields(call)
        if field.name != "core"
    }
    return orjson.dumps(fields), b"".join(call.core)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer frames until `source` ends."""
    while line := source.readline():
        sizes = line.split()
        head, core = _answer(source.read(int(sizes[0])), source.read(int(sizes[1])))
        sink.writelines((_frame(len(head), len(core)), head, core))
        sink.flush()


if __name__ == "__main__":
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's to handle
    serve(sys.stdin.buffer, sys.stdout.buffer)
