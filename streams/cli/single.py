"""`shoal single`: embedded broker, controller, gateway and executor as one process tree.

For one pod or one machine without Kafka. A part that ends is started again while the others go on:
the gateway keeps its routes, and a new controller reads the topics. The embedded broker keeps its
data in memory. If it ends, all parts end, and the supervisor starts all of them again; the new
controller then takes the fleet from the executor's statuses. Gateways on other hosts reach the
broker with `--broker-listen`, and keep their routes while this process is away.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoscaler.domain.validation import InvalidValue
from streams.broker.broker_reach import parse_address
from streams.broker.child_broker import own_broker
from streams.broker.embedded import EmbeddedBrokerFailed
from streams.broker.tls_listener import server_context, tls_listener
from streams.cli.config_option import add_config
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from topics.edge.supervision import SUPERVISION_VARIABLE, end_event
from topics.topic_table import PREFIX

PARTS = ("controller", "gateway", "executor")
_STOP_ORDER = ("gateway", "executor", "controller")
_HAND_OVER_ORDER = ("executor", "controller", "gateway")
"""If executors share a Lease, that of the next pod acts at once, and this controller, which gets no
more requests, must not scale in. The gateway keeps its routes."""
_LIVED_S = 10.0
"""Seconds after which a part that ends is started again: one that ends sooner would end again."""
Part = tuple[str, asyncio.subprocess.Process]


@dataclass(frozen=True, slots=True)
class Listener:
    """Where clients on other hosts reach the broker."""

    host: str
    port: int
    tls: ssl.SSLContext


def add_parser(subparsers: Any) -> None:
    """Add `single` to the command line."""
    parser = subparsers.add_parser(
        "single",
        help="broker, controller, gateway and executor as one process tree, without Kafka",
        description="Starts the embedded broker and the parts whose options are given. A part that "
        "ends is started again. If it ends within 10 s, or if the broker ends, all parts end, with "
        "exit code 1. The broker then loses its data.",
    )
    add_config(parser, str)
    for part in PARTS:
        parser.add_argument(
            f"--{part}", metavar="OPTIONS",
            help=f"start `shoal {part}` with these options, in quotes; '' starts it without any",
        )  # fmt: skip
    parser.add_argument(
        "--broker-listen", metavar="HOST:PORT",
        help="let gateways on other hosts use the broker, over TLS",
    )  # fmt: skip
    parser.add_argument(
        "--broker-tls", metavar="FOLDER",
        help="tls.crt and tls.key for it; clients must show the same certificate",
    )  # fmt: skip
    parser.add_argument(
        "--grace-s", type=float, default=150.0, metavar="S",
        help="seconds from SIGTERM until remaining parts are killed (150)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM, or until a new part or the broker ends. UserError: no part is given, or
    options cannot be split."""
    load_config(args.config)
    commands: dict[str, list[str]] = {}
    for part in PARTS:
        text = getattr(args, part)
        if text is None:
            continue
        try:
            commands[part] = [part, "--config", args.config, *shlex.split(text)]
        except ValueError as error:
            raise UserError(f"--{part} {text!r}: {error}") from None
    if not commands:
        raise UserError("shoal single: no part is given; allowed: --controller, --gateway and "
                        "--executor, with their options")  # fmt: skip
    listener = _listener(args.broker_listen, args.broker_tls)
    try:
        return asyncio.run(supervise(commands, args.grace_s, listener))
    except EmbeddedBrokerFailed as error:
        raise UserError(f"embedded broker: {error}") from None


def _listener(address: str | None, folder: str | None) -> Listener | None:
    """Raises UserError if only one of both is given, or if one is invalid."""
    if (address is None) != (folder is None):
        raise UserError("shoal single: allowed is --broker-listen together with --broker-tls")
    if address is None or folder is None:
        return None
    try:
        host, _, port = parse_address(address).rpartition(":")
        tls = server_context(Path(folder, "tls.crt"), Path(folder, "tls.key"))
        return Listener(host.strip("[]"), int(port), tls)
    except InvalidValue as error:
        raise UserError(f"--broker-listen: {error}") from None
    except OSError as error:
        raise UserError(
            f"--broker-tls {folder}: {error}; allowed: a folder with tls.crt and its tls.key"
        ) from None


async def supervise(
    commands: dict[str, list[str]], grace_s: float, listener: Listener | None = None
) -> int:
    """Run the parts on an embedded broker. commands: arguments of `shoal`, by part. Returns 0 after
    a signal, 1 if the broker or a new part ended by itself."""
    loop = asyncio.get_running_loop()
    end, lost = end_event(loop), loop.create_future()
    theirs, ours = os.pipe()
    parts: dict[str, asyncio.subprocess.Process] = {}
    try:
        async with own_broker(PREFIX, lost) as address:

            async def start(name: str) -> asyncio.subprocess.Process:
                parts[name] = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "streams.cli.entry", *commands[name], "--broker", address,
                    pass_fds=(theirs,), env={**os.environ, SUPERVISION_VARIABLE: str(theirs)},
                    start_new_session=True,
                )  # fmt: skip
                return parts[name]

            try:
                # It ends first, so that gateways go to the broker of the next pod.
                async with _listening(listener, address):
                    keeping = [loop.create_task(_keep(name, start)) for name in commands]
                    ending = loop.create_task(end.wait())
                    await asyncio.wait(
                        {ending, lost, *keeping}, return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in (ending, *keeping):
                        task.cancel()
                if ending.done() and not ending.cancelled():
                    return 0
                if lost.done():
                    sys.stderr.write(f"shoal single: the broker ended with code {lost.result()}\n")
                return 1
            finally:
                shared = any(word.startswith("--lease") for word in commands.get("executor", ()))
                order = _HAND_OVER_ORDER if shared else _STOP_ORDER
                await _stop([(name, parts[name]) for name in order if name in parts], grace_s)
    finally:
        os.close(theirs)
        os.close(ours)


@contextlib.asynccontextmanager
async def _listening(listener: Listener | None, broker: str) -> AsyncIterator[None]:
    if listener is None:
        yield
        return
    try:
        async with tls_listener(listener.host, listener.port, listener.tls, broker):
            yield
    except OSError as error:
        where = f"{listener.host}:{listener.port}"
        raise UserError(f"--broker-listen {where}: {error.strerror or error}") from None


async def _keep(name: str, start: Callable[[str], Awaitable[asyncio.subprocess.Process]]) -> None:
    """Start a part, and start it again when it ends. Returns if it ended within `_LIVED_S`, because
    it would end again."""
    loop = asyncio.get_running_loop()
    while True:
        began_s = loop.time()
        code = await (await start(name)).wait()
        again = loop.time() - began_s >= _LIVED_S
        what = "; starting it again" if again else ""
        sys.stderr.write(f"shoal single: the {name} ended with code {code}{what}\n")
        if not again:
            return


async def _stop(parts: list[Part], grace_s: float) -> None:
    """Stop the parts in their order; the gateway finishes its requests. Afterwards everything that
    remains is killed."""
    until_s = asyncio.get_running_loop().time() + grace_s
    for _, process in parts:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await process.wait()
    for _, process in parts:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
