"""`shoal rollout`: show, pause, resume or take back the rollout of a changed version."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streams import text_layout
from streams.cli import controls
from streams.cli.controller_client import add_url, status
from streams.cli.json_output import show_json
from streams.cli.publish import add_broker
from streams.cli.status import rollout_text
from streams.files.user_errors import UserError
from streams.operator_commands import needs_why
from streams.text_layout import Line, labelled, wrapped

_HELP = {
    "pause": "begin no further wave; a wave in progress ends",
    "resume": "continue a rollout, or try a version again that was taken back",
    "back": "return to the former version",
}


def add_parser(subparsers: Any) -> None:
    """Add `rollout` and its commands to the command line."""
    parser = subparsers.add_parser(
        "rollout",
        help="show, pause, resume or take back rollouts",
        description="A changed engine, image, argument, source, weight or adapter of a model "
        "replaces its instances in waves.",
    )
    commands = parser.add_subparsers(dest="action", required=True, metavar="COMMAND")
    show = commands.add_parser("status", help="show the rollout of each model")
    show.add_argument("model", nargs="?", default="", help="only this model")
    show.add_argument("--json", action="store_true", help="print JSON")
    add_url(show)
    show.set_defaults(run=show_status)
    for name, words in _HELP.items():
        command = f"rollout-{name}"
        one = commands.add_parser(name, help=words, description=words.capitalize() + ".")
        one.add_argument("model", nargs="?", default="", help="left out: see --all")
        one.add_argument("--all", action="store_true", help="every model")
        one.add_argument("--why", default="", required=needs_why(command), help="recorded with it")
        add_broker(one, "as for shoal pause")
        one.set_defaults(run=controls.run, command=command)


def show_status(args: argparse.Namespace) -> int:
    """Print the rollouts. Exit code 0. UserError: the model is unknown."""
    models = status(args.url).get("models", ())
    if args.model and args.model not in {one["model"] for one in models}:
        known = ", ".join(one["model"] for one in models)
        raise UserError(f"{args.model}: no model of this name; declared: {known}")
    shown = [one for one in models if args.model in ("", one["model"])]
    if args.json:
        show_json({one["model"]: one.get("rollout") for one in shown})
    else:
        text_layout.show([], lines(shown))
    return 0


def lines(models: Sequence[Mapping[str, Any]]) -> Iterator[Line]:
    """One paragraph per model with a rollout, or with a version that was taken back."""
    found = [one for one in models if one.get("rollout") is not None]
    if not found:
        yield from wrapped("No rollout; all instances run the declared version.", indent="")
    for one in found:
        yield from labelled(one["model"], [rollout_text(one["rollout"])])
