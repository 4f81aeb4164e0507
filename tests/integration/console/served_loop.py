"""An event loop in a thread, for servers that a browser in the test's own thread asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Do = Callable[[Callable[[], Any]], Any]


@contextmanager
def served_loop() -> Iterator[Do]:
    """A function that runs work in the loop and returns its result; it awaits a coroutine."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work: Callable[[], Any]) -> Any:
        async def inside() -> Any:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        return asyncio.run_coroutine_threadsafe(inside(), loop).result(60.0)

    try:
        yield do
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5.0)
        loop.close()
