"""Stacks for fidelity measurements: with simulated engines or with a real vLLM.

The functions make configurations, start a stack until its fleet serves, and measure its engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from autoscaler.domain.cluster import Cluster
from autoscaler.simulation.arrivals import Arrival
from loadtests.chaos.stack import Stack
from streams.broker.child_broker import own_broker
from streams.broker.topic_admin import ensure_topics
from streams.files.user_errors import UserError
from streams.tools.up.real_engines import RealEngines
from streams.tools.up.run_state import Picture
from streams.tools.up.topic_follower import follow

_SIMULATED = """mode: act
regions: {{east: {{l40s: {{gpu: L40S, per_node: 1, max: {n}, price: 1.86}}}}}}
models:
  chat: {{source: meta-llama/Llama-3.1-8B-Instruct, engine: fp8, max_len: 16384,
         slo: {{ttft: 2s, tpot: 80ms}}, min: {n}, max: {n},
         workload: {{req_per_s: 1, input: 1155, output: 211}}}}
engines: {{fp8: {{args: [--quantization=fp8]}}}}
"""
_VLLM = """mode: act
defaults: {{max_len: 2048}}
policy: {{start_timeout: 4m}}
regions: {{local: {{cores: {{gpu: CPU-core, per_node: 1, max: 1, price: 0.04}}}}}}
models:
  small: {{source: {source}, engine: cpu, slo: {{ttft: 5s, tpot: 100ms}}, min: 1, max: 1,
          workload: {{req_per_s: 0.5, input: 500, output: 100}}}}
engines:
  cpu:
    args: [--load-format=dummy, --dtype=float32, --enforce-eager, --no-enable-prefix-caching,
           --distributed-executor-backend=uni, --kv-cache-memory-bytes=134217728]
    max_num_seqs: 16
"""
# Eight times the tiny model, so that an iteration takes longer than the work of other processes.
_SMALL = {
    "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8,
}  # fmt: skip
_LONGEST = 600, 100  # the most tokens of a prompt and of an answer; they take seconds on one core
_TOKENS_A_WORD = 2  # tokens of each word that the client sends, because the tokenizer counts bytes
# Prompts of about 400 and 100 tokens. The first step runs twice, because it tells most.
_SWEEP = ("--input", "64", "--output", "100", "--concurrency", "1,1,2,4")
_READY_S = 240.0
_SETTLED_S = 3.0
_GATEWAY = "gateway-a"


def fixed_fleet(instances: int) -> str:
    """Return a configuration with `instances` simulated instances of one model, whatever the
    demand."""
    return _SIMULATED.format(n=instances)


def one_vllm(folder: Path) -> str:
    """Return a configuration with one real vLLM on a CPU core and a small model made in
    `folder`."""
    return _VLLM.format(source=small_model(folder))


def before_others() -> None:
    """Give this process and its children priority over other processes, if allowed.

    Waiting for a CPU would distort the latencies.
    """
    with contextlib.suppress(PermissionError):
        os.nice(-15)


def on_a_core_of_its_own(real: RealEngines, folder: Path) -> RealEngines:
    """The engine, pinned to one core.

    This process and its other children are pinned to the other cores, because a busy engine would
    delay the client's clock.
    """
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        return real
    core = max(cores)
    os.sched_setaffinity(0, cores - {core})
    executable = folder / "bin" / "vllm"
    executable.parent.mkdir()
    inner = shlex.quote(str(real.environment / "bin" / "vllm"))
    executable.write_text(f'#!/bin/sh\nexec taskset -c {core} {inner} "$@"\n')
    executable.chmod(0o755)
    return replace(real, environment=folder)


def small_model(folder: Path) -> Path:
    """Enlarge the tiny model of `shoal up --engine vllm` in `folder`; returns its config.json."""
    config = folder / "config.json"
    made = json.loads(config.read_text())
    config.write_text(json.dumps({**made, **_SMALL}))
    return config


def shortened(arrivals: Sequence[Arrival]) -> tuple[Arrival, ...]:
    """Cut lengths to the context of the small model, and count prompts in the client's words."""
    return tuple(
        replace(
            one,
            input_tokens=max(1, min(one.input_tokens, _LONGEST[0]) // _TOKENS_A_WORD),
            output_tokens=min(one.output_tokens, _LONGEST[1]),
        )
        for one in arrivals
    )


@asynccontextmanager
async def running(
    config: str, cluster: Cluster, real: RealEngines | None = None
) -> AsyncIterator[str]:
    """Start a stack at the speed of real time and wait until its first fleet is ready.

    Yields the gateway's address. UserError: the fleet does not get ready.
    """
    prefix = f"fidelity-{secrets.token_hex(4)}."
    executors = sorted({f"executor-{pool.region}" for pool in cluster.pools})
    with tempfile.TemporaryDirectory(prefix="shoal-fidelity-") as folder:
        async with own_broker(prefix) as bootstrap:
            await ensure_topics(bootstrap, prefix)
            stack = Stack(
                Path(folder), bootstrap, prefix, config, ("controller-a",), executors, (_GATEWAY,),
                real,
            )  # fmt: skip
            picture = Picture(stack.config.cluster)
            following = asyncio.create_task(follow(bootstrap, prefix, picture))
            try:
                await stack.open()
                await _first_fleet(stack, picture)
                yield f"http://127.0.0.1:{stack.ports[_GATEWAY]}"
            finally:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
                await stack.close()


def measure(base: str, model: Path, into: Path) -> None:
    """Run `shoal profile measure` on the small model behind `base` and show its progress.

    It measures through the gateway, because the time to the first token includes the gateway.
    """
    argv = [
        sys.executable, "-m", "streams.cli.main", "profile", "measure", "--url", base,
        "--served-model", "small", "--model", str(model), "--gpu", "CPU-core",
        "--into", str(into), *_SWEEP,
    ]  # fmt: skip
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout.replace(str(model), "the model").split("kept in")[0].rstrip(), flush=True)
    if done.returncode:
        raise UserError("--engine vllm: the engine could not be measured; why stands above")


async def _first_fleet(stack: Stack, picture: Picture) -> None:
    models = {service.model for service in stack.config.cluster.services}
    try:
        async with asyncio.timeout(_READY_S):
            while picture.progress(models).settled < models:
                await asyncio.sleep(0.2)
    except TimeoutError:
        missing = ", ".join(sorted(models - picture.progress(models).settled))
        raise UserError(f"no fleet for {missing} within {_READY_S:.0f} s") from None
    await asyncio.sleep(_SETTLED_S)  # until routes reach the gateway
