"""`make loadtest` as a process: Locust sends a trace to a server that streams events."""

from __future__ import annotations

import asyncio
import csv
import os
import sys
from pathlib import Path

import orjson
from aiohttp import web

from tests.hang_limit import HANG_S

GOT = web.AppKey("got", list)
ROOT = Path(__file__).parents[3]


async def complete(request: web.Request) -> web.StreamResponse:
    """Answer with two tokens and the usage. Refuse prompts of four tokens."""
    body = orjson.loads(await request.read())
    request.app[GOT].append((body["prompt"], body["max_tokens"]))
    if len(body["prompt"].split()) == 4:
        return web.Response(status=429)
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    for text in ("one", " two"):
        await answer.write(b'data: {"choices":[{"text":"%s"}]}\r\n\r\n' % text.encode())
    usage = b'{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}'
    await answer.write(b"data: " + usage + b"\n\ndata: [DONE]\n\n")
    return answer


async def test_a_replayed_trace_appears_in_the_statistics_of_locust(tmp_path: Path) -> None:
    """Each request is sent as recorded. The statistics have TTFT, TPOT and attainment per model."""
    trace = tmp_path / "trace.csv"
    rows = [f"{40 * i},{4 if i == 3 else 3},2" for i in range(12)]
    trace.write_text("timestamp_ms,input_tokens,output_tokens\n" + "\n".join(rows) + "\n")
    app = web.Application()
    app[GOT] = []
    app.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "locust"),
        "-f", "loadtests/replay/locustfile.py", "--headless", "--only-summary",
        "--host", f"http://127.0.0.1:{port}", "--trace", str(trace), "--model", "mini",
        "--csv", str(tmp_path / "out"), "--html", str(tmp_path / "out.html"),
        cwd=ROOT, env={**os.environ, "PYTHONPATH": "."},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), HANG_S)
    await runner.cleanup()
    text = out.decode()
    assert sorted(app[GOT]) == sorted([("a a a", 2)] * 11 + [("a a a a", 2)]), text
    assert "12 of 12 requests" in text
    assert "1 failed: status 429" in text
    with (tmp_path / "out_stats.csv").open() as file:
        stats = {row["Type"]: row for row in csv.DictReader(file) if row["Name"] == "mini"}
    assert {kind: row["Request Count"] for kind, row in stats.items()} == {
        "TTFT": "11", "TPOT": "11", "request": "12", "SLO": "12",
    }  # fmt: skip
    assert int(stats["SLO"]["Failure Count"]) >= 1
    assert (tmp_path / "out.html").exists()


async def test_bad_input_gives_one_error_line(tmp_path: Path) -> None:
    """Without a trace no request is sent."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "locust"),
        "-f", "loadtests/replay/locustfile.py", "--headless", "--host", "http://127.0.0.1:9",
        "--trace", str(tmp_path / "none.csv"), "--model", "mini",
        cwd=ROOT, env={**os.environ, "PYTHONPATH": "."},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), HANG_S)
    assert process.returncode not in (0, None)
    assert "none.csv: No such file or directory" in out.decode()
    assert "Traceback" not in out.decode()
