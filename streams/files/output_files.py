"""Check early whether a command can write its output file."""

from __future__ import annotations

import os
from pathlib import Path

from streams.files.user_errors import UserError


def refuse_unwritable(path: Path) -> None:
    """UserError if `path` cannot be written.

    Call it before the command does its work. Later write errors are reported when they occur.
    """
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} does not exist")
    if path.is_dir():
        raise UserError(f"{path}: is a folder; expected the name of a file to write")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{path}: cannot be written (Permission denied)")
