"""Serves a recording as a page of the console, until Ctrl-C. Nothing can be changed through it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiohttp import web

from autoscaler.domain.cluster import Cluster
from autoscaler.rollout.supply import Supply
from streams.console.console_feed import FORM
from streams.console.console_routes import packed
from streams.console.fleet_rows import pool_rows
from streams.console.page_files import PageFiles
from streams.files.user_errors import UserError
from streams.health.guard import DEFAULT_LIMITS, Guard
from streams.health.listen_address import parse_listen
from topics.codec import write_value
from topics.http_origin import HostRule

ANY_PORT = "127.0.0.1:0"


def document(
    title: str, cluster: Cluster, runs: Sequence[Mapping[str, Any]], from_ms: int, to_ms: int
) -> dict[str, Any]:
    """The recording for the page: `runs` of `cluster` from `from_ms` to `to_ms`."""
    return {
        "form": FORM,
        "source": "recording",
        "title": title,
        "from": from_ms,
        "to": to_ms,
        "pools": pool_rows(cluster, Supply()),
        "runs": list(runs),
    }


def serve(address: str, recording: Mapping[str, Any], on_url: Callable[[str], None]) -> None:
    """Serve `recording` at "HOST:PORT" until a signal. on_url: called with the page's URL.
    UserError: the address is not available."""
    asyncio.run(_serve(address, write_value(recording), on_url))


async def _serve(address: str, body: bytes, on_url: Callable[[str], None]) -> None:
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(NotImplementedError):
            loop.add_signal_handler(number, end.set)
    async with served(address, body) as url:
        on_url(url)
        await end.wait()


@contextlib.asynccontextmanager
async def served(address: str, body: bytes) -> Any:
    """Context in which the recording in `body` is served; yields the URL."""
    host, port = parse_listen(address, "--serve")
    guard = Guard(HostRule(host), DEFAULT_LIMITS)
    files = PageFiles()

    async def recording(_: web.Request) -> web.Response:
        return packed(body)

    app = web.Application(middlewares=[guard.middleware])
    app.add_routes(
        [
            web.get("/", files.index),
            web.get("/console/{name:.+}", files.file),
            web.get("/v1/console", recording),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    guard.server = runner.server
    try:
        listener = await asyncio.get_running_loop().create_server(guard.connection, host, port)
    except OSError as error:
        await runner.cleanup()
        raise UserError(
            f"--serve {address}: {error.strerror}; another address, or port 0"
        ) from None
    try:
        bound = listener.sockets[0].getsockname()
        yield f"http://{f'[{host}]' if ':' in host else host}:{bound[1]}"
    finally:
        listener.close()
        await runner.cleanup()
