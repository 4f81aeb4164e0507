"""The one place that names numba: a typed `compiled` decorator.

Owns how kernels are compiled: no fast-math, so that sums are never reassociated, and the machine
code kept on disk. Knows nothing of what they compute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile `function` at its first call; later processes load the machine code from disk.

    Kernels call kernels of neighbouring modules, whose code becomes part of theirs, but numba only
    looks at a kernel's own file to see whether its machine code is still good. So the stamp that
    it compares is replaced by a hash of all modules of the folder. Where nothing can be kept on
    disk, every process compiles for itself.
    """
    try:
        kernel = njit(cache=True)(function)
    except RuntimeError:  # numba found no folder that it may write to
        return cast(Kernel, njit(function))
    kept: Any = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    if hasattr(kept, "_source_stamp"):
        kept._source_stamp = _folder_stamp(str(Path(function.__code__.co_filename).parent))
    return cast(Kernel, kernel)


@lru_cache(maxsize=8)
def _folder_stamp(folder: str) -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(folder).glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
