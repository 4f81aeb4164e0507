"""Folders and files for state and logs, readable by the user of this process alone (0700, 0600).

They contain prompt lengths, addresses, keys of a run and engine output. If other users may read an
existing folder, only a warning is logged, because it may be shared on purpose.
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
    """Create `path` if it is missing. Raises OSError."""
    path.mkdir(parents=True, exist_ok=True, mode=_FOLDER)
    _warn_if_open(path)


def open_private(path: Path, mode: str) -> BinaryIO:
    """Open a binary file for writing; `mode` as for `open`. Raises OSError. For files that another
    process appends to; state is written with `topics.storage.durable_files`."""
    return cast(BinaryIO, open(path, mode, opener=private_descriptor))


def private_descriptor(path: str | Path, flags: int) -> int:
    """Open `path` with `flags` of `os.open`.

    If other users could read an existing file of this user, its permissions are restricted. Raises
    OSError.
    """
    descriptor = os.open(path, flags, _FILE)
    if stat.S_IMODE(os.fstat(descriptor).st_mode) & _OTHERS:
        with contextlib.suppress(OSError):  # The file belongs to another user.
            os.fchmod(descriptor, _FILE)
    return descriptor


@functools.cache
def _warn_if_open(path: Path) -> None:
    if path.stat().st_mode & _OTHERS:
        log.warning("%s: others may look into this folder; chmod 700 is advised", path)
