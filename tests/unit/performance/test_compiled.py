"""Machine code on disk is used again, and never when a kernel that it contains has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CALLEE = (
    "from autoscaler.performance.compiled import compiled\n\n\n"
    "@compiled\ndef inner(x):\n    return x + {}\n"
)
CALLER = (
    "from autoscaler.performance.compiled import compiled\nfrom inner import inner\n\n\n"
    "@compiled\ndef outer(x):\n    return 2 * inner(x)\n"
)
ASK = "from outer import outer; print(outer(3), sum(outer.stats.cache_hits.values()))"


def answer(folder: Path) -> tuple[int, int]:
    """What a fresh process computes, and how many kernels it loaded from disk."""
    paths = os.pathsep.join([str(folder), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", ASK],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    )
    value, hits = done.stdout.split()
    return int(value), int(hits)


def test_a_changed_callee_is_compiled_into_its_callers_again(tmp_path: Path) -> None:
    (tmp_path / "inner.py").write_text(CALLEE.format(1))
    (tmp_path / "outer.py").write_text(CALLER)
    assert answer(tmp_path) == (8, 0)
    assert answer(tmp_path) == (8, 1)
    (tmp_path / "inner.py").write_text(CALLEE.format(2))
    assert answer(tmp_path) == (10, 0)


def test_without_a_place_for_machine_code_kernels_still_run(tmp_path: Path) -> None:
    """Files stand where every such folder would be, as on a read-only system."""
    (tmp_path / "inner.py").write_text(CALLEE.format(1))
    (tmp_path / "outer.py").write_text(CALLER)
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    (tmp_path / "__pycache__").write_text("")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from outer import outer; print(outer(3), type(outer._cache).__name__)",
        ],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
            "NUMBA_CACHE_DIR": str(blocked / "cache"),
            "HOME": str(blocked),
            "XDG_CACHE_HOME": str(blocked),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.returncode) == ("8 NullCache", 0), done.stderr
