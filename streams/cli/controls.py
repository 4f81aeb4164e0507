"""Commands of an operator to a running controller: pause, freeze, release, approve and so on.

With an operator's token, a command goes to the controller, which knows the name of the token.
Without one, it is written to the topic `controls`, signed with the operator's key, under the name
of the account. The order of the topic decides which of two commands was first.
"""

from __future__ import annotations

import argparse
import getpass
import os
from typing import Any

from streams.cli.controller_client import send
from streams.cli.publish import Broker, add_broker
from streams.files import units
from streams.files.user_errors import UserError
from streams.health.tokens import OPERATOR_TOKEN, read_token
from streams.operator_commands import (
    VERDICTS,
    Signed,
    control_record,
    needs_why,
    new_command_id,
    refuse_silence,
    taken,
    verdict_record,
)
from topics.controls import ALL_MODELS, in_force_commands
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


_ENDS = "end after this time, such as 2h"
_LASTING = {
    "pause": _ENDS,
    "freeze": _ENDS,
    "approve": "accept further changes of the model unasked for this time, such as 30m",
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
        if name in _LASTING:
            parser.add_argument("--for", dest="lasting", metavar="TIME", help=_LASTING[name])
        parser.add_argument("--why", default="", required=needs_why(name), help="recorded with it")
        add_broker(parser, "the controller at --url takes the command if $SHOAL_OPERATOR_TOKEN or "
                   "$SHOAL_OPERATOR_TOKEN_FILE is set, and else names the broker")  # fmt: skip
        parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Give the command. UserError: the model is unknown, the proposal is not open, another command
    was first, or the controller or broker does not answer."""
    refuse_silence(args.command, args.why, "--why")
    if getattr(args, "lasting", None):
        units.named_duration_s("--for", args.lasting)  # a bad value is refused before the request
    token = read_token(os.environ, OPERATOR_TOKEN).read()
    if token and not args.broker:
        print(send(args.url, _body(args), token))
        return 0
    broker = Broker.of(args)
    if args.command in VERDICTS:
        record, said = _verdict(args, broker)
    else:
        record, said = _control(args, broker)
    broker.publish([record], partition=0)
    # The topic's order decides, so read the command back.
    in_force = in_force_commands(broker.last(CONTROLS)).get(record.key, record)
    if in_force.command_id != record.command_id:
        raise taken(record, in_force, broker.now_ms)
    print(said)
    return 0


def _body(args: argparse.Namespace) -> dict[str, Any]:
    """The command as the body of POST /v1/controls."""
    lasting = getattr(args, "lasting", None) or ""
    asked = {"command": args.command, "why": args.why, "id": new_command_id()}
    if args.command in VERDICTS:
        return {**asked, "proposal": args.proposal, "for": lasting}
    return {**asked, "model": _scope(args), "for": lasting}


def _number(text: str) -> int:
    """The number of a proposal from `text`, with or without the displayed `#` (`#12`)."""
    digits = text.removeprefix("#")
    if not digits.isascii() or not digits.isdigit() or int(digits) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a number from 1")
    return int(digits)


def _scope(args: argparse.Namespace) -> str:
    """The model of the command, or all models."""
    everything = getattr(args, "all", False)
    command = args.command.replace("rollout-", "rollout ")
    if everything and args.model:
        raise UserError(f"shoal {command}: name a model or --all, not both")
    if not everything and not args.model:
        raise UserError(f"shoal {command}: name a model, or --all")
    return ALL_MODELS if everything else str(args.model)


def _control(args: argparse.Namespace, broker: Broker) -> tuple[Control, str]:
    scope = _scope(args)
    in_force = in_force_commands(broker.last(CONTROLS))
    lasting = getattr(args, "lasting", None) or ""
    return control_record(
        args.command, scope, _signed(args, broker), lasting, broker.models, in_force.values()
    )


def _verdict(args: argparse.Namespace, broker: Broker) -> tuple[Control, str]:
    decisions = [d for d in broker.last(DECISIONS) if isinstance(d, Decision)]
    in_force = in_force_commands(broker.last(CONTROLS))
    by = _signed(args, broker)
    lasting = getattr(args, "lasting", None) or ""
    return verdict_record(
        args.command, args.proposal, by, decisions, in_force.values(), lasting=lasting
    )


def _signed(args: argparse.Namespace, broker: Broker) -> Signed:
    return Signed(_user(), args.why, broker.now_ms, new_command_id(), is_person=True)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # In a container the user id may have no name.
        return "unknown"
