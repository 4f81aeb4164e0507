"""End a process on SIGTERM, on SIGINT, or when its supervisor ends.

The supervisor keeps the write end of a pipe and passes the read end in SHOAL_SUPERVISION_FD. End of
file on the read end means that the supervisor ended or crashed, so the process ends too. A process
that was started by hand has no supervisor and keeps running.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import threading
from collections.abc import Callable

SUPERVISION_VARIABLE = "SHOAL_SUPERVISION_FD"
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def supervision_fds() -> tuple[int, ...]:
    """The read end of the supervisor's pipe, as `pass_fds` of a child process; empty without a
    supervisor."""
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
            loop.remove_reader(fd)  # Otherwise the end of the file would cause a busy loop.
            on_gone()

        loop.add_reader(fd, gone)


def prepare_end() -> Callable[[], None]:
    """Install the signal handlers. Returns a function that blocks until the process should end.

    For a main thread without an event loop. The two steps are separate, so a signal between the
    "ready" line and the wait still ends the process cleanly.
    """
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno())
    for number in _SIGNALS:
        signal.signal(number, lambda *_: None)  # The signal writes the wake-up byte.

    def wait() -> None:
        select.select([woken.fileno(), *supervision_fds()], [], [])
        signal.set_wakeup_fd(-1)
        woken.close()
        waker.close()

    return wait


def end_event(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that is set when the process should end. Call this in the loop's thread."""
    event = asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, event.set)
    watch_supervisor(loop, event.set)
    return event


async def insist(end: asyncio.Event, within_s: float) -> None:
    """After `end` is set, kill this process if it has not ended within `within_s` real seconds.

    Clean-up may wait without a limit: the broker ends with the supervisor, and a Kafka client waits
    for the broker.
    """
    await end.wait()
    timer = threading.Timer(within_s, os._exit, (0,))
    timer.daemon = True
    timer.start()


def end_with_supervisor() -> None:
    """End this process at once when the supervisor ends. For a process that blocks in long work."""
    fds = supervision_fds()
    if not fds:
        return

    def watch() -> None:
        select.select(fds, [], [])
        os._exit(0)

    threading.Thread(target=watch, name="supervision", daemon=True).start()
