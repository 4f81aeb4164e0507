"""Request bodies to calls, without holding up everyone else.

Owns the process that parses heavy bodies: a few megabytes of small values take a parser a third of
a second, in which an event loop would serve nobody, and threads do not help because parsing holds
the interpreter's lock. Ordinary bodies are parsed at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from executors.gateway.openai import Call, is_heavy, parse_call

_MOST_WAITING = 32


class ParserBusy(Exception):
    """Too many heavy bodies at once."""


class Parser:
    """Parses in this process or, if that would take long, in another one (started when needed)."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._waiting = 0

    async def parse(self, path: str, raw: bytes, names: Mapping[str, str]) -> Call:
        """The call in `raw`; BadRequest, ParserBusy."""
        if not is_heavy(raw):
            return parse_call(path, raw, names)
        if self._waiting >= _MOST_WAITING:
            raise ParserBusy
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._started(), parse_call, path, raw, dict(names))
        except BrokenProcessPool:  # killed, for its memory perhaps: the next one gets a new one
            self.close()
            raise ParserBusy from None
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the other process."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(1, context, _end_with_parent)
        return self._pool


def _end_with_parent() -> None:
    """A gateway that is killed must not leave its parser behind."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
