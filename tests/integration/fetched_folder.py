"""Programs for tests, unpacked once by a script of the project into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
from pathlib import Path


def fetched(
    script: Path, variable: str, name: str
) -> tuple[Path, subprocess.CompletedProcess[bytes]]:
    """The folder that `script` fills, and the result of the script. Another script fills another
    folder.

    variable: environment variable that names a folder to use instead.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    content = hashlib.sha256(script.read_bytes()).hexdigest()
    folder = Path(os.environ.get(variable) or cache / "shoal" / f"{name}-{content[:12]}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return folder, subprocess.run([script, folder], capture_output=True, timeout=110)
