"""`shoal completion SHELL`: print a script that completes `shoal` commands in a shell."""

from __future__ import annotations

import argparse
from typing import Any

from argcomplete.shell_integration import shellcode

SHELLS = ("bash", "zsh", "fish")


def add_parser(subparsers: Any) -> None:
    """Add `completion` to the command line."""
    parser = subparsers.add_parser(
        "completion",
        help="shell code that completes commands, options and files",
        description='Prints shell code. bash and zsh: eval "$(shoal completion bash)" in your '
        "profile; fish: shoal completion fish | source.",
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(shellcode(["shoal"], shell=args.shell))
    return 0
