"""`shoal single`: embedded broker, controller, gateway and executor as one process tree.

For one pod or one machine without Kafka. The embedded broker keeps no data, so the parts live and
end together: if one of them ends, the others are stopped, and the supervisor starts all of them
again. The new controller takes the fleet from the executor's statuses.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import signal
import sys
from typing import Any

from streams.broker.child_broker import own_broker
from streams.broker.embedded import EmbeddedBrokerFailed
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
Part = tuple[str, asyncio.subprocess.Process]


def add_parser(subparsers: Any) -> None:
    """Add `single` to the command line."""
    parser = subparsers.add_parser(
        "single",
        help="broker, controller, gateway and executor as one process tree, without Kafka",
        description="Starts the embedded broker and the parts whose options are given. If one part "
        "ends, all parts end, with exit code 1. The broker then loses its data.",
    )
    add_config(parser, str)
    for part in PARTS:
        parser.add_argument(
            f"--{part}", metavar="OPTIONS",
            help=f"start `shoal {part}` with these options, in quotes; '' starts it without any",
        )  # fmt: skip
    parser.add_argument(
        "--grace-s", type=float, default=150.0, metavar="S",
        help="seconds from SIGTERM until remaining parts are killed (150)",
    )  # fmt: skip
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM, or until a part ends. UserError: no part is given, or options cannot be
    split."""
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
    try:
        return asyncio.run(supervise(commands, args.grace_s))
    except EmbeddedBrokerFailed as error:
        raise UserError(f"embedded broker: {error}") from None


async def supervise(commands: dict[str, list[str]], grace_s: float) -> int:
    """Run the parts on an embedded broker. commands: arguments of `shoal`, by part. Returns 0 after
    a signal, 1 if a part ended by itself."""
    end = end_event(asyncio.get_running_loop())
    theirs, ours = os.pipe()
    parts: list[Part] = []
    try:
        async with own_broker(PREFIX) as address:
            try:
                for name, options in commands.items():
                    process = await asyncio.create_subprocess_exec(
                        sys.executable, "-m", "streams.cli.entry", *options, "--broker", address,
                        pass_fds=(theirs,), env={**os.environ, SUPERVISION_VARIABLE: str(theirs)},
                        start_new_session=True,
                    )  # fmt: skip
                    parts.append((name, process))
                return await _wait(parts, end)
            finally:
                shared = any(word.startswith("--lease") for word in commands.get("executor", ()))
                order = _HAND_OVER_ORDER if shared else _STOP_ORDER
                await _stop(sorted(parts, key=lambda part: order.index(part[0])), grace_s)
    finally:
        os.close(theirs)
        os.close(ours)


async def _wait(parts: list[Part], end: asyncio.Event) -> int:
    """Wait until a part ends or a signal arrives."""
    waits = {asyncio.create_task(process.wait()): name for name, process in parts}
    ending = asyncio.create_task(end.wait())
    done, pending = await asyncio.wait({*waits, ending}, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    if ending in done:
        return 0
    for task in done:
        sys.stderr.write(f"shoal single: the {waits[task]} ended with code {task.result()}\n")
    return 1


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
