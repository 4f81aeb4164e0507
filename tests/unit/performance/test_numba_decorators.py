"""Machine code on disk is reused unless a kernel in it has changed."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from autoscaler.performance import numba_decorators as compiled_module

CALLEE = (
    "from autoscaler.performance.numba_decorators import {how}\n\n\n"
    "@{how}\ndef inner(x):\n    return x + {value}\n"
)
CALLER = (
    "from autoscaler.performance.numba_decorators import compiled\nfrom inner import inner\n\n\n"
    "@compiled\ndef outer(x):\n    return 2 * inner(x)\n"
)
ASK = "from outer import outer; print(outer(3), sum(outer.stats.cache_hits.values()))"


def answer(folder: Path) -> tuple[int, int]:
    """The result of a new process, and the number of kernels that it loads from disk."""
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


@pytest.mark.parametrize("how", ["compiled", "inlined"])
def test_a_changed_callee_is_compiled_into_its_callers_again(tmp_path: Path, how: str) -> None:
    (tmp_path / "inner.py").write_text(CALLEE.format(how=how, value=1))
    (tmp_path / "outer.py").write_text(CALLER)
    assert answer(tmp_path) == (8, 0)
    assert answer(tmp_path) == (8, 1)
    (tmp_path / "inner.py").write_text(CALLEE.format(how=how, value=2))
    assert answer(tmp_path) == (10, 0)


def test_a_changed_constant_of_another_folder_is_compiled_in_again(tmp_path: Path) -> None:
    """The constant is read through another constant, or through a kernel of another folder."""
    for folder in ("elsewhere", "near"):
        (tmp_path / folder).mkdir()
    (tmp_path / "elsewhere" / "given.py").write_text("WIDTH = 4\n")
    (tmp_path / "near" / "inner.py").write_text(
        "import numpy as np\nfrom autoscaler.performance.numba_decorators import compiled\n"
        "from elsewhere.given import WIDTH\n\nWIDTHS = np.array([2 * WIDTH])\n\n\n"
        "@compiled\ndef inner(x):\n    return below(x)\n\n\n"
        "@compiled\ndef below(x):\n    return x + WIDTHS[0]\n"
    )
    (tmp_path / "outer.py").write_text(CALLER.replace("from inner", "from near.inner"))
    assert answer(tmp_path) == (22, 0)
    assert answer(tmp_path) == (22, 1)
    (tmp_path / "elsewhere" / "given.py").write_text("WIDTH = 500\n")
    assert answer(tmp_path) == (2006, 0)


def test_the_stamp_of_every_kernel_covers_all_globals_that_it_reads() -> None:
    root = Path(compiled_module.__file__).parents[2]
    seen = 0
    for path in [path for top in ("autoscaler", "streams") for path in (root / top).rglob("*.py")]:
        if "performance.numba_decorators import" not in path.read_text():
            continue
        name = ".".join(path.relative_to(root).with_suffix("").parts)
        for kernel in vars(importlib.import_module(name)).values():
            function = getattr(kernel, "py_func", None)
            if function is None:
                continue
            seen += 1
            known = function.__globals__
            read = {one for one in function.__code__.co_names if one in known}
            read -= {one for one in read if known[one] is math or known[one] is np}
            assert read <= {*compiled_module.kernel_globals(function)}, function
    assert seen > 20


def test_kernels_run_without_a_writable_cache_folder(tmp_path: Path) -> None:
    """A file has the name of each cache folder, so no folder can be created, as on a read-only
    system.
    """
    (tmp_path / "inner.py").write_text(CALLEE.format(how="compiled", value=1))
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
