"""Targets for the gateway's benchmarks: an engine with almost no cost, and other proxies.

    python -m loadtests.gateway_targets engine|bare [--upstream HOST:PORT] [--port N]

Each target prints its port on its first line and serves until killed. `bare` is the shortest
reverse proxy with aiohttp: it has no models, limits, retries or telemetry.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

import aiohttp
import uvloop
from aiohttp import web

from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_exchange import Exchange
from executors.gateway.wire.client_limits import ClientLimits
from executors.gateway.wire.http_server import HttpServer

EVENTS = 64  # events of a stream
GAP_S = 0.004  # between two events: 250 tokens/s
_EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"chat",'
    b'"choices":[{"index":0,"text":" a","logprobs":null,"finish_reason":null}]}\n\n'
)
_USAGE = b'{"prompt_tokens":200,"completion_tokens":%d,"total_tokens":264}' % EVENTS
_LAST = b'data: {"id":"cmpl-1","choices":[],"usage":%s}\n\ndata: [DONE]\n\n' % _USAGE
_WHOLE = b'{"id":"cmpl-1","choices":[{"index":0,"text":"%s"}],"usage":%s}' % (b" a" * 400, _USAGE)


async def generate(exchange: Exchange) -> None:
    """Answer with the whole text at once, or with a stream that has a gap between events."""
    if b'"stream":true' not in b"".join(exchange.body[-2:])[-512:]:
        exchange.answer(200, _WHOLE)
        return
    for _ in range(EVENTS):
        exchange.write(_EVENT, False)
        await asyncio.sleep(GAP_S)
    exchange.write(_LAST, True)


async def engine() -> None:
    """Serve until the process ends."""

    def refuse(exchange: Exchange, status: int, why: str) -> None:
        exchange.answer(status, why.encode())

    server = HttpServer(generate, refuse, ClientLimits(), BodyMemory(1 << 30))
    print(await server.start("0.0.0.0", 0), flush=True)  # noqa: S104 - each loopback address stands for an instance
    await asyncio.Event().wait()


async def bare(upstream: str, port: int) -> None:
    """Proxy requests until the process ends.

    port: other processes may share it; 0 takes a free port.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def handle(request: web.Request) -> web.StreamResponse:
            body = await request.read()
            url = f"http://{upstream}{request.path_qs}"
            kind = {"Content-Type": request.content_type}
            async with session.post(url, data=body, headers=kind) as answer:
                response = web.StreamResponse(status=answer.status)
                response.content_type = answer.content_type
                await response.prepare(request)
                async for block in answer.content.iter_any():
                    await response.write(block)
                await response.write_eof()
                return response

        app = web.Application(client_max_size=1 << 25)
        app.router.add_post("/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=2048, reuse_port=True).start()
        print(runner.addresses[0][1], flush=True)
        await asyncio.Event().wait()


def nginx_config(port: int, upstream: str, folder: str) -> str:
    """Return a configuration with one worker that proxies every request without buffering."""
    return f"""
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log stderr crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{ server {upstream}; keepalive 512; }}
  server {{
    listen 127.0.0.1:{port} backlog=2048;
    location / {{ proxy_pass http://engine; proxy_http_version 1.1;
      proxy_set_header Connection ""; proxy_buffering off; }}
  }}
}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("engine", "bare"))
    parser.add_argument("--upstream", default="")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    if options.part == "engine":
        uvloop.run(engine())
    else:
        asyncio.run(bare(options.upstream, options.port))
    return 0


if __name__ == "__main__":
    sys.exit(main())
