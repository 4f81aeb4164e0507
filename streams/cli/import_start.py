"""`shoal profile import --log`: the KV cache of an engine, from the log of its start."""

from __future__ import annotations

import argparse
import shlex
import zlib
from pathlib import Path

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue, whole
from autoscaler.performance import catalog
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.measured_rooms import room_of, with_rooms
from autoscaler.performance.memory import cache_of
from autoscaler.performance.start_log import LoggedStart, read_start
from streams.files.csv_rows import cause_of, text_of
from streams.files.measurements_file import add_room
from streams.files.model_source import architecture, is_file
from streams.files.user_errors import UserError

_LENGTH = "max_model_len"
_PATHS = ("/", "./", "../", "~")
_SKIPPED = ("model", "model_tag", "served_model_name", "host", "port", "tensor_parallel_size")


def import_start(args: argparse.Namespace) -> int:
    """Read the log, and keep its KV cache for plans."""
    path: Path = args.log
    gpu = catalog.gpu(args.gpu, "--gpu")
    whole("--gpus", args.gpus, 1, 8)
    try:
        text = text_of(path, "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read ({cause_of(error)})") from None
    try:
        logged = read_start(text)
        spec = _spec(args, logged)
        start = logged.start
        room = room_of(start, spec, gpu, args.gpus, start.max_len or spec.max_position)
    except InvalidValue as error:
        raise UserError(f"{path}: {error}") from None
    if room is None:
        raise UserError(f"{path}: {spec.name} is a pooling model, which has no KV cache to plan")
    if logged.starts > 1:
        print(f"{path} holds {logged.starts} starts; the last one counts")
    longest = room.refused_len or start.max_len or room.request_tokens or spec.max_position
    predicted = cache_of(spec, gpu, args.gpus).reported_tokens(longest)
    slice_name = f"{args.gpus}x{catalog.short_gpu_name(gpu.name)}"
    if room.refused_len:
        print(
            f"{spec.name} on {slice_name}: the engine refused requests of {longest} tokens "
            f"({predicted:.0f} tokens of KV cache predicted)"
        )
    else:
        measured = with_rooms(spec, (room,), longest)
        tokens = cache_of(measured, gpu, args.gpus).reported_tokens(longest)
        print(
            f"{spec.name} on {slice_name}: {tokens:.0f} tokens of KV cache at a start, "
            f"{predicted:.0f} predicted"
        )
    add_room(args.into, room)
    print(f"kept in {args.into}; plans use it with `measurements: {args.into.name}` in shoal.yaml")
    return 0


def _spec(args: argparse.Namespace, logged: LoggedStart) -> ModelSpec:
    """The model of the log with the effect of its arguments."""
    name = args.model or logged.model
    if not name:
        raise InvalidValue("--model", "nothing", "the model's name, which the log does not state")
    if logged.gpus and logged.gpus != args.gpus:
        raise InvalidValue("--gpus", args.gpus, f"{logged.gpus}, as in the log")
    _check_model(args.model, logged.model)
    if args.engine_args is not None:
        words = shlex.split(args.engine_args)
    elif logged.args is not None:
        words = _words(logged.args)
    else:
        allowed = 'the engine\'s arguments, which the log does not state ("" = none)'
        raise InvalidValue("--engine-args", "nothing", allowed)
    spec = architecture(name, Path(), "--model")
    if args.quantization:
        spec = catalog.quantized(spec, args.quantization)
    return engine_memory(words).apply_to(spec)


def _check_model(declared: str | None, logged: str) -> None:
    """Refuse the log of another model. A path in the log proves nothing."""
    if not declared or not logged or is_file(declared) or logged.startswith(_PATHS):
        return
    if declared.rpartition("/")[2].lower() != logged.rpartition("/")[2].lower():
        raise InvalidValue("--model", declared, f"{logged}, as in the log")


def _words(args: tuple[tuple[str, object], ...]) -> list[str]:
    """`args` of the log as arguments. Texts, numbers and switches only; others change no memory
    that plans count, or their name alone decides."""
    words = []
    for key, value in args:
        if key in _SKIPPED or key == _LENGTH or value is None or value is False:
            continue
        flag = f"--{key.replace('_', '-')}"
        words.append(flag if value is True else f"{flag}={value}")
    return words
