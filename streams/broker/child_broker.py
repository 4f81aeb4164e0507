"""Embedded broker as a child process, for use without a Kafka cluster.

The child ends with its parent, even if the parent crashes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator

from streams.broker.embedded import EmbeddedBrokerFailed
from streams.machine_load import slowdown
from topics.edge.supervision import SUPERVISION_VARIABLE

_START_S = 30.0  # on an idle machine


@contextlib.asynccontextmanager
async def own_broker(prefix: str, ended: asyncio.Future[int] | None = None) -> AsyncIterator[str]:
    """Context with an embedded broker; yields its address "host:port". ended: gets the exit code if
    the broker ends by itself. EmbeddedBrokerFailed: the broker did not start."""
    theirs, ours = os.pipe()
    process = watching = None
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "streams.broker", "--prefix", prefix,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=(theirs,),
            env={**os.environ, SUPERVISION_VARIABLE: str(theirs)},
        )  # fmt: skip
        assert process.stdout is not None  # noqa: S101  a pipe
        async with asyncio.timeout(_START_S * slowdown()):
            said = await process.stdout.readline()
        if not said:
            raise EmbeddedBrokerFailed(f"exit code {await process.wait()}")
        if ended is not None:
            watching = asyncio.create_task(_tell_end(process, ended))
        yield str(json.loads(said)["bootstrap"])
    finally:
        if watching is not None:
            watching.cancel()
        os.close(theirs)
        os.close(ours)  # The child reads the end of the file and exits.
        if process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await process.wait()


async def _tell_end(process: asyncio.subprocess.Process, ended: asyncio.Future[int]) -> None:
    code = await process.wait()
    if not ended.done():
        ended.set_result(code)
