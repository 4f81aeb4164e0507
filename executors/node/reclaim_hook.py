"""The operator's reclaim command, which is polled for notices that the node is going away.

The command gets `{"action": "notice", "node": NODE}` on its standard input and answers on its
standard output with JSON: `{}` for no notice, or `{"seconds_left": S}`. A command that fails, hangs
or answers anything else changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Sequence

import orjson

from topics.checks import InvalidValue, number
from topics.error_text import error_text

log = logging.getLogger(__name__)

INTERVAL_S, TIMEOUT_S = 5.0, 3.0


async def poll_notices(
    command: Sequence[str], node: str, on_notice: Callable[[float | None], None]
) -> None:
    """Run `command` periodically and pass each answer to `on_notice`: the real seconds left, None =
    no notice."""
    failing = False
    while True:
        try:
            on_notice(await read_notice(command, node, TIMEOUT_S))
            failing = False
        except (OSError, ValueError, TimeoutError) as error:
            if not failing:
                log.error(
                    "reclaim command %s: %s", command[0], error_text(error, "no answer in time")
                )
            failing = True
        await asyncio.sleep(INTERVAL_S)


async def read_notice(command: Sequence[str], node: str, limit_s: float) -> float | None:
    """Run `command` once; returns the real seconds left, None = no notice. Raises TimeoutError,
    OSError, or ValueError (InvalidValue) for a bad answer."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        question = orjson.dumps({"action": "notice", "node": node})
        output, _ = await asyncio.wait_for(process.communicate(question), limit_s)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        raise ValueError(f"exit code {process.returncode}")
    notice = orjson.loads(output)
    if not isinstance(notice, dict):
        raise InvalidValue("notice", notice, "a JSON object")
    left_s = notice.get("seconds_left")
    if left_s is not None:
        number("seconds_left", left_s, 0.0, 86_400.0)
    return left_s
