"""`shoal feed prices|availability`: publish prices or the availability of nodes.

A file or URL is read once, or repeatedly with --follow. If an entry is invalid, the whole reading
is refused. The last valid reading then stays in force, and `shoal status` shows its age.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from streams.cli.publish import Broker, add_broker
from streams.files import units
from streams.files.currencies import RATE_HELP, parse_rates
from streams.files.feed_files import KINDS, read_feed
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError, first_line, without_login
from topics.supply import Availability, Price

_MOST_BYTES = 64 * 1024 * 1024
_TIMEOUT_S = 10.0


def add_parser(subparsers: Any) -> None:
    """Add `feed` to the command line."""
    parser = subparsers.add_parser(
        "feed",
        help="publish node prices or availability from a file or URL",
        description="Reads `region/pool/market: number` as YAML or JSON (USD per node and hour, or "
        "available nodes), or a price list of a cloud, and publishes it. The controller ignores "
        "implausible jumps.",
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--from", dest="source", required=True, metavar="FILE|URL")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="for a price list: the shoal.yaml whose pools have its instance types (default: the "
        "cloud's names, such as us-east-1/g6.xlarge/spot)",
    )
    parser.add_argument(
        "--rate", action="append", default=[], metavar="CURRENCY=USD", help=RATE_HELP
    )
    parser.add_argument("--follow", action="store_true", help="read it again and again")
    parser.add_argument(
        "--every", default="30s", metavar="TIME", help="with --follow (%(default)s)"
    )
    add_broker(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Publish. With --follow, report each failed reading and continue until interrupted."""
    rates = parse_rates(args.rate)
    every_s = units.named_duration_s("--every", args.every)
    while True:
        try:
            broker = Broker.of(args)
            instances = load_config(args.config).instances if args.config else None
            raw = fetch(args.source)
            records = read_feed(args.kind, raw, args.source, broker.now_ms, instances, rates)
            broker.publish(records)
            print(f"{args.kind}: {published_text(records, broker.pools)}", flush=True)
        except UserError as error:
            if not args.follow:
                raise
            sys.stderr.write(f"shoal: {error}; the last good reading stays in force\n")
        if not args.follow:
            return 0
        time.sleep(every_s)


def published_text(records: Sequence[Price] | Sequence[Availability], pools: Sequence[str]) -> str:
    """Text with the number of published pools, and the pools among them that the controller does
    not declare.

    pools: the pools of the controller.
    """
    count = len(records)
    words = f"{count} pool{'' if count == 1 else 's'} published"
    unknown = sorted({one.pool for one in records} - set(pools)) if pools else []
    return f"{words}; not declared, so without effect: {', '.join(unknown)}" if unknown else words


def fetch(source: str) -> bytes:
    """The bytes of the file or URL. UserError: the source cannot be read or is too large."""
    try:
        if source.startswith(("http://", "https://")):
            if without_login(source) != source:
                raise UserError(f"--from {without_login(source)}: a user and password are not sent")
            with urllib.request.urlopen(source, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                data: bytes = answer.read(_MOST_BYTES + 1)
                if answer.length and len(data) <= _MOST_BYTES:
                    raise IncompleteRead(data, answer.length)  # read(n) raises no error
        else:
            with Path(source).open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError, HTTPException) as error:
        raise UserError(f"--from {source}: cannot be read: {_why(error)}") from None
    if len(data) > _MOST_BYTES:
        raise UserError(f"--from {source}: more than {_MOST_BYTES} bytes")
    return data


def _why(error: Exception) -> str:
    """The cause of `error` in one line, without the prefix that Python adds."""
    if isinstance(error, URLError) and not isinstance(error, HTTPError):
        reason = error.reason
        return getattr(reason, "strerror", None) or str(reason)
    if isinstance(error, OSError) and not isinstance(error, HTTPError) and error.strerror:
        return error.strerror
    return first_line(error)
