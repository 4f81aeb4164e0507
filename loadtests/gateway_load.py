"""What the gateway and the replayer cost: real processes in front of an engine that only writes.

    python -m loadtests.gateway_load --rate 60 --seconds 20 --chunks 13

Starts an engine (answers at once, then one chunk every --gap-ms), a gateway without a broker that
takes its routes from its state folder, and a replayer at a steady rate. Prints the CPU each used
(user + system seconds per real second), the replayer's report, and the latency it saw with and
without the gateway in between.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
from aiohttp import web

from topics.codec import encode
from topics.records import Endpoint, RouteGroup, Routes
from topics.timebase import TimeBase


def engine(port: int, chunks: int, gap_ms: float, tokens: int) -> None:
    """Serve streams of `chunks` blocks of several events each, for ever."""
    event = b'data: {"id":"cmpl-1","object":"text_completion","model":"chat","choices":[{"index":0,"text":" a","finish_reason":null}]}\n\n'  # noqa: E501
    block = event * (tokens // chunks)
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":1155,"completion_tokens":%d}}\n\n' % (
        len(block) // len(event) * chunks
    )

    async def generate(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(chunks - 1):
            await response.write(block)
            await asyncio.sleep(gap_ms / 1000)
        await response.write_eof(block + usage + b"data: [DONE]\n\n")
        return response

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/completions", generate)
    web.run_app(app, host="127.0.0.1", port=port, access_log=None, print=None)


def cpu_s(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def replay(url: str, folder: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """A replayer at speed 1, steady, of requests of 1155 tokens."""
    trace = folder / "trace.csv"
    count = int(options.rate * options.seconds)
    rows = (f"{n * 1000 / options.rate:.0f},1155,{options.tokens}\n" for n in range(count))
    trace.write_text("timestamp_ms,input_tokens,output_tokens\n" + "".join(rows))
    base = TimeBase(1.0, 0, time.monotonic_ns())
    return subprocess.Popen(
        [
            sys.executable, "-m", "streams.replay", "--url", url, "--trace", str(trace),
            "--time-base", base.format(), "--start-ms", "1500", "--models", "chat=1",
            "--report", str(folder / "report.json"),
        ],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


async def metrics(url: str) -> list[str]:
    async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as answer:
        return (await answer.text()).splitlines()


def measure(url: str, folder: Path, options: argparse.Namespace, pids: dict[str, int]) -> None:
    child = replay(url, folder, options)
    watched = {**pids, "replayer": child.pid}
    time.sleep(3.0)  # imports and the first connections are over
    before, began = {name: cpu_s(pid) for name, pid in watched.items()}, time.monotonic()
    time.sleep(max(1.0, options.seconds - 4.0))
    span = time.monotonic() - began
    for name, pid in watched.items():
        share = (cpu_s(pid) - before[name]) / span
        print(f"  {name}: {share:.1%} of a core, {rss_mib(pid):.0f} MiB")
    child.wait()
    report = json.loads((folder / "report.json").read_text())
    print("  requests", report["requests"], "late ms", report["replay_late_ms"])
    print("  ttft ms", report["models"]["chat"]["ttft_ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=60.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--chunks", type=int, default=13)
    parser.add_argument("--tokens", type=int, default=208)
    parser.add_argument("--gap-ms", type=float, default=40.0)
    parser.add_argument("--engine-port", type=int)
    parser.add_argument("--direct", action="store_true", help="also measure without the gateway")
    options = parser.parse_args()
    if options.engine_port:
        engine(options.engine_port, options.chunks, options.gap_ms, options.tokens)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        port = 18_500 + os.getpid() % 1000
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "loadtests.gateway_load",
                *sys.argv[1:],
                "--engine-port",
                f"{port}",
            ]
        )
        routes = Routes("chat", 1, 1, 0, 2000.0, 60.0, (
            RouteGroup("g", 1.0, (Endpoint("e", f"127.0.0.1:{port}"),)),
        ))  # fmt: skip
        (folder / "routes.jsonl").write_bytes(encode(routes) + b"\n")
        gateway = subprocess.Popen(
            [
                sys.executable, "-m", "executors.gateway", "--broker", "127.0.0.1:9",
                "--time-base", TimeBase(1.0, 0, time.monotonic_ns()).format(),
                "--state-dir", name,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert gateway.stdout is not None
            url = json.loads(gateway.stdout.readline())["url"]
            time.sleep(1.0)
            print("through the gateway:")
            measure(url, folder, options, {"gateway": gateway.pid, "engine": worker.pid})
            for line in asyncio.run(metrics(url)):
                if "quantile_ms{" in line or "overhead_ms_sum" in line:
                    print(" ", line)
            if options.direct:
                print("straight to the engine:")
                measure(f"http://127.0.0.1:{port}", folder, options, {"engine": worker.pid})
        finally:
            gateway.terminate()
            worker.terminate()
            print("gateway exit code", gateway.wait(5), "engine", worker.wait(5))


if __name__ == "__main__":
    main()
