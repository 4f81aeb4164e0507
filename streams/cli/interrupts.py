"""Handle Ctrl-C and SIGTERM in commands with worker processes: only the parent process reacts.

A terminal sends SIGINT to every process of the group, and each worker would print a traceback.
SIGTERM reaches only the parent. Its default action would leave workers and temporary files behind.
"""

from __future__ import annotations

import _thread
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_S = 0.2
_TERMINATED = 128 + signal.SIGTERM


@contextmanager
def workers_spared() -> Iterator[None]:
    """In this context, started child processes ignore SIGINT; the parent gets KeyboardInterrupt.

    SIGINT is blocked, child processes inherit the block, and a thread waits for the signal. Only
    for the main thread.
    """
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            if signal.sigtimedwait({signal.SIGINT}, _LOOK_S):
                _thread.interrupt_main()

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    waiter = threading.Thread(target=wait, name="interrupts", daemon=True)
    waiter.start()
    try:
        yield
    finally:
        over.set()
        waiter.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def sigterm_unwinds() -> Iterator[None]:
    """In this context, SIGTERM raises SystemExit(143), so that clean-up happens as after Ctrl-C.

    Only for the main thread.
    """

    def end(*_: object) -> None:
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
