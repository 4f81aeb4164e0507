"""`shoal operator`: the file of operators, with the hash of each token.

`add` prints the token once; only its hash is kept. A controller reads the file again when it
changes.
"""

from __future__ import annotations

import argparse
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from streams.files.user_errors import UserError
from streams.health.operators import (
    OPERATORS_FILE,
    RIGHTS,
    Operator,
    check_name,
    new_operator,
    read_operators,
)
from topics.error_text import error_text
from topics.storage.durable_files import replace_file


def add_parser(subparsers: Any) -> None:
    """Add `operator` to the command line."""
    parser = subparsers.add_parser(
        "operator",
        help="make and withdraw tokens of operators",
        description="Keeps the file of operators. A controller with "
        f"${OPERATORS_FILE} knows by the token who gives a command.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    adds = actions.add_parser("add", help="add an operator, and print the token once")
    adds.add_argument("name", help="recorded with each command, such as ann or ann@example.com")
    adds.add_argument(
        "--right", choices=RIGHTS, default=RIGHTS[-1], help="default: %(default)s, which may read"
    )
    adds.add_argument(
        "--proxy", action="store_true", help="make no token: a trusted proxy names this operator"
    )
    adds.add_argument("--replace", action="store_true", help="give a known operator a new token")
    removes = actions.add_parser("remove", help="withdraw an operator's token")
    removes.add_argument("name")
    lists = actions.add_parser("list", help="list the operators and their rights")
    for one in (adds, removes, lists):
        one.add_argument(
            "--file",
            type=Path,
            default=os.environ.get(OPERATORS_FILE) or None,
            help=f"the file of operators (default ${OPERATORS_FILE})",
        )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run one action. UserError: the file is invalid or cannot be written, or the name is not
    allowed."""
    if args.file is None:
        raise UserError(f"shoal operator {args.action}: name the --file, or set {OPERATORS_FILE}")
    path = Path(args.file)
    if args.action == "list":
        for one in read_operators(path).values():
            print(f"{one.name}  {one.right}{'' if one.salt else '  through the proxy'}")
        return 0
    check_name(args.name)
    with _changing(path) as known:
        if args.action == "remove":
            if args.name not in known:
                raise UserError(f"{args.name}: not in {path}; there: {', '.join(known) or 'none'}")
            del known[args.name]
            said = f"{args.name}: removed; the token is refused from now on"
        else:
            if args.name in known and not args.replace:
                raise UserError(f"{args.name}: is in {path} already; --replace makes a new token")
            made, said = new_operator(args.name, args.right)
            if args.proxy:
                made = Operator(args.name, args.right)
                said = f"{args.name}: added, without a token"
            known[args.name] = made
    print(said)
    return 0


@contextmanager
def _changing(path: Path) -> Iterator[dict[str, Operator]]:
    """The operators of a file, which are written back at the end. Two commands at once wait for
    each other. UserError: the file is invalid or cannot be written."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error_text(error)}") from None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        known = read_operators(path) if path.exists() else {}
        yield known
        head = "# Operators: name, right, salt and hash of the token. Made by `shoal operator`.\n"
        text = head + "".join(f"{one.line}\n" for one in known.values())
        replace_file(path, text.encode())
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or error_text(error)})"
        ) from None
    finally:
        os.close(folder)
