"""Write files that come from the code, or check that they are current."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def write_or_check(wanted: Mapping[Path, str], command: str, arguments: list[str]) -> int:
    """Write each outdated file. With `--check` in `arguments`, name it and write nothing.

    command: path of the script, for the message. Exit code: 0, or 1 if `--check` finds an outdated
    file.
    """
    stale = [
        path
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    if "--check" not in arguments:
        for path in stale:
            path.write_text(wanted[path], encoding="utf-8")
        return 0
    for path in stale:
        print(f"{path.relative_to(ROOT)} is out of date: run `python {command}`")
    return 1 if stale else 0
