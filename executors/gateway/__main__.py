"""`python -m executors.gateway`: options, the broker's edge, the end of the process."""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
from pathlib import Path

import orjson

from executors.gateway.server import Gateway
from executors.gateway.settings import Clock, Settings
from executors.kafka_client import KafkaClient
from executors.keys import read_keys
from executors.logs import add_log_level, log_to_stderr
from executors.supervision import end_event
from topics.checks import InvalidRecord, count
from topics.records import Routes
from topics.signing import Keys
from topics.timebase import TimeBase


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 after SIGTERM or SIGINT, 2 for options that cannot be used."""
    options = _options(argv)
    log_to_stderr(options.log_level)
    try:
        clock = Clock(TimeBase.parse(options.time_base))
        count("port", options.port, 65_535)
        settings = Settings(
            options.gateway_id,
            hold_s=options.hold_s,
            queue_s=options.queue_s,
            stall_s=options.stall_s,
            request_s=options.request_s,
        )
        keys = read_keys()
    except InvalidRecord as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    _raise_file_limit()
    try:
        asyncio.run(_serve(options, settings, clock, keys))
    except OSError as error:
        print(f"gateway: {options.host}:{options.port}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


async def _serve(options: argparse.Namespace, settings: Settings, clock: Clock, keys: Keys) -> None:
    end = end_event(asyncio.get_running_loop())
    state_dir = Path(options.state_dir) if options.state_dir else None
    async with (
        KafkaClient(options.broker, settings.gateway_id, options.prefix, keys) as kafka,
        Gateway(settings, clock, kafka, options.host, options.port, state_dir) as gateway,
    ):

        def on_record(topic: str, key: str, record: object) -> None:
            if isinstance(record, Routes):
                gateway.table.apply(record)

        kafka.follow(("routes",), on_record)
        ready = {"ready": True, "url": gateway.url, "boot": gateway.reporter.boot}
        print(orjson.dumps(ready).decode(), flush=True)
        await gateway.run(end)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway", description=__doc__)
    parser.add_argument("--broker", required=True, help="HOST:PORT or kafka://HOST:PORT")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--gateway-id", default="gateway")
    parser.add_argument("--time-base", required=True, help="SPEED,ORIGIN_MS,ORIGIN_MONO_NS")
    parser.add_argument("--state-dir", help="where the last routes are kept")
    parser.add_argument("--prefix", default="shoal.", help="of topic names")
    parser.add_argument("--hold-s", type=float, default=30.0, help="wait for a ready instance")
    parser.add_argument("--queue-s", type=float, default=600.0, help="wait for room")
    parser.add_argument("--stall-s", type=float, default=240.0, help="silence of an engine")
    parser.add_argument("--request-s", type=float, default=1800.0, help="life of a request")
    add_log_level(parser)
    return parser.parse_args(argv)


def _raise_file_limit() -> None:
    """Each request in flight holds two sockets; the soft limit is often 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main())
