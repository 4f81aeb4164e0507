"""The `shoal` command: runs a subcommand and prints its errors as one line.

Exit codes: 0 success, 1 internal error or failed check, 2 bad input, 3 demand left unserved
(`plan`), 130 after Ctrl-C, 143 after SIGTERM. The module of a subcommand is imported only when it
is used, because planning imports a compiler and `--help` should not wait for that.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib.metadata import version
from typing import Any, NoReturn

from autoscaler.domain.validation import InvalidValue
from streams.files.user_errors import UserError
from streams.terminal import guarded_output

COMMANDS: dict[str, tuple[str, str]] = {
    "up": ("streams.cli.up", "run the whole loop on this machine, with simulated engines"),
    "plan": ("streams.cli.plan", "plan the fleet, with its cost and the reasons"),
    "diff": ("streams.cli.diff", "compare the running fleet with the plan"),
    "apply": ("streams.cli.apply", "declare the models of a shoal.yaml to a running controller"),
    "config": ("streams.cli.config", "check a shoal.yaml, print its schema, or write a first one"),
    "models": ("streams.cli.catalogue", "list the known models, with the source of each fact"),
    "gpus": ("streams.cli.catalogue", "list the known GPUs, with the source of each fact"),
    "workload": ("streams.cli.workload", "describe the requests of a recorded trace"),
    "status": ("streams.cli.status", "show who leads, the age of the data, and every model"),
    "explain": ("streams.cli.explain", "explain the last decision on a model"),
    "doctor": ("streams.cli.doctor", "find faults, and say how to correct each"),
    "console": ("streams.cli.console", "print the console's address, with your token for commands"),
    "notify": ("streams.cli.notify", "send messages about broken promises and proposals"),
    "pause": ("streams.cli.controls", "stop all changes of a model, or of every model"),
    "resume": ("streams.cli.controls", "end a pause"),
    "freeze": ("streams.cli.controls", "stop removals of a model, or of every model"),
    "unfreeze": ("streams.cli.controls", "end a freeze"),
    "approve": ("streams.cli.controls", "carry out a proposal of mode approve"),
    "reject": ("streams.cli.controls", "drop a proposal of mode approve"),
    "release": ("streams.cli.controls", "stop managing a model; its instances keep running"),
    "adopt": ("streams.cli.controls", "manage a released model again"),
    "rollout": ("streams.cli.rollout", "show, pause, resume or take back rollouts"),
    "operator": ("streams.cli.operator", "make and withdraw tokens of operators"),
    "keys": ("streams.cli.keys", "make, derive and rotate the keys that sign records"),
    "feed": ("streams.cli.feed", "publish node prices or availability from a file or URL"),
    "replay": ("streams.cli.replay", "run recorded decisions again, also under another policy"),
    "log": ("streams.cli.log", "check that a decision log is complete and unchanged"),
    "backtest": ("streams.cli.backtest", "compare policies on a recorded trace"),
    "library": ("streams.cli.library", "build or show templates of instances over several nodes"),
    "profile": ("streams.cli.profile", "measure your engines, or judge the performance model"),
    "windows": ("streams.cli.run_part", "merge telemetry in a process of its own (large fleets)"),
    "controller": ("streams.cli.run_part", "the control plane: reads telemetry, decides and plans"),
    "executor": ("streams.cli.run_executor", "the agent on a GPU node: starts and drains engines"),
    "gateway": ("streams.cli.run_part", "the OpenAI-compatible front of the engines"),
    "single": ("streams.cli.single", "broker, controller, gateway, executor as one process tree"),
    "kubernetes": ("streams.cli.kubernetes", "show the GPU nodes, servers and prices of a cluster"),
    "completion": ("streams.cli.completion", "shell code that completes commands and options"),
}


_FIRST_STEPS = """first steps:
  shoal up                              see it work on this machine
  shoal config init                     write a shoal.yaml of your own
  shoal plan --config shoal.yaml        plan it
  shoal controller --config shoal.yaml  recommend changes of what you run
"""


class Parser(argparse.ArgumentParser):
    """An argparse parser whose errors are one line: the fault, and the command that prints the
    help."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message} (see {self.prog} --help)\n")
        raise SystemExit(2)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse `args`; an unknown option ends the process with the most similar option."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            command = _command(self, parsed)
            command.error(_unknown_arguments(command, unknown))
        return parsed


def main(argv: Sequence[str] | None = None, imported: Callable[[], object] = lambda: None) -> int:
    """Run `shoal` and return the exit code. imported: called after the import of the command's
    modules.
    """
    with guarded_output():
        return _run(argv, imported)


def _run(argv: Sequence[str] | None, imported: Callable[[], object]) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(
        prog="shoal",
        description="Keeps a fleet of mixed GPUs at the lowest cost "
        "that meets every model's latency SLO.",
        epilog=_FIRST_STEPS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"shoal {version('shoal')}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    completing = "_ARGCOMPLETE" in os.environ
    wanted = _first_word() if completing else arguments[0] if arguments else ""
    if wanted in COMMANDS:
        try:
            importlib.import_module(COMMANDS[wanted][0]).add_parser(subparsers)
        except InvalidValue as error:  # an extension cannot be loaded
            sys.stderr.write(f"shoal: {error}\n")
            return 2
    else:
        if wanted and not wanted.startswith("-") and not completing:
            near = get_close_matches(wanted, COMMANDS, n=1)
            hint = f"did you mean {near[0]}?" if near else "one of " + ", ".join(COMMANDS)
            sys.stderr.write(f"shoal: unknown command {wanted!r}; {hint}\n")
            return 2
        for name, (_, summary) in COMMANDS.items():
            subparsers.add_parser(name, help=summary)
    if completing:
        importlib.import_module("argcomplete").autocomplete(parser)
    imported()
    try:
        args = parser.parse_args(arguments)
        if not args.command:
            parser.print_help()
            return 0
        code: int = args.run(args)
        return code
    except (UserError, InvalidValue) as error:
        sys.stderr.write(f"shoal: {error}\n")
        return 2
    except BrokenPipeError:
        return 0
    except KeyboardInterrupt:
        return 130


def _command(
    parser: argparse.ArgumentParser, parsed: argparse.Namespace
) -> argparse.ArgumentParser:
    """The parser of the command in `parsed`; `parser` itself without a command."""
    commands: argparse.ArgumentParser | None = None
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands = action.choices.get(getattr(parsed, action.dest, None) or "")
    return commands or parser


def _unknown_arguments(command: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    """The error about arguments that `command` does not have, with the most similar option."""
    first = unknown[0].partition("=")[0]
    near = get_close_matches(first, _options(command), n=1) if first.startswith("-") else []
    what = "option" if first.startswith("-") else "argument"
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"unknown {what} {first}{hint}"


def _options(command: argparse.ArgumentParser) -> list[str]:
    """All options of `command` and of its actions."""
    found: list[str] = []
    for action in command._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            found += [option for part in action.choices.values() for option in _options(part)]
    return found


def _first_word() -> str:
    """The subcommand on the line that a shell wants to complete; "" if there is none so far."""
    try:
        words = shlex.split(os.environ.get("COMP_LINE", ""))
    except ValueError:  # an unclosed quotation mark
        return ""
    return words[1] if len(words) > 1 else ""


if __name__ == "__main__":
    sys.exit(main())
