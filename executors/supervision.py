"""How a process of the serving plane ends together with its supervisor.

Owns the supervision pipe, whose read end SHOAL_SUPERVISION_FD names. End of file on it means that
the supervisor is gone, however it died. Started by hand, a process has no supervisor and lives on.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

VARIABLE = "SHOAL_SUPERVISION_FD"


def supervision_fds() -> tuple[int, ...]:
    """The supervision pipe as `pass_fds` for a child; empty without one."""
    text = os.environ.get(VARIABLE, "")
    if not text.isdigit():
        return ()
    try:
        os.fstat(int(text))
    except OSError:
        return ()
    return (int(text),)


def watch_supervisor(loop: asyncio.AbstractEventLoop, on_gone: Callable[[], None]) -> None:
    """Call `on_gone` once when the supervisor is gone; never without a supervisor."""
    for fd in supervision_fds():

        def gone(fd: int = fd) -> None:
            loop.remove_reader(fd)  # end of file stays readable and would spin
            on_gone()

        loop.add_reader(fd, gone)


def end_event(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that is set on SIGTERM, SIGINT or when the supervisor is gone."""
    event = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, event.set)
    watch_supervisor(loop, event.set)
    return event
