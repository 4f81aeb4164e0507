"""The replayer with a server that answers, fails, or never ends an answer."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.hang_limit import HANG_S
from topics.time_base import TimeBase


class Front:
    """An OpenAI-compatible server. Its modes by model are: ok, refuse, error
    (in mid-stream), hang.
    """

    def __init__(self) -> None:
        self.modes: dict[str, str] = {}
        self.seen: list[tuple[float, dict[str, Any]]] = []
        self.url = ""

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.seen.append((time.monotonic(), body))
        mode = self.modes.get(body["model"], "ok")
        if mode == "refuse":
            return web.json_response(
                {"error": {"message": "no instance of bad is ready", "type": "no_instance"}},
                status=503,
            )
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b'data: {"choices":[{"text":"a"}]}\n\n')
        if mode == "hang":
            await asyncio.Event().wait()
        if mode == "error":
            await response.write(
                b'data: {"error":{"message":"x","type":"engine_lost"}}\n\ndata: [DONE]\n\n'
            )
            return response
        prompt = body["prompt"].count(" ") + 1
        usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
        end = json.dumps({"choices": [], "usage": usage}).encode()
        await response.write(b"data: " + end + b"\n\ndata: [DONE]\n\n")
        return response


@pytest.fixture
async def front() -> AsyncIterator[Front]:
    made = Front()
    app = web.Application(client_max_size=1 << 25)
    app.router.add_post("/v1/completions", made.generate)
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def start(
    front: Front, folder: Path, rows: str, *more: str, speed: float = 10.0
) -> tuple[Process, TimeBase, int]:
    """A replayer over `rows` whose first line has been read. It begins to send 0.7 real s after
    now.
    """
    (folder / "trace.csv").write_text("timestamp_ms,input_tokens,output_tokens\n" + rows)
    base = TimeBase(speed, 1_700_000_000_000, time.monotonic_ns())
    start_ms = base.now_ms(time.monotonic_ns()) + int(700 * speed)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.tools.replay", "--url", front.url,
        "--trace", str(folder / "trace.csv"), "--time-base", base.format(),
        "--start-ms", str(start_ms), "--report", str(folder / "report.json"), *more,
        stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    return process, base, start_ms


async def ended(process: Process, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The output lines and the report of a replayer after its end."""
    out, error = await asyncio.wait_for(process.communicate(), HANG_S)
    assert process.returncode == 0, error
    return [json.loads(line) for line in out.splitlines()], json.loads(
        (folder / "report.json").read_text()
    )


async def test_requests_are_never_early_and_wait_for_no_answer(
    front: Front, tmp_path: Path
) -> None:
    """No request is ever answered. A busy machine may send late, so the exact times are tested in
    virtual time (tests/unit/tools/replay/test_request_sender.py).
    """
    front.modes["chat"] = "hang"
    rows = "".join(f"{n * 500},{n + 1},3\n" for n in range(20))
    process, base, start_ms = await start(front, tmp_path, rows, "--models", "chat=1")
    async with asyncio.timeout(HANG_S):
        while len(front.seen) < 20:
            await asyncio.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    lines, report = await ended(process, tmp_path)
    assert lines[0]["ready"] is True
    assert lines[-1]["done"] is True
    assert report["requests"] == {"sent": 20, "served": 0, "failed": 0, "dropped": 20}
    for at, body in front.seen:
        words = body["prompt"].count(" ") + 1
        due = base.mono_ns_at(start_ms + (words - 1) * 500) / 1e9
        assert at - due > -0.005
    assert [body["prompt"].count(" ") for _, body in front.seen] == list(range(20))
    assert report["replay_late_ms"]["p50"] > 0.0


async def test_requests_follow_the_trace_and_the_report_adds_up(
    front: Front, tmp_path: Path
) -> None:
    rows = "".join(f"{n * 10},{n % 7 + 1},{n % 5 + 1}\n" for n in range(90))
    front.modes.update({"bad": "refuse", "lost": "error"})
    process, _, _ = await start(
        front, tmp_path, rows, "--models", "chat=1,bad=1,lost=1", "--seed", "3"
    )
    _, report = await ended(process, tmp_path)
    by_model = {
        model: sum(body["model"] == model for _, body in front.seen)
        for model in ("chat", "bad", "lost")
    }
    counts = report["requests"]
    assert sum(by_model.values()) == counts["sent"] == 90
    assert min(by_model.values()) > 10
    assert counts == {
        "sent": 90,
        "served": by_model["chat"],
        "failed": by_model["bad"] + by_model["lost"],
        "dropped": 0,
    }
    assert report["failures"] == {
        "503, no instance yet": by_model["bad"],
        "broken off, the engine was lost": by_model["lost"],
    }
    chat = report["models"]["chat"]
    served = [body for _, body in front.seen if body["model"] == "chat"]
    assert chat["input_tokens"] == sum(body["prompt"].count(" ") + 1 for body in served)
    assert chat["output_tokens"] == sum(body["max_tokens"] for body in served)
    assert all(body["ignore_eos"] and body["stream"] for body in served)


async def test_very_long_prompts_arrive_complete(front: Front, tmp_path: Path) -> None:
    process, _, _ = await start(front, tmp_path, "0,190000,2\n1,1,1\n", "--models", "chat=1")
    _, report = await ended(process, tmp_path)
    assert report["requests"]["served"] == 2
    assert report["models"]["chat"]["input_tokens"] == 190_001


async def test_requests_to_an_unreachable_server_are_counted(front: Front, tmp_path: Path) -> None:
    front.url = "http://127.0.0.1:9"
    process, _, _ = await start(front, tmp_path, "0,1,1\n5,1,1\n", "--models", "chat=1")
    _, report = await ended(process, tmp_path)
    assert report["requests"] == {"sent": 2, "served": 0, "failed": 2, "dropped": 0}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--models", "chat"), "--models"),
        (("--models", "chat=0"), "--models"),
        (("--models", "chat=nan"), "--models"),
        (("--models", "chat=1", "--trace", "/nowhere"), "/nowhere"),
    ],
)
async def test_bad_input_gives_one_error_line(
    front: Front, tmp_path: Path, more: tuple[str, ...], said: str
) -> None:
    process, _, _ = await start(front, tmp_path, "0,1,1\n", *more)
    out, error = await asyncio.wait_for(process.communicate(), HANG_S)
    assert process.returncode == 2
    assert said in json.loads(out)["error"]
    assert len(error.decode().strip().splitlines()) == 1
