"""Run the controller process: `python -m streams.controller`.

Parses options, handles signals and sets the exit code. Prints one JSON line, {"ready": true, ...},
after its first tick as leader or once it is a standby, and again on each change of role. Logs go to
stderr.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from autoscaler.domain.cluster import Mode
from autoscaler.domain.validation import InvalidValue
from streams.broker.broker_reach import BrokerUnreachable, parse_address
from streams.broker.child_broker import own_broker
from streams.broker.topic_admin import TopicsUnusable
from streams.clock import real_time
from streams.controller.composition import Options, run_controller
from streams.controller.controller_options import (
    MERGED,
    add_demand_option,
    add_operator_options,
    parse_operator_options,
)
from streams.files.defaults_section import CAPACITY, CAUTIOUS
from streams.files.user_errors import UserError
from streams.garbage_collection import collect_rarely, keep_collecting
from topics.edge.logs import add_log_options, log_to_stderr
from topics.edge.supervision import end_event, insist
from topics.extensions import Group, extensions
from topics.time_base import TimeBase
from topics.topic_table import PREFIX

_END_WITHIN_S = 3.0


def main(argv: list[str] | None = None) -> int:
    """Run until a signal or the supervisor ends the process. Returns 0, or 2 for invalid input or
    an unreachable broker, or 1 after a crash."""
    given = _parse(argv)
    log_to_stderr(given.log_level, given.log_format, limit_repeats=True)
    collect_rarely()
    loop = asyncio.new_event_loop()
    try:
        for group in (Group.TRIGGERS, Group.SIZING_RULES):
            extensions(group)  # An error now is better than one in the first tick.
        return loop.run_until_complete(_run(_options(given)))
    except (UserError, InvalidValue, BrokerUnreachable, TopicsUnusable) as error:
        print(json.dumps({"error": f"controller: {error}"}), flush=True)
        print(f"controller: {error}", file=sys.stderr)
        return 2


async def _run(options: Options) -> int:
    end = end_event(asyncio.get_running_loop())
    insisting = asyncio.create_task(insist(end, _END_WITHIN_S))
    collecting = asyncio.create_task(keep_collecting())

    http: list[str] = []

    def ready(token: int, leader: str) -> None:
        said: dict[str, object] = {"ready": True, "controller": options.controller_id}
        said |= {"leader_token": token} if token else {"standby_of": leader}
        print(json.dumps({**said, "http": http[-1]}), flush=True)

    try:
        async with contextlib.AsyncExitStack() as stack:
            if not options.broker:
                address = await stack.enter_async_context(own_broker(options.prefix))
                options = replace(options, broker=address)
            await run_controller(options, end, ready, http.append)
    except (UserError, BrokerUnreachable, TopicsUnusable):
        raise
    except Exception:
        logging.getLogger(__name__).exception("controller: crashed")
        return 1
    finally:
        insisting.cancel()
        collecting.cancel()
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m streams.controller", description=__doc__)
    parser.add_argument("--version", action="version", version=f"shoal {version('shoal')}")
    parser.add_argument("--config", required=True, type=Path, metavar="FILE")
    parser.add_argument("--broker", default="", metavar="HOST:PORT", help="default: embedded")
    parser.add_argument("--time-base", metavar="SPEED,ORIGIN_MS,ORIGIN_MONO_NS")
    parser.add_argument("--controller-id", default="controller-1")
    parser.add_argument("--prefix", default=PREFIX, help="prefix of topic names")
    parser.add_argument(
        "--default-mode",
        default=str(Mode.RECOMMEND),
        choices=[str(mode) for mode in Mode],
        help="mode if the file names none",
    )
    parser.add_argument(
        "--default-capacity",
        default=CAUTIOUS,
        choices=CAPACITY,
        help="capacity if the file names none",
    )
    add_demand_option(parser)
    add_operator_options(parser)
    parser.add_argument(
        "--workload",
        type=Path,
        metavar="FILE",
        help="a demand file as `shoal plan --demand` reads it: workloads that the file leaves open",
    )
    add_log_options(parser)
    return parser.parse_args(argv)


def _options(given: argparse.Namespace) -> Options:
    return Options(
        config=given.config,
        broker=parse_address(given.broker) if given.broker else "",
        time_base=TimeBase.parse(given.time_base) if given.time_base else real_time(),
        controller_id=given.controller_id,
        prefix=given.prefix,
        default_mode=Mode(given.default_mode),
        cautious=given.default_capacity == CAUTIOUS,
        workers=given.demand == MERGED,
        operated=parse_operator_options(given),
        workload=given.workload,
    )
