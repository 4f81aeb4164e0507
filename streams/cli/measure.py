"""`shoal profile import` and `measure`: a user's own measurements of one model on a GPU.

`streams.files.benchmark_results` reads results of benchmarks, `streams.tools.bench` measures, and
`autoscaler.performance.user_measurements` fits the profile to the measurements.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue, whole
from autoscaler.explain.explanation import Measuring
from autoscaler.performance import catalog
from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.profile_sources import without_measurements
from autoscaler.performance.user_measurements import fit_measurement
from streams.cli.import_start import import_start
from streams.files.benchmark_results import read_results
from streams.files.benchmark_values import Result
from streams.files.csv_rows import cause_of
from streams.files.measurements_file import add_measurement
from streams.files.model_source import architecture, is_file
from streams.files.user_errors import UserError
from streams.tools.bench.sweep import Sweep, sweep

_INTO = Path("measurements.json")
_DISAGREE = 0.25
"""Error above which the runs themselves are doubtful."""


def add_parsers(commands: Any) -> None:
    """Add `profile import` and `profile measure`."""
    importing = commands.add_parser(
        "import",
        help="calibrate a model on a GPU from a benchmark's result, or from the log of a start",
        description="Reads results of `vllm bench serve` (saved or printed), `vllm bench sweep`, "
        "GuideLLM, aiperf, llm-d, inference-perf or InferenceX, and calibrates that model on that "
        "GPU. With --log, reads the KV cache from the log of a start of vLLM instead. "
        "Plans use it if a shoal.yaml has `measurements: measurements.json`.",
    )
    importing.add_argument("files", nargs="*", type=Path, metavar="FILE")
    importing.add_argument("--log", type=Path, metavar="FILE", help="log of a start of vLLM")
    importing.add_argument(
        "--engine-args",
        metavar="ARGS",
        help="the engine's arguments in one word, if the log does not state them",
    )
    _common(importing)
    importing.set_defaults(run=_import)
    measuring = commands.add_parser(
        "measure",
        help="run a short sweep against an engine and calibrate from it",
        description="Sends a few dozen requests of two lengths at rising concurrency to an "
        "OpenAI-compatible server and calibrates that model on that GPU.",
    )
    measuring.add_argument("--url", required=True, help="address of the engine, without /v1")
    measuring.add_argument("--served-model", help="the name under which it serves the model")
    key = measuring.add_mutually_exclusive_group()
    key.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="holds the key sent as a bearer token"
    )
    key.add_argument(
        "--api-key", default="", help="the key itself, which other users of this machine can see"
    )
    measuring.add_argument("--input", type=int, default=1024, help="tokens of a prompt (1024)")
    measuring.add_argument("--output", type=int, default=128, help="tokens of an answer (128)")
    measuring.add_argument(
        "--concurrency", default="1,4,16", help="concurrent requests of each step (1,4,16)"
    )
    _common(measuring)
    measuring.set_defaults(run=_measure)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpu", required=True, help="GPU type of the engine")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="number of its GPUs (1)")
    parser.add_argument("--model", help="name or config.json, if the result does not name it")
    parser.add_argument(
        "--quantization", default="", help="quantization of the weights in the engine"
    )
    parser.add_argument(
        "--into", type=Path, default=_INTO, metavar="FILE", help=f"where to keep it ({_INTO})"
    )


def measuring_words(found: Measuring) -> str:
    """Text on the possible saving of a measurement, such as "L40S could save 9.00 USD/h"."""
    worth = [f"serve {found.serves_req_per_s:.3g} req/s more"] if found.serves_req_per_s else []
    worth += [f"save {found.saves_usd_per_h:.2f} USD/h"] if found.saves_usd_per_h > 0.005 else []
    return f"{catalog.short_gpu_name(found.gpu)} could {' and '.join(worth)}"


def measure_command(spec: ModelSpec, gpu: str) -> str:
    """The command that measures `spec` on GPUs of type `gpu`."""
    published = spec.weight_dtype if is_file(spec.name) else catalog.model(spec.name).weight_dtype
    stored = f" --quantization {spec.weight_dtype}" if spec.weight_dtype != published else ""
    short = catalog.short_gpu_name(gpu)
    return f"shoal profile measure --url http://ENGINE --gpu {short} --model {spec.name}{stored}"


def _import(args: argparse.Namespace) -> int:
    if (args.log is None) is (not args.files):
        raise UserError("profile import: name either results of benchmarks or --log FILE")
    if args.log is not None:
        return import_start(args)
    if args.engine_args is not None:
        raise UserError("--engine-args: only with --log")
    runs: list[Result] = []
    for path in args.files:
        found = read_results(path)
        other = [_other_hardware(run, args.gpu, args.gpus) for run in found.runs]
        runs += [run for run, why in zip(found.runs, other, strict=True) if not why]
        for why in (*found.skipped, *filter(None, other)):
            print(f"{path}: a run left out: {why}")
    if not runs:
        raise UserError(f"{args.files[0]}: no run of a steady load")
    names = {run.model for run in runs if run.model}
    if not args.model and len(names) > 1:
        raise UserError(f"results of several models ({', '.join(sorted(names))}); name --model")
    name = args.model or next(iter(names), "")
    if not name:
        raise UserError("the result names no model; give --model")
    day = max((run.day for run in runs), default="") or _today()
    return _keep(args, _spec(name, args.quantization), runs, day)


def _other_hardware(run: Result, gpu: str, gpus: int) -> str:
    """Reason why the GPUs that a run names are not those of --gpu and --gpus; "" if they are."""
    if run.gpus and run.gpus != gpus:
        return f"it used {run.gpus} GPUs, and --gpus is {gpus}"
    wanted = catalog.gpu(gpu, "--gpu").name
    try:
        named = catalog.gpu(run.gpu, "gpu").name if run.gpu else wanted
    except InvalidValue:
        return ""  # The catalogue lacks this spelling, so it proves nothing.
    return "" if named == wanted else f"it ran on {run.gpu}, and --gpu is {gpu}"


def _measure(args: argparse.Namespace) -> int:
    try:
        steps = tuple(int(step) for step in args.concurrency.split(","))
    except ValueError:
        allowed = "whole numbers, such as 1,4,16"
        raise InvalidValue("--concurrency", args.concurrency, allowed) from None
    for step in steps:
        whole("--concurrency", step, 1, 4096)
    whole("--input", args.input, 8, 1_000_000)
    whole("--output", args.output, 2, 100_000)
    url = args.url.rstrip("/")
    wanted = Sweep(url, args.served_model, _api_key(args), args.input, args.output, steps)
    served, runs = asyncio.run(sweep(wanted))
    name = args.model or served
    return _keep(args, _spec(name, args.quantization), runs, _today())


def _api_key(args: argparse.Namespace) -> str:
    file: Path | None = args.api_key_file
    if file is None:
        return str(args.api_key)
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--api-key-file {file}: cannot be read ({cause_of(error)})") from None
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"--api-key-file {file}: holds no key; allowed: one word of ASCII")
    return key


def _keep(args: argparse.Namespace, spec: ModelSpec, runs: Sequence[Result], day: str) -> int:
    gpu = catalog.gpu(args.gpu, "--gpu")
    whole("--gpus", args.gpus, 1, 8)
    points = [_point(run, spec, gpu, args.gpus) for run in runs]
    found = fit_measurement(points, default_profile(), day)
    add_measurement(args.into, found)
    _say(found, spec.name, points)
    print(f"kept in {args.into}; plans use it with `measurements: {args.into.name}` in shoal.yaml")
    return 0


def _say(found: Measurement, name: str, points: Sequence[MeasuredPoint]) -> None:
    before = without_measurements(default_profile(), points[0])
    guess = measure_error(points, before)
    print(
        f"{name} on {found.tp}x{found.gpu}: measured {found.day}, {found.points} points, "
        f"error {found.error:.0%} (estimated alone {guess:.0%})"
    )
    if found.error > _DISAGREE:
        print("the runs differ from each other; repeat them with more requests on an idle engine")
    print(
        f"prompts take {found.prefill:.2f} times the estimate, decode iterations {found.decode:.2f}"
        + ("" if found.first_token_ms is None else
           f"; a first token {found.first_token_ms:.0f} ms more, outside of iterations")
    )  # fmt: skip


def measure_error(points: Sequence[MeasuredPoint], profile: Any) -> float:
    """Mean absolute error of TTFT and TPOT at `points` under `profile`."""
    from statistics import fmean

    from autoscaler.performance.closed_loop import estimate_point

    errors = []
    for point in points:
        guess = estimate_point(point, profile)
        if point.ttft_ms:
            errors.append(abs(guess.ttft_ms / point.ttft_ms - 1.0))
        if point.tpot_ms:
            errors.append(abs(guess.tpot_ms / point.tpot_ms - 1.0))
    return fmean(errors)


def _point(run: Result, spec: ModelSpec, gpu: Any, gpus: int) -> MeasuredPoint:
    return MeasuredPoint(
        model=spec.name,
        system=gpu.name,
        spec=spec,
        gpu=gpu,
        kind=PointKind.CLOSED_LOOP,
        engine="vllm",
        tp=gpus,
        decode_tp=gpus,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
        load=run.load,
        decode_load=run.load,
        ttft_ms=run.ttft_ms,
        tpot_ms=run.tpot_ms,
    )


def _spec(name: str, quantization: str) -> ModelSpec:
    spec = architecture(name, Path(), "--model")
    return catalog.quantized(spec, quantization) if quantization else spec


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
