"""The option --config of commands that need a shoal.yaml."""

from __future__ import annotations

import argparse
from pathlib import Path

from streams.files.yaml_tree import USUAL_NAME


def add_config(parser: argparse.ArgumentParser, kind: type[str] | type[Path] = Path) -> None:
    """The option --config; without it, the command reads ./shoal.yaml."""
    parser.add_argument(
        "--config",
        type=kind,
        default=kind(USUAL_NAME),
        metavar="FILE",
        help=f"the shoal.yaml (default ./{USUAL_NAME})",
    )
