"""`shoal console`: the address of the console, with the token of this user for commands.

The page keeps the token for its browser tab and removes it from the address.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any
from urllib.parse import quote

from streams.cli.controller_client import add_url, status
from streams.files.keyfiles import console_token_file
from streams.health.tokens import OPERATOR_TOKEN, read_token


def add_parser(subparsers: Any) -> None:
    """Add `console` to the command line."""
    parser = subparsers.add_parser(
        "console",
        help="print the console's address, with your token for commands",
        description="Prints the address of the console. It ends in the token for commands: of this "
        f"user's `shoal up`, or ${OPERATOR_TOKEN}. Keep the address secret: it allows commands.",
    )
    add_url(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the address. UserError: no controller answers there."""
    status(args.url)
    token = _token(args.url)
    print(f"{args.url.rstrip('/')}/{f'#operator={quote(token, safe=str())}' if token else ''}")
    if not token:
        print(
            f"no token for commands is known here: set {OPERATOR_TOKEN}, or see shoal operator add",
            file=sys.stderr,
        )
    return 0


def _token(url: str) -> str:
    named = read_token(os.environ, OPERATOR_TOKEN).read()
    if named:
        return named
    try:
        return console_token_file(url).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
