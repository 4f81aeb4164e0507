"""`python -m streams.tools.replay`: sends a trace, reports its progress, writes a report."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import math
import resource
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import orjson

from streams.files.score_file import sampled_scores
from streams.files.user_errors import UserError
from streams.tools.replay.demand_changes import parse_changes, with_changes
from streams.tools.replay.replay_report import Record
from streams.tools.replay.request_schedule import Job, Kinds, schedule, with_media
from streams.tools.replay.request_sender import Sender
from streams.tools.replay.traces import COLUMNS_HELP, load_trace, parse_columns
from topics import checks
from topics.checks import InvalidValue
from topics.edge.supervision import end_event
from topics.routing import MEDIA
from topics.time_base import TimeBase

_DRAIN_S = 120.0


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 after the report was written, 2 for bad input."""
    options = _options(argv)
    try:
        base = TimeBase.parse(options.time_base)
        weights = {name: _number("--models", text) for name, text in _pairs("--models", options)}
        if not weights or sum(weights.values()) <= 0.0:
            raise UserError("--models: at least one model with a weight above 0 is required")
        longest = {
            name: int(_number("--max-len", text)) for name, text in _pairs("--max-len", options)
        }
        for_ms = math.inf if options.for_ms is None else _number("--for-ms", options.for_ms)
        kinds = {name: _kinds(text) for name, text in _pairs("--kinds", options)}
        headers, scores = {}, {}
        for name, text in _pairs("--scores", options):
            headers[name], _, file = text.partition(":")
            scores[name] = sampled_scores(Path(file))
        trace = load_trace(options.trace, parse_columns(options.columns))
        jobs = schedule(trace, weights, longest, options.seed, for_ms, scores)
        jobs = with_changes(jobs, parse_changes(options.demand), options.seed)
        jobs = with_media(jobs, kinds, options.seed)
    except (UserError, InvalidValue) as error:
        print(orjson.dumps({"error": str(error)}).decode(), flush=True)
        print(f"replay: {error}", file=sys.stderr)
        return 2
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    record = Record(dict.fromkeys(weights))
    gc.collect()
    gc.freeze()  # the schedule is permanent: keep garbage collections short
    asyncio.run(_replay(options, base, jobs, record, headers))
    return 0


async def _replay(
    options: argparse.Namespace,
    base: TimeBase,
    jobs: list[Job],
    record: Record,
    headers: Mapping[str, str],
) -> None:
    end = end_event(asyncio.get_running_loop())
    # If reading the trace took longer than planned, shift the whole replay. Otherwise the first
    # seconds would be sent in one burst.
    start_ms = max(options.start_ms, base.now_ms(time.monotonic_ns()))
    sender = Sender(options.url, base, start_ms, record, options.request_s, headers)
    _say({"ready": True, "requests": len(jobs)})
    telling = asyncio.create_task(_tell(record))
    await sender.run(jobs, end, max(2.0, base.real_s(_DRAIN_S)))
    telling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await telling
    data = orjson.dumps(record.report(), option=orjson.OPT_INDENT_2)
    fresh = options.report.with_suffix(".new")
    fresh.write_bytes(data)
    fresh.replace(options.report)
    _say({"progress": record.progress()})
    _say({"done": True, "report": str(options.report)})


async def _tell(record: Record) -> None:
    while True:
        await asyncio.sleep(1.0)
        _say({"progress": record.progress()})


def _say(line: dict[str, object]) -> None:
    # The reader of the pipe may have ended; the report must still be written.
    with contextlib.suppress(OSError):
        print(orjson.dumps(line).decode(), flush=True)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="replay", description=__doc__)
    parser.add_argument("--url", required=True, help="of an OpenAI-compatible server, without /v1")
    parser.add_argument("--trace", required=True, type=Path)
    parser.add_argument("--columns", help=COLUMNS_HELP)
    parser.add_argument("--time-base", required=True, help="SPEED,ORIGIN_MS,ORIGIN_MONO_NS")
    parser.add_argument("--start-ms", required=True, type=int, help="domain ms of trace time 0")
    parser.add_argument("--models", required=True, help="weights of the draw: chat=1,mini=2")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--for-ms", help="send the first domain ms of the trace only")
    parser.add_argument("--report", required=True, type=Path)
    parser.add_argument("--max-len", default="", help="tokens a request may have: chat=32768")
    parser.add_argument(
        "--kinds", default="", help="share:media of chats: omni=0.7:/0.2:image/0.1:audio+audio-out"
    )
    parser.add_argument(
        "--scores", default="", help="scores to draw and to send: auto=X-Shoal-Score:scores.csv"
    )
    parser.add_argument(
        "--demand", default="", help="changes of demand: FROM_MS:UNTIL_MS:FACTOR:MODEL,..."
    )
    parser.add_argument("--request-s", type=float, default=600.0, help="life of a request")
    return parser.parse_args(argv)


def _pairs(option: str, options: argparse.Namespace) -> list[tuple[str, str]]:
    """The name=value pairs of an option."""
    text: str = getattr(options, option.removeprefix("--").replace("-", "_"))
    pairs = []
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        try:
            checks.name(option, name if equals else None)
        except InvalidValue:
            raise UserError(
                f"{option}: {part!r} is not allowed; allowed: model=value,..."
            ) from None
        pairs.append((name, value))
    return pairs


def _kinds(text: str) -> Kinds:
    found = []
    for kind in text.split("/"):
        share, _, media = kind.partition(":")
        names = tuple(filter(None, media.split("+")))
        for name in names:
            if name not in MEDIA:
                raise UserError(f"--kinds: {name!r} is not allowed; allowed: {', '.join(MEDIA)}")
        found.append((_number("--kinds", share), names))
    return tuple(found)


def _number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise UserError(f"{option}: {text!r} is not allowed; allowed: a number from 0 on")
    return value


if __name__ == "__main__":
    gc.freeze()  # Collections need not visit what the imports made.
    sys.exit(main())
