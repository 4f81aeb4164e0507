"""An engine as far as executor and router see one: /health, /metrics, /v1/completions.

Called like vLLM: `python engine_stub.py serve WEIGHTS --host=H --port=P ...`. A completion streams
a token every 50 ms for ?s= seconds. SIGTERM ends it at once and cuts streams, unless
STUB_SHUTDOWN_S gives them time. STUB_START_S: seconds until it listens.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from aiohttp import web

TOKEN_S = 0.05


class Stub:
    """Counts the requests that it streams."""

    def __init__(self) -> None:
        self.running = 0
        self.tokens = 0

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            text=f'vllm:num_requests_running{{model_name="m"}} {self.running}\n'
            'vllm:num_requests_waiting{model_name="m"} 0\n'
            f'vllm:generation_tokens_total{{model_name="m"}} {self.tokens}\n'
        )

    async def complete(self, request: web.Request) -> web.StreamResponse:
        seconds = request.query.get("s")
        if seconds is None:  # a probe for one token
            self.tokens += 1
            return web.json_response({"choices": [{"text": "x", "finish_reason": "length"}]})
        self.running += 1
        try:
            out = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
            await out.prepare(request)
            for _ in range(int(float(seconds) / TOKEN_S)):
                await out.write(b"data: {}\n\n")
                self.tokens += 1
                await asyncio.sleep(TOKEN_S)
            await out.write(b"data: [DONE]\n\n")
            return out
        finally:
            self.running -= 1


async def main() -> None:
    options = dict(
        word[2:].split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word
    )
    host = options.get("host") or os.environ["POD_IP"]
    await asyncio.sleep(float(os.environ.get("STUB_START_S", "0")))
    stub = Stub()
    app = web.Application()
    app.router.add_get("/health", stub.health)
    app.router.add_get("/metrics", stub.metrics)
    app.router.add_post("/v1/completions", stub.complete)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, int(options.get("port", 8000)))
    await site.start()
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    await end.wait()
    await site.stop()
    for _ in range(int(float(os.environ.get("STUB_SHUTDOWN_S", "0")) * 10)):
        if not stub.running:
            break
        await asyncio.sleep(0.1)
    os._exit(0)


asyncio.run(main())
