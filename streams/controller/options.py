"""What people want to see of a controller, as options of a command line.

Owns these options for both of their commands: `shoal controller` hands them on to
`python -m streams.controller`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from streams.files.errors import UserError

MOST_RECORD_MIB = 1024


@dataclass(frozen=True, slots=True)
class Operated:
    """record: folder of the decision log, None for none, and its largest size in bytes."""

    record: Path | None = None
    record_bytes: int = MOST_RECORD_MIB << 20


def add_operated(parser: argparse.ArgumentParser, record: str) -> None:
    """Add them. record: the default folder of the decision log, "" for none."""
    parser.add_argument(
        "--record",
        default=record,
        metavar="FOLDER",
        help="keep observations and decisions here for `shoal replay`; '' for none "
        f"(default {record or 'none'})",
    )
    parser.add_argument(
        "--record-mib",
        type=int,
        default=MOST_RECORD_MIB,
        metavar="MIB",
        help="largest size of that folder; the oldest are removed (default %(default)s)",
    )


def operated_of(given: argparse.Namespace) -> Operated:
    """The options as a value. UserError: one of them is not allowed."""
    if not 1 <= given.record_mib <= 1 << 20:
        raise UserError(f"--record-mib {given.record_mib}: allowed: 1 to {1 << 20}")
    return Operated(
        record=Path(given.record) if given.record else None,
        record_bytes=given.record_mib << 20,
    )


def operated_argv(given: argparse.Namespace) -> tuple[str, ...]:
    """The options as they were given, for another command line."""
    operated_of(given)
    return "--record", given.record, "--record-mib", str(given.record_mib)
