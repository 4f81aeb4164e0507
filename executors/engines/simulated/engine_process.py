"""`python -m executors.engines.simulated`: one simulated engine, one process.

The composition root: parses the command line, waits for the start-up time, then serves.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import uuid
from dataclasses import replace

import orjson

from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_setup import EngineSetup, Measurement, engine_setup
from autoscaler.serving.pipeline_stages import PipelinedEngine
from executors.engines.engine_protocol import API_KEY
from executors.engines.model_source import architecture
from executors.engines.simulated.engine_server import Server, Serving, fetch_kv, first_of, watch_end
from executors.engines.simulated.prefix_blocks import block_tokens
from executors.engines.simulated.rank_links import Ranks, follow
from executors.engines.simulated.simulated_engine import Engine, Identity
from topics.checks import InvalidValue
from topics.codec import read_value
from topics.fleet import PHASES
from topics.instance_ranks import GangRank
from topics.lora_adapters import Adapter
from topics.time_base import TimeBase


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m executors.engines.simulated")
    add = parser.add_argument
    add("--model", required=True, help="name under which it is served")
    add(
        "--source",
        required=True,
        help="architecture: name in the catalogue of models, or a config.json",
    )
    add("--gpu", required=True)
    add("--gpus", type=int, required=True, help="number of GPUs (tensor parallel)")
    add("--phase", choices=PHASES, default="aggregated")
    add("--host", default="127.0.0.1")
    add("--port", type=int, required=True)
    add("--max-len", type=int, required=True, help="tokens of prompt and answer together")
    add("--quantization", default=None)
    add(
        "--engine-args",
        default="[]",
        help="JSON: arguments of vLLM; only arguments about memory have an effect",
    )
    add("--max-num-seqs", type=int, default=None)
    add("--time-base", default="1.0,0,0", help="SPEED,ORIGIN_MS,ORIGIN_MONO_NS")
    add("--startup-s", type=float, default=None, help="domain s (default: as predicted)")
    add("--launched-ms", type=int, default=None, help="domain time from which start-up counts")
    add("--shutdown-timeout", type=float, default=0.0, help="domain s to finish after SIGTERM")
    add("--flush-ms", type=float, default=30.0, help="real ms between writes of a stream")
    add("--kv-load-failure-policy", choices=("fail", "recompute"), default="fail")
    add(
        "--kv-gb-s",
        type=float,
        default=None,
        help="rate of KV transfers to it, 1e9 bytes/s",
    )
    add("--adapters", default="[]", help="JSON: LoRA adapters under whose names it serves")
    add("--measurements", default="[]", help="JSON: measurements of the user")
    add("--gang", default="", help="JSON: its rank in an instance over several nodes")
    add(
        "--kv-lease",
        type=float,
        default=30.0,
        help="domain s for which the KV of a finished prefill is kept",
    )
    return parser.parse_args(argv)


def parse_measurements(text: str) -> tuple[Measurement, ...]:
    """The measurements in the JSON `text`, as `SimulatedKind` wrote it."""
    found: tuple[Measurement, ...] = read_value(tuple[Measurement, ...], orjson.loads(text))
    return found


def parse_gang(text: str) -> GangRank | None:
    """The rank in a gang from the JSON `text`, as `SimulatedKind` wrote it; "" for no gang."""
    found: GangRank | None = read_value(GangRank, orjson.loads(text)) if text else None
    return found


async def _serve(
    arguments: argparse.Namespace,
    setup: EngineSetup,
    gang: GangRank | None,
    time_base: TimeBase,
    adapters: tuple[str, ...],
    block: int,
) -> int:
    stop, gone = watch_end(asyncio.get_running_loop())
    now_ms = time_base.now_ms(time.monotonic_ns())
    launched_ms = now_ms if arguments.launched_ms is None else arguments.launched_ms
    startup_s = setup.startup_s if arguments.startup_s is None else arguments.startup_s
    wait_s = time_base.real_s(startup_s - (now_ms - launched_ms) / 1e3)
    if wait_s > 0 and await _ended(stop, gone, within_s=wait_s):
        return 0
    if gang is not None and not gang.leads:
        return await follow(gang, stop, gone)
    identity = Identity(
        arguments.model, uuid.uuid4().hex[:12], arguments.host, arguments.port, arguments.gpus
    )
    limits = replace(setup.limits, lease_ms=arguments.kv_lease * 1e3, block_tokens=block)
    lanes = [Batcher(setup.times, limits) for _ in range(setup.lanes)]
    engine = Engine(
        lanes[0] if len(lanes) == 1 else PipelinedEngine(lanes),
        time_base,
        identity,
        setup.transfer_ms,
        fetch_kv,
        arguments.flush_ms / 1e3,
        recompute=arguments.kv_load_failure_policy == "recompute",
        first_token_ms=setup.times.first_token_ms,
        block_tokens=block,
    )
    serving = Serving(
        identity,
        arguments.max_len,
        time_base,
        arguments.shutdown_timeout,
        dev_mode=os.environ.get("VLLM_SERVER_DEV_MODE") == "1",
        api_key=os.environ.get(API_KEY, ""),
        has_tools="--tool-call-parser" in arguments.engine_args,
        adapters=adapters,
        caches_prefixes=block > 0,
    )
    if gang is None:
        await Server(engine, serving).run(stop, gone)
        return 0
    ranks = Ranks(gang, engine.pause)
    await ranks.open(arguments.host)
    try:
        if not await _ended(stop, gone, unless=ranks.complete):
            await Server(engine, serving).run(stop, gone)
    finally:
        ranks.close()
    return 0


async def _ended(
    stop: asyncio.Event,
    gone: asyncio.Event,
    unless: asyncio.Event | None = None,
    within_s: float | None = None,
) -> bool:
    """Wait for `stop`, `gone` or `unless`, at most `within_s`; returns whether `stop` or `gone` is
    set."""
    try:
        events = (stop, gone) if unless is None else (stop, gone, unless)
        await asyncio.wait_for(first_of(*events), within_s)
    except TimeoutError:
        pass
    return stop.is_set() or gone.is_set()


def main(argv: list[str] | None = None) -> int:
    """Run one engine. Returns 0 after a stop, 1 if it cannot listen, 2 for bad arguments."""
    arguments = _arguments(argv)
    try:
        time_base = TimeBase.parse(arguments.time_base)
        gang = parse_gang(arguments.gang)
        adapters = read_value(tuple[Adapter, ...], orjson.loads(arguments.adapters))
        engine_args = read_value(tuple[str, ...], orjson.loads(arguments.engine_args))
        setup = engine_setup(
            architecture(arguments.source),
            arguments.gpu,
            arguments.gpus,
            arguments.phase,
            arguments.max_len,
            arguments.quantization,
            arguments.max_num_seqs,
            arguments.kv_gb_s,
            parse_measurements(arguments.measurements),
            tuple((one.gpu, one.gpus, one.layers) for one in gang.stages) if gang else (),
            engine_args,
            adapters,
        )
        block = block_tokens(engine_args)
    except InvalidValue as error:
        print(f"simulated engine: {error}", file=sys.stderr)
        return 2
    try:
        names = tuple(one.name for one in adapters)
        return asyncio.run(_serve(arguments, setup, gang, time_base, names, block))
    except OSError as error:
        address = f"{arguments.host}:{arguments.port}"
        print(f"simulated engine: cannot listen on {address}: {error}", file=sys.stderr)
        return 1
