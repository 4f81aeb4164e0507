"""Ends a process of the serving plane together with its supervisor. SHOAL_SUPERVISION_FD names the
read end of a pipe, whose end of file means that the supervisor is gone, whatever the cause. A
process that was started by hand has no supervisor and keeps running.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

SUPERVISION_VARIABLE = "SHOAL_SUPERVISION_FD"


def supervision_fds() -> tuple[int, ...]:
    """The supervision pipe as `pass_fds` of a child process; empty without a supervisor."""
    text = os.environ.get(SUPERVISION_VARIABLE, "")
    if not text.isdigit():
        return ()
    try:
        os.fstat(int(text))
    except OSError:
        return ()
    return (int(text),)


def watch_supervisor(loop: asyncio.AbstractEventLoop, on_gone: Callable[[], None]) -> None:
    """Call `on_gone` once when the supervisor is gone."""
    for fd in supervision_fds():

        def gone(fd: int = fd) -> None:
            loop.remove_reader(fd)  # stop watching: at end of file the pipe stays readable
            on_gone()

        loop.add_reader(fd, gone)


def shutdown_event(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that is set on SIGTERM, on SIGINT or when the supervisor is gone."""
    event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    watch_supervisor(loop, event.set)
    return event
