"""Whether the node will be taken away: a command of the operator's that is asked again and again.

Holds asking it, within a time limit. It is run with `{"action": "notice", "node": NODE}` on its
standard input and answers on its standard output with JSON: `{}` for no notice, or
`{"seconds_left": S}`. A command that fails, hangs or makes no sense changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence

import orjson

from topics.checks import InvalidRecord, number

log = logging.getLogger(__name__)

EVERY_S, LIMIT_S = 5.0, 3.0


async def watch(
    command: Sequence[str], node: str, on_notice: Callable[[float | None], None]
) -> None:
    """Call `on_notice` with the seconds left, None for no notice, after every answer, for ever."""
    failing = False
    while True:
        try:
            on_notice(await ask(command, node, LIMIT_S))
            failing = False
        except (OSError, ValueError, TimeoutError) as error:
            if not failing:
                log.error("reclaim command %s: %s", command[0], error or "no answer in time")
            failing = True
        await asyncio.sleep(EVERY_S)


async def ask(command: Sequence[str], node: str, limit_s: float) -> float | None:
    """One answer; TimeoutError, OSError, ValueError (InvalidRecord) where there is none."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        question = orjson.dumps({"action": "notice", "node": node})
        said, _ = await asyncio.wait_for(process.communicate(question), limit_s)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise ValueError(f"exit code {process.returncode}")
    found = orjson.loads(said)
    if not isinstance(found, dict):
        raise InvalidRecord("notice", found, "a JSON object")
    left_s = found.get("seconds_left")
    if left_s is not None:
        number("seconds_left", left_s, 0.0, 86_400.0)
    return left_s
