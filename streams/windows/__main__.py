"""Run one window worker: `python -m streams.windows`.

The worker prints a JSON line with its partition count after each assignment by Kafka. Start one
worker per machine that shares the load; workers may join, leave and crash at any time. Controllers
on a real Kafka read what they merge.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from importlib.metadata import version

import faust
from faust.types import TP

from autoscaler.domain.validation import InvalidValue
from streams.broker.broker_reach import BrokerUnreachable, parse_address
from streams.broker.topic_admin import TopicsUnusable, ensure_topics
from streams.files.user_errors import UserError
from streams.garbage_collection import collect_rarely
from streams.warm_up import warm_up
from streams.windows.faust_app import make_app
from topics.edge.key_files import read_keys
from topics.edge.logs import add_log_options, log_to_stderr
from topics.time_base import TimeBase
from topics.topic_table import PREFIX


def main(argv: list[str] | None = None) -> int:
    """Run until a signal. Returns 2 if the broker is unreachable or unusable."""
    parser = argparse.ArgumentParser(prog="python -m streams.windows", description=__doc__)
    parser.add_argument("--version", action="version", version=f"shoal {version('shoal')}")
    parser.add_argument("--broker", required=True, metavar="kafka://HOST:PORT")
    parser.add_argument("--prefix", default=PREFIX, help="prefix of topic names")
    parser.add_argument(
        "--time-base", default=TimeBase(), type=TimeBase.parse,
        help="speed and origin of domain time (default: the broker's clock)",
    )  # fmt: skip
    add_log_options(parser)
    given = parser.parse_args(argv)
    log_to_stderr(given.log_level, given.log_format, limit_repeats=True)
    try:
        keys = read_keys()
        bootstrap = parse_address(given.broker)
        found = asyncio.run(ensure_topics(bootstrap, given.prefix))
        if found.embedded:
            raise UserError("window workers need a real Kafka: the embedded broker shares nothing")
    except (UserError, InvalidValue, BrokerUnreachable, TopicsUnusable) as error:
        print(json.dumps({"error": f"windows: {error}"}), flush=True)
        print(f"windows: {error}", file=sys.stderr)
        return 2
    collect_rarely()
    warm_up()
    app = make_app(bootstrap, given.prefix, keys, given.time_base)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def assigned(_app: faust.App, places: set[TP], **_more: object) -> None:
        print(json.dumps({"ready": True, "partitions": len(places)}), flush=True)

    app.on_partitions_assigned.connect(assigned, weak=False)
    worker = faust.Worker(app, loop=loop, loglevel=None, override_logging=False)
    worker.execute_from_commandline()
    return 0


if __name__ == "__main__":
    gc.freeze()  # Collections need not visit what the imports made.
    sys.exit(main())
