"""Commands of an operator to a running controller: pause, resume, release, adopt, approve, reject.

Each command writes a record to `controls`, always with the operator's name and reason. The
controller acts on it in its next tick.
"""

from __future__ import annotations

import argparse
import getpass
from difflib import get_close_matches
from typing import Any

from autoscaler.explain.combo_labels import change_words
from streams.cli.publish import Broker, add_broker
from streams.cli.time_arguments import age_words
from streams.files import units
from streams.files.user_errors import UserError
from topics.controls import ALL_MODELS
from topics.records import Control, Decision
from topics.topic_table import CONTROLS, DECISIONS

_HELP = {
    "pause": "change nothing of a model, or of any, until it is resumed",
    "resume": "end a pause",
    "release": "hand a model back: its instances go on, Shoal changes nothing of it any more",
    "adopt": "take a released model over again, as it is declared",
    "approve": "carry out a proposal of mode approve",
    "reject": "drop a proposal of mode approve",
}


def add_parser(subparsers: Any) -> None:
    """Add the commands to the command line."""
    for name, words in _HELP.items():
        parser = subparsers.add_parser(name, help=words, description=words.capitalize() + ".")
        if name in ("approve", "reject"):
            parser.add_argument("proposal", type=_number, metavar="N", help="its number")
        elif name in ("pause", "resume"):
            parser.add_argument("model", nargs="?", default="", help="left out: see --all")
            parser.add_argument("--all", action="store_true", help="every model")
        else:
            parser.add_argument("model")
        if name == "pause":
            parser.add_argument(
                "--for", dest="lasting", metavar="TIME", help="it ends by itself after, as 2h"
            )
        parser.add_argument("--why", default="", required=needs_why(name), help="recorded with it")
        parser.add_argument("--who", default=_user(), help="default: your user name (%(default)s)")
        add_broker(parser)
        parser.set_defaults(run=run)


def needs_why(command: str) -> bool:
    """Whether the command must state a reason."""
    return command in ("pause", "release", "reject")


def run(args: argparse.Namespace) -> int:
    """Write the record. UserError: the model is unknown, the proposal is not open, or the broker
    does not answer."""
    if needs_why(args.command) and not args.why.strip():
        raise UserError("--why: '' is not allowed; allowed: the reason as text")
    broker = Broker.of(args)
    if args.command in ("approve", "reject"):
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
    kind = "pause" if args.command in ("pause", "resume") else "release"
    active = args.command in ("pause", "release")
    everything = getattr(args, "all", False)
    if everything and args.model:
        raise UserError(f"shoal {args.command}: name a model or --all, not both")
    if not everything and not args.model:
        raise UserError(f"shoal {args.command}: name a model, or --all")
    scope = ALL_MODELS if everything else args.model
    if active and not everything and broker.models and args.model not in broker.models:
        near = get_close_matches(args.model, broker.models, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"declared: {', '.join(broker.models)}"
        raise UserError(f"{args.model}: no model of this name; {hint}")
    until_ms = 0
    if getattr(args, "lasting", None):
        until_ms = broker.now_ms + int(units.named_duration_s("--for", args.lasting) * 1000)
    what = "every model" if everything else args.model
    if not active:
        known = {record.key: record for record in broker.last(CONTROLS)}
        before = known.get(f"{kind}/{scope}")
        if before is None or not before.active:
            raise UserError(f"{what}: not {'paused' if kind == 'pause' else 'released'} "
                            "by that name; see shoal status")  # fmt: skip
    record = Control(scope, kind, active, args.who, args.why, broker.now_ms, until_ms)
    words = {
        "pause": "paused; nothing is changed from the next tick on",
        "resume": "resumed",
        "release": "released; its instances go on, Shoal leaves them alone",
        "adopt": "managed again as declared",
    }[args.command]
    lasting = f", for {age_words((until_ms - broker.now_ms) / 1000.0)}" if until_ms else ""
    return record, f"{what}: {words}{lasting}"


def _verdict(args: argparse.Namespace, broker: Broker) -> tuple[Control, str]:
    decisions = [d for d in broker.last(DECISIONS) if isinstance(d, Decision)]
    found = next((d for d in reversed(decisions) if d.number == args.proposal), None)
    name = f"#{args.proposal}"
    told = {
        (c.leader_token, c.proposal): c for c in broker.last(CONTROLS) if c.kind == "verdict"
    }  # each leader numbers its proposals from 1
    if found is None or not found.expires_ms:
        waiting = (d for d in decisions if d.expires_ms > broker.now_ms)
        open_ = [str(d.number) for d in waiting if (d.leader_token, d.number) not in told][-5:]
        raise UserError(f"{name}: no such proposal; open: {', '.join(open_) or 'none'}")
    before = told.get((found.leader_token, found.number))
    if before is not None:
        what = "approved" if before.active else "rejected"
        why = f": {before.why}" if before.why else ""
        raise UserError(f"{name}: {what} already by {before.who}{why}")
    if broker.now_ms >= found.expires_ms:
        ago = age_words((broker.now_ms - found.expires_ms) / 1000.0)
        raise UserError(f"{name}: expired {ago} ago; the next one gets a number of its own")
    newer = [d for d in decisions if d.model == found.model and d.expires_ms > found.expires_ms]
    if newer:
        raise UserError(f"{name}: replaced by #{newer[-1].number}")
    record = Control(
        found.model, "verdict", args.command == "approve", args.who, args.why, broker.now_ms,
        proposal=found.number, leader_token=found.leader_token,
    )  # fmt: skip
    done = "approved" if record.active else "rejected"
    return record, f"{name} {found.model}: {change_words(found.change)}: {done}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container the user id may have no name
        return "unknown"
