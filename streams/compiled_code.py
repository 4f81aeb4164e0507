"""Compiled code that an image brings along, so that no new pod compiles.

Numba uses a folder only if it can write there, and the root of the image is read-only. So the files
are copied to the folder of NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

SOURCE = "SHOAL_COMPILED_CODE"
"""Variable with the folder of the files; an image sets it."""


def provide() -> None:
    """Copy the files that NUMBA_CACHE_DIR lacks. Without them, or if they cannot be copied, the
    first use of the code compiles it."""
    source, target = os.environ.get(SOURCE, ""), os.environ.get("NUMBA_CACHE_DIR", "")
    if not source or not target:
        return
    try:
        # Index files come last, because they name the others.
        for file in sorted(Path(source).rglob("*.nb?"), key=lambda one: one.suffix == ".nbi"):
            _copy(file, Path(target) / file.relative_to(source))
    except OSError:
        return


def _copy(file: Path, target: Path) -> None:
    """Several processes may copy at once, so a file appears whole or not at all."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    shutil.copyfile(file, part)
    part.replace(target)
