"""python -m loadtests.chaos [--seed N] [--minutes M] [--broker HOST:PORT] [--out FOLDER]"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from loadtests.chaos import report
from loadtests.chaos.run import Chaos
from loadtests.chaos.script import FAULTS, broker_on
from loadtests.chaos.stack import open_stack
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import TopicsUnusable
from streams.files.user_errors import UserError


def _minutes(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0.1 <= found <= 1440.0:
        raise argparse.ArgumentTypeError(f"{text!r}: minutes from 0.1 to 1440")
    return found


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 every promise held, 1 a promise broke, 2 the run failed."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.chaos",
        description="Breaks the running stack piece by piece and checks what must hold.",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the script (1)")
    parser.add_argument("--minutes", type=_minutes, default=10.0, help="of faults (10)")
    parser.add_argument("--broker", default="", metavar="HOST:PORT", help="default: embedded")
    parser.add_argument(
        "--kill-broker",
        action="store_true",
        help="kill and stop the broker too: one of `make kafka ARGS=--restart` on this machine",
    )
    parser.add_argument("--out", type=Path, default=Path("chaos"), help="folder of the report")
    names = [fault.name for fault in FAULTS]
    parser.add_argument(
        "--only", choices=names, default="", metavar="FAULT", help="this kind alone"
    )
    options = parser.parse_args(argv)
    only = next((fault for fault in FAULTS if fault.name == options.only), None)
    if only is not None and only.real and not options.broker:
        parser.error(f"--only {options.only}: needs a real broker (--broker)")
    if only is not None and only.killable and not options.kill_broker:
        parser.error(f"--only {options.only}: needs --kill-broker")
    if options.kill_broker and not broker_on(options.broker):
        parser.error(f"--kill-broker: no Kafka of `make kafka` listens on {options.broker!r}")
    logging.disable(logging.CRITICAL)
    try:
        return asyncio.run(_run(options))
    except KeyboardInterrupt:
        return 130
    except (UserError, BrokerUnreachable, TopicsUnusable, RuntimeError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2


async def _run(options: argparse.Namespace) -> int:
    folder: Path = options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as closing:
        embedded = not options.broker
        work = folder / "work"  # Logs and state; those of an earlier run are removed.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        stack = await open_stack(closing, work, options.broker)
        chaos = Chaos(
            stack,
            options.seed,
            embedded,
            lambda text: print(text, flush=True),
            killable=options.kill_broker,
        )
        broker = "the embedded broker" if embedded else f"Kafka at {options.broker}"
        title = f"seed {options.seed}, {options.minutes:g} min on {broker}"
        print(title, flush=True)
        try:
            await chaos.run(options.minutes, options.only)
        finally:
            files = report.write(chaos, folder, title)
    broken = [o for o in chaos.outcomes if o.broken]
    found: Any = report.summary(chaos, title)
    text = f"{len(chaos.outcomes)} faults, {len(broken)} with a broken promise; "
    apart = sum(not one["during"] for one in found["lost"])
    text += f"{found['failed']} of {found['requests']} requests failed, {apart} outside of faults"
    if any(o.takeover_s >= 0 for o in chaos.outcomes):
        text += f"; longest takeover {found['worst_takeover_s']} s"
        text += f"; rates at most {found['worst_rate_off']:.2%} off"
    print(text)
    print(" ".join(str(file) for file in files))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
