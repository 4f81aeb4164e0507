"""Step times of the tiny model on one CPU core, for the measured table in the packaged profile.

    python -m loadtests.tiny_steps

It builds the real vLLM if needed and starts one server with all its processes on one core. It
prints rows (tokens, batch, ms) of prefill and decode iterations as JSON, measured by a streaming
client. Each time is the minimum of several tries, to reduce the effect of other load.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import string
import subprocess
import tempfile
import time
from pathlib import Path

import aiohttp

from executors.engines.vllm import tiny_model
from executors.engines.vllm.cpu_environment import ensure, executable
from streams.tools.up.host_resources import free_port

_TRIES, _STEPS = 5, 40
_PREFILL = ((64, 1), (256, 1), (1024, 1), (64, 4), (256, 4))
_DECODE = ((64, 1), (64, 2), (64, 4), (64, 8), (64, 16), (1024, 1), (1024, 4))


def _prompt(tokens: int) -> str:
    return "".join(random.choices(string.ascii_lowercase, k=tokens))


class _Server:
    def __init__(self, client: aiohttp.ClientSession, url: str) -> None:
        self._client, self._url = client, url

    async def ready(self) -> None:
        while True:
            try:
                async with self._client.get(self._url + "/health") as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.25)

    async def generate_ms(self, tokens: int, output: int, batch: int) -> float:
        """Milliseconds until all of `batch` requests of one size are answered."""
        body = {"model": "tiny", "max_tokens": output, "ignore_eos": True, "stream": True}
        started = time.perf_counter()

        async def one() -> None:
            url = self._url + "/v1/completions"
            async with self._client.post(url, json={**body, "prompt": _prompt(tokens)}) as answer:
                assert answer.status == 200
                await answer.read()

        await asyncio.gather(*(one() for _ in range(batch)))
        return (time.perf_counter() - started) * 1e3

    async def least_ms(self, tokens: int, output: int, batch: int) -> float:
        return min([await self.generate_ms(tokens, output, batch) for _ in range(_TRIES)])


async def _measure(url: str) -> dict[str, list[tuple[float, float, float]]]:
    async with aiohttp.ClientSession() as client:
        server = _Server(client, url)
        await server.ready()
        await server.generate_ms(64, _STEPS, 4)  # The first iteration compiles.
        prefill, decode = [], []
        for tokens, batch in _PREFILL:
            prefill.append((tokens, batch, await server.least_ms(tokens, 1, batch)))
        for tokens, batch in _DECODE:
            first = await server.least_ms(tokens, 1, batch)
            whole = await server.least_ms(tokens, 1 + _STEPS, batch)
            decode.append((tokens, batch, (whole - first) / _STEPS))
        return {"prefill": prefill, "decode": decode}


def main() -> None:
    """Print the rows."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        core = max(os.sched_getaffinity(0))
        argv = [
            "taskset", "-c", str(core), str(executable(ensure())), "serve",
            str(tiny_model.write(Path(folder) / "tiny")), "--served-model-name=tiny",
            f"--port={port}", "--host=127.0.0.1", *tiny_model.ARGS,
        ]  # fmt: skip
        env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        server = subprocess.Popen(
            argv, env={**os.environ, **env}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            rows = asyncio.run(_measure(f"http://127.0.0.1:{port}"))
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    print(json.dumps({k: [[a, b, round(c, 3)] for a, b, c in v] for k, v in rows.items()}))


if __name__ == "__main__":
    main()
