"""Commands of an operator to a running controller: pause, freeze, release, approve and so on.

Each command writes a record to `controls`, always with the operator's name and reason. The
controller acts on it in its next tick.
"""

from __future__ import annotations

import argparse
import getpass
from typing import Any

from streams.cli.publish import Broker, add_broker
from streams.files.user_errors import UserError
from streams.operator_commands import (
    COMMANDS,
    VERDICTS,
    Signed,
    control_record,
    needs_why,
    refuse_silence,
    verdict_record,
)
from topics.controls import ALL_MODELS
from topics.records import Control, Decision
from topics.topic_table import CONTROLS, DECISIONS

_HELP = {
    "pause": "stop all changes of a model, or of every model, until it is resumed",
    "resume": "end a pause",
    "freeze": "stop removals, moves and exchanges of a model, or of every model; additions "
    "continue",
    "unfreeze": "end a freeze",
    "release": "stop managing a model; its instances keep running",
    "adopt": "manage a released model again, as it is declared",
    "approve": "carry out a proposal of mode approve",
    "reject": "drop a proposal of mode approve",
}


def add_parser(subparsers: Any) -> None:
    """Add the commands to the command line."""
    for name, words in _HELP.items():
        parser = subparsers.add_parser(name, help=words, description=words.capitalize() + ".")
        if name in VERDICTS:
            parser.add_argument("proposal", type=_number, metavar="N", help="its number")
        elif name in ("pause", "resume", "freeze", "unfreeze"):
            parser.add_argument("model", nargs="?", default="", help="left out: see --all")
            parser.add_argument("--all", action="store_true", help="every model")
        else:
            parser.add_argument("model")
        if name in ("pause", "freeze"):
            parser.add_argument(
                "--for", dest="lasting", metavar="TIME", help="end after this time, such as 2h"
            )
        parser.add_argument("--why", default="", required=needs_why(name), help="recorded with it")
        parser.add_argument("--who", default=_user(), help="default: your user name (%(default)s)")
        add_broker(parser)
        parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the record. UserError: the model is unknown, the proposal is not open, or the broker
    does not answer."""
    refuse_silence(args.command, args.why, "--why")
    broker = Broker.of(args)
    if args.command in VERDICTS:
        record, said = _verdict(args, broker)
    else:
        record, said = _control(args, broker)
    broker.publish([record])
    print(said)
    return 0


def _number(text: str) -> int:
    """The number of a proposal from `text`, with or without the displayed `#` (`#12`)."""
    digits = text.removeprefix("#")
    if not digits.isascii() or not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a number from 1")
    return int(digits)


def _control(args: argparse.Namespace, broker: Broker) -> tuple[Control, str]:
    everything = getattr(args, "all", False)
    if everything and args.model:
        raise UserError(f"shoal {args.command}: name a model or --all, not both")
    if not everything and not args.model:
        raise UserError(f"shoal {args.command}: name a model, or --all")
    scope = ALL_MODELS if everything else args.model
    known = () if COMMANDS[args.command].active else broker.last(CONTROLS)
    by = Signed(args.who, args.why, broker.now_ms)
    lasting = getattr(args, "lasting", None) or ""
    return control_record(args.command, scope, by, lasting, broker.models, known)


def _verdict(args: argparse.Namespace, broker: Broker) -> tuple[Control, str]:
    decisions = [d for d in broker.last(DECISIONS) if isinstance(d, Decision)]
    by = Signed(args.who, args.why, broker.now_ms)
    return verdict_record(args.command, args.proposal, by, decisions, broker.last(CONTROLS))


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # In a container the user id may have no name.
        return "unknown"
