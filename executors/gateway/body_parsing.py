"""Parse request bodies without blocking the event loop.

Parsing a body of a few megabytes can take a third of a second and holds the interpreter's lock, so
heavy bodies are parsed in a separate process, and other bodies in place. The separate process runs
this module. It answers frames on its standard input and ends when the input closes, so it does not
outlive the gateway.
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
from executors.gateway.openai_format import ApiCall, is_heavy, parse_call
from executors.gateway.wire.body_blocks import Blocks, BodyBuffer

_NICE = 10  # niceness of the process: other work has priority if cores are scarce


class ParserProcessEnded(Exception):
    """The parser process ended, perhaps for lack of memory."""


class BodyParser:
    """Parses in this process, or in a separate process if parsing would take long. domains: hosts
    from which engines may fetch media."""

    def __init__(self, domains: Collection[str] = ()) -> None:
        self._domains = domains
        self.process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def parse(
        self, path: str, raw: Blocks, names: Mapping[str, str], scored: Collection[str] = ()
    ) -> ApiCall:
        """Parse `raw`. Raises BadRequest or ParserProcessEnded."""
        if not is_heavy(raw):
            return parse_call(path, b"".join(raw), names, scored, self._domains)
        try:
            await self._lock.acquire()  # the limit on body memory bounds the queue here
            header = {
                "path": path,
                "names": names,
                "scored": list(scored),
                "domains": list(self._domains),
            }
            parsing = asyncio.create_task(self._parse_in_process(orjson.dumps(header), raw))
            parsing.add_done_callback(self._unlock)
            # If the client leaves, let the process finish the body, because starting a new process
            # takes longer.
            head, core = await asyncio.shield(parsing)
        except (EOFError, ConnectionError) as error:
            raise ParserProcessEnded from error
        reply = orjson.loads(head)
        if "refused" in reply:
            raise BadRequest(reply["refused"], reply["field"])
        return ApiCall(**reply, body_core=core)

    def _unlock(self, parsing: asyncio.Task[tuple[bytes, Blocks]]) -> None:
        self._lock.release()
        if not parsing.cancelled():
            # retrieve the exception, because possibly no task awaits this future
            parsing.exception()

    async def close(self) -> None:
        """End the parser process."""
        process, self.process = self.process, None
        if process is not None and process.returncode is None:
            process.kill()
            if process.stdin is not None:
                process.stdin.close()
            await process.wait()

    async def _parse_in_process(self, head: bytes, raw: Blocks) -> tuple[bytes, Blocks]:
        """(header, body core) of the reply. After any failure the next body gets a new process."""
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
                await asyncio.sleep(0)  # one block per iteration
            sizes = (await process.stdout.readuntil(b"\n")).split()
            answer = await process.stdout.readexactly(int(sizes[0]))
            core, remaining = BodyBuffer(), int(sizes[1])
            while remaining:
                part = await process.stdout.read(remaining)
                if not part:
                    raise EOFError("the parser ended in the middle of a reply")
                core.add(part)
                remaining -= len(part)
            done = True
        finally:
            if not done:  # a late reply would be taken for that of the next request
                await self.close()
        return answer, core.take()


def _frame(head: int, body: int) -> bytes:
    return b"%d %d\n" % (head, body)


def _reply_to(head: bytes, raw: bytes) -> tuple[bytes, bytes]:
    header = orjson.loads(head)
    try:
        call = parse_call(header["path"], raw, header["names"], header["scored"], header["domains"])
    except BadRequest as error:
        return orjson.dumps({"refused": str(error), "field": error.field}), b""
    fields: dict[str, Any] = {
        field.name: getattr(call, field.name)
        for field in dataclasses.fields(call)
        if field.name != "body_core"
    }
    return orjson.dumps(fields), b"".join(call.body_core)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Answer frames until `source` ends."""
    while line := source.readline():
        sizes = line.split()
        head, core = _reply_to(source.read(int(sizes[0])), source.read(int(sizes[1])))
        sink.writelines((_frame(len(head), len(core)), head, core))
        sink.flush()


if __name__ == "__main__":
    os.nice(_NICE)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway handles Ctrl-C
    serve(sys.stdin.buffer, sys.stdout.buffer)
