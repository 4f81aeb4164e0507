"""Folders and files of state and logs, readable only by the user of this process (0700, 0600).

They contain prompt lengths, addresses, keys of a run and engine output. An existing folder that
other users may read causes only a warning, because it may be shared on purpose.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

log = logging.getLogger(__name__)

_FOLDER, _FILE = 0o700, 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def private_folder(path: Path) -> None:
    """Create the folder `path` if it does not exist. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=_FOLDER)
    _warn_if_open(path)


def open_private(path: Path, mode: str) -> BinaryIO:
    """Open a file for writing; `mode` as in `open`, binary. Removes the permissions of other users
    from an existing file. Raises OSError."""
    return cast(BinaryIO, open(path, mode, opener=_opener))


def write_private(path: Path, data: bytes) -> None:
    """Write a whole file. Raises OSError."""
    with open_private(path, "wb") as file:
        file.write(data)


def _opener(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, _FILE)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & _OTHERS:
        with contextlib.suppress(OSError):  # fails if another user owns the file
            os.fchmod(descriptor, _FILE)
    return descriptor


@functools.cache
def _warn_if_open(path: Path) -> None:
    if path.stat().st_mode & _OTHERS:
        log.warning("%s: other users can read this folder; run chmod 700", path)
