"""A short sweep against an OpenAI-compatible server: a few requests at rising concurrency.

The sweep shows a progress bar. Requests are timed by this process's clock. The results have the
format of a benchmark tool.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import aiohttp
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from streams.files.benchmark_values import Result
from streams.files.user_errors import UserError, first_line, without_login

_TIMEOUT_S = 600.0
_ROUNDS = 3
_WARM_UP = 2
_COUNTS = ("prompt_tokens", "completion_tokens")
_WORDS = ("alpha", "beta", "delta", "gamma", "omega", "sigma", "theta", "kappa")


@dataclass(frozen=True, slots=True)
class Sweep:
    """The requests to send: prompts of about `input_tokens` words.

    Each step has a concurrency. It sends `_ROUNDS` times as many requests, then the same number
    with a quarter of the prompt. served: the model's name on the server, None = the first model
    that the server lists.
    """

    url: str
    served: str | None
    api_key: str
    input_tokens: int
    output_tokens: int
    concurrency: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Timed:
    input_tokens: int
    output_tokens: int
    ttft_ms: float
    tpot_ms: float


async def sweep(wanted: Sweep) -> tuple[str, list[Result]]:
    """Run the sweep. Returns the model's name and one result per step.

    UserError: the server does not answer as an OpenAI-compatible server.
    """
    headers = {"Authorization": f"Bearer {wanted.api_key}"} if wanted.api_key else {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
    # Each step limits the concurrency itself, so the client must not.
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, timeout=timeout
    ) as session:
        try:
            served = wanted.served or await _first_model(session, wanted.url)
            return served, await _steps(session, wanted, served)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, UserError) as error:
            said = f"--url {wanted.url}: {first_line(error)}"
            raise UserError(without_login(said)) from None


async def _first_model(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(f"{url}/v1/models") as response:
        if response.status != 200:
            raise UserError(f"/v1/models answers {response.status}")
        text = await response.text()
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError):
        raise UserError("/v1/models lists no model") from None


async def _steps(session: aiohttp.ClientSession, wanted: Sweep, served: str) -> list[Result]:
    lengths = dict.fromkeys((wanted.input_tokens, max(8, wanted.input_tokens // 4)))
    plan = [(tokens, load) for tokens in lengths for load in wanted.concurrency]
    total = _WARM_UP + sum(_requests(load) for _, load in plan)
    seed = random.Random(7)  # noqa: S311  prompts need no secrecy
    found = []
    with _progress() as bar:
        task = bar.add_task("measuring", total=total)
        for _ in range(_WARM_UP):
            await _one(session, wanted, served, _prompt(seed, wanted.input_tokens))
            bar.advance(task)
        for tokens, load in plan:
            prompts = [_prompt(seed, tokens) for _ in range(_requests(load))]
            timed = await _at(session, wanted, served, prompts, load, lambda: bar.advance(task))
            found.append(_result(served, timed, load))
    return found


def _requests(load: int) -> int:
    return max(4, _ROUNDS * load)


async def _at(
    session: aiohttp.ClientSession,
    wanted: Sweep,
    served: str,
    prompts: Sequence[str],
    load: int,
    done: object,
) -> list[_Timed]:
    """Send `prompts` with `load` requests in flight at any time. The first error ends the step."""
    waiting = list(prompts)
    found: list[_Timed] = []

    async def worker() -> None:
        while waiting:
            found.append(await _one(session, wanted, served, waiting.pop()))
            done()  # type: ignore[operator]

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(load):
                group.create_task(worker())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return found


async def _one(session: aiohttp.ClientSession, wanted: Sweep, served: str, prompt: str) -> _Timed:
    """One streamed completion, timed by this process's monotonic clock."""
    body = {
        "model": served,
        "prompt": prompt,
        "max_tokens": wanted.output_tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    first = last = 0.0
    usage: dict[str, int] = {}
    async with session.post(f"{wanted.url}/v1/completions", json=body) as response:
        if response.status != 200:
            said = (await response.text())[:200].replace("\n", " ")
            raise UserError(f"{response.status}: {said}")
        async for line in response.content:
            if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                continue
            text, counted = _event(line[5:])
            if text:
                last = time.monotonic()
                first = first or last
            usage = counted or usage
    tokens = usage.get("completion_tokens", 0)
    if not first or tokens < 2:
        raise UserError("no stream of tokens with usage came back")
    tpot_ms = 1e3 * (last - first) / (tokens - 1)
    return _Timed(usage.get("prompt_tokens", 1), tokens, 1e3 * (first - started), tpot_ms)


def _event(data: bytes) -> tuple[bool, dict[str, int]]:
    """Whether an event of the stream has text, and its token count."""
    try:
        event = json.loads(data)
        choices, usage = event.get("choices"), event.get("usage") or {}
        counted = {name: int(usage[name]) for name in _COUNTS if name in usage}
        return bool(choices and choices[0].get("text")), counted
    except (ValueError, AttributeError, KeyError, TypeError):
        said = data.decode(errors="replace").strip()[:80]
        raise UserError(f"not an event of a completion: {said}") from None


def _result(served: str, timed: Sequence[_Timed], load: int) -> Result:
    return Result(
        served,
        "",
        fmean(one.input_tokens for one in timed),
        fmean(one.output_tokens for one in timed),
        float(load),
        fmean(one.ttft_ms for one in timed),
        fmean(one.tpot_ms for one in timed),
    )


def _prompt(seed: random.Random, tokens: int) -> str:
    """A prompt of about `tokens` tokens that no prefix cache contains."""
    return " ".join([str(seed.randrange(10**6)), *seed.choices(_WORDS, k=max(1, tokens - 4))])


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not sys.stderr.isatty(),
    )
