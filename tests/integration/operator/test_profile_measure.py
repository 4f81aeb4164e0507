"""`shoal profile measure` against a server that streams tokens with the pauses of an engine."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from streams.cli.main import main
from tests.hang_limit import HANG_S

MODEL = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def engine() -> Iterator[str]:
    """A server that streams tokens like vLLM: the first after 20 ms, then one every 5 ms."""
    loop = asyncio.new_event_loop()
    address: list[str] = []
    ready = threading.Event()

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL}]})

    async def completions(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        stream = web.StreamResponse()
        await stream.prepare(request)
        await asyncio.sleep(0.02)
        for _ in range(body["max_tokens"]):
            await stream.write(b'data: {"choices": [{"text": "x"}]}\n\n')
            await asyncio.sleep(0.005)
        usage = {"prompt_tokens": 64, "completion_tokens": body["max_tokens"]}
        event = json.dumps({"choices": [], "usage": usage})
        await stream.write(f"data: {event}\n\ndata: [DONE]\n\n".encode())
        return stream

    async def serve() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", models)
        app.router.add_post("/v1/completions", completions)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        address.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
        ready.set()

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(HANG_S)
    yield address[0]
    loop.call_soon_threadsafe(loop.stop)
    thread.join(5)


def test_a_sweep_measures_an_engine_and_stores_the_result(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "m.json"
    options = ["--gpu", "B200", "--input", "64", "--output", "8", "--concurrency", "1,2"]
    assert main(["profile", "measure", "--url", engine, *options, "--into", str(kept)]) == 0
    assert f"{MODEL} on 1xB200-SXM: measured " in capsys.readouterr().out
    found = json.loads(kept.read_text())
    assert found[0]["points"] == 4
