"""`python -m executors.gateway`: options, connection to the broker, signals."""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import resource
import signal
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import orjson
import uvloop

from autoscaler.serving.routing_policies import AcrossCombos, RoutingPolicy, WithinCombo
from executors.gateway.api_keys import InvalidKeysFile
from executors.gateway.gateway_server import Gateway
from executors.gateway.gateway_settings import Clock, GatewaySettings
from executors.gateway.pending_routes import declared_names
from executors.gateway.worker_processes import WorkerProcesses
from executors.kafka_client import KafkaClient
from topics.checks import InvalidValue, count
from topics.edge.key_files import read_keys
from topics.edge.logs import add_log_options, log_to_stderr
from topics.edge.supervision import watch_supervisor
from topics.edge.tracing import open_spans
from topics.http_origin import parse_host_names
from topics.keys import Keys, gateway_name
from topics.records import Routes
from topics.spans import Spans
from topics.time_base import TimeBase

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 after SIGTERM or SIGINT, 2 for invalid options."""
    options = _options(argv)
    log_to_stderr(options.log_level, options.log_format)
    try:
        clock = Clock(TimeBase.parse(options.time_base))
        count("port", options.port, 65_535)
        settings = GatewaySettings(
            options.gateway_id,
            hold_s=options.hold_s,
            queue_s=options.queue_s,
            stall_s=options.stall_s,
            request_s=options.request_s,
            drain_real_s=options.drain_s,
            policy=RoutingPolicy(AcrossCombos(options.between), WithinCombo(options.inside)),
            recommend_only=frozenset(filter(None, options.advised.split(","))),
            declared_models=declared_names(options.declared),
            host_names=parse_host_names("--allowed-hosts", options.allowed_hosts),
            media_domains=parse_host_names("--media-domains", options.media_domains),
        )
        keys = read_keys()
        settings = replace(settings, engine_key=keys.engine)
        spans = open_spans("shoal-gateway", settings.gateway_id)
    except InvalidValue as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    _raise_file_limit()
    _keep_freed_memory()
    try:
        if options.workers > 1:
            return asyncio.run(_workers(options, sys.argv[1:] if argv is None else argv).run())
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(options, settings, clock, keys, spans))
    except InvalidKeysFile as error:
        print(f"gateway: {options.keys_file}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        where = error.filename or f"{options.host}:{options.port}"
        print(f"gateway: {where}: {error.strerror or error}", file=sys.stderr)
        return 2
    return 0


def _workers(options: argparse.Namespace, argv: list[str]) -> WorkerProcesses:
    """The workers for these options."""
    differ = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in ("--workers", "--host", "--port", "--gateway-id", "--state-dir"):
        differ.add_argument(option)
    _, rest = differ.parse_known_args(argv)
    return WorkerProcesses(
        options.workers,
        rest,
        options.host,
        options.port,
        options.gateway_id,
        options.state_dir,
    )


async def _serve(
    options: argparse.Namespace, settings: GatewaySettings, clock: Clock, keys: Keys, spans: Spans
) -> None:
    loop = asyncio.get_running_loop()
    end, now = asyncio.Event(), asyncio.Event()

    def asked_to_end() -> None:
        (now if end.is_set() else end).set()  # the second signal ends the process at once

    def supervisor_gone() -> None:
        end.set()
        now.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked_to_end)
    watch_supervisor(loop, supervisor_gone)
    state_dir = Path(options.state_dir) if options.state_dir else None
    keys_file = Path(options.keys_file) if options.keys_file else None
    async with (
        KafkaClient(
            options.broker,
            settings.gateway_id,
            options.prefix,
            keys,
            gateway_name(settings.gateway_id),
        ) as kafka,
        Gateway(
            settings,
            clock,
            kafka,
            options.host,
            options.port,
            state_dir,
            keys_file,
            options.own_port,
            spans,
        ) as gateway,
    ):
        table = gateway.table

        def on_record(_topic: str, _key: str, record: object, _append_ms: int) -> None:
            if isinstance(record, Routes):
                table.offer(record)

        def on_new_cluster() -> None:
            table.begin_cluster()
            gateway.reporter.begin_cluster()

        kafka.follow(
            ("routes",),
            on_record,
            lambda _topic, model: table.finalize(model),
            on_caught_up=table.end_settling,
            on_new_cluster=on_new_cluster,
        )
        kafka.follow_leadership(lambda: table.set_highest_token(kafka.highest_token or 0))
        gateway.metrics.add_gauge("forged", "Records with a wrong signature", lambda: kafka.forged)
        ready = {"ready": True, "url": gateway.url, "boot": gateway.reporter.boot}
        if gateway.own_url:
            ready["own_url"] = gateway.own_url
        print(orjson.dumps(ready).decode(), flush=True)
        # Exclude the objects that live as long as the process from garbage collection: each full
        # collection would traverse them and delay all requests.
        gc.freeze()
        await gateway.run(end, now)


def _options(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gateway", description=__doc__)
    parser.add_argument("--version", action="version", version=f"shoal {version('shoal')}")
    parser.add_argument("--broker", required=True, help="HOST:PORT or kafka://HOST:PORT")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free port")
    parser.add_argument("--gateway-id", default="gateway")
    parser.add_argument("--time-base", required=True, help="SPEED,ORIGIN_MS,ORIGIN_MONO_NS")
    parser.add_argument("--state-dir", help="folder for saved routes and telemetry")
    parser.add_argument("--prefix", default="shoal.", help="prefix of topic names")
    parser.add_argument(
        "--hold-s", type=float, default=30.0, help="longest wait for a ready instance, in seconds"
    )
    parser.add_argument(
        "--queue-s", type=float, default=600.0, help="longest wait for capacity, in seconds"
    )
    parser.add_argument(
        "--stall-s",
        type=float,
        default=240.0,
        help="seconds without any output after which an engine is checked",
    )
    parser.add_argument(
        "--request-s", type=float, default=1800.0, help="longest duration of a request, in seconds"
    )
    parser.add_argument(
        "--drain-s", type=float, default=120.0,
        help="real seconds for requests to finish after SIGTERM; a second SIGTERM ends it at once",
    )  # fmt: skip
    parser.add_argument(
        "--between", default=AcrossCombos.GOODPUT.value,
        choices=[choice.value for choice in AcrossCombos],
        help="how combos share the requests of a model",
    )  # fmt: skip
    parser.add_argument(
        "--inside", default=WithinCombo.OPPORTUNISTIC.value,
        choices=[each.value for each in WithinCombo],
        help="which instance of a combo takes a request",
    )  # fmt: skip
    parser.add_argument(
        "--workers", type=int, default=1, choices=range(1, 65), metavar="N",
        help="processes on one port; the metrics of each are on port + 1 to port + N of loopback",
    )  # fmt: skip
    parser.add_argument("--own-port", type=int, help=argparse.SUPPRESS)
    parser.add_argument(
        "--allowed-hosts", default="", metavar="NAMES",
        help="accepted host names in addition to addresses and localhost (comma list)",
    )  # fmt: skip
    parser.add_argument(
        "--media-domains", default="", metavar="NAMES",
        help="hosts from which engines may fetch media for clients (comma list; default: none)",
    )  # fmt: skip
    parser.add_argument("--keys-file", help="API keys (YAML); without it no key is required")
    parser.add_argument(
        "--advised",
        default="",
        help="models for which no instance starts without approval (comma list)",
    )
    parser.add_argument(
        "--declared", action="append", default=[], metavar="MODEL[=OTHER_NAME]",
        help="a declared model, whose requests are reported even before it has routes",
    )  # fmt: skip
    add_log_options(parser)
    return parser.parse_args(argv)


def _raise_file_limit() -> None:
    """Raise the soft limit of open files, which is often 1024. Each request in flight needs two
    sockets."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _keep_freed_memory() -> None:
    """Keep the memory of large bodies for later bodies, because returning megabytes to the kernel
    and allocating them again delays all clients for milliseconds."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # only glibc has mallopt
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 256 * 1024 * 1024)
        mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)


if __name__ == "__main__":
    sys.exit(main())
