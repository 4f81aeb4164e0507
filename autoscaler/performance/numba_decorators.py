"""The one place that names numba: typed decorators, `compiled` and `inlined`.

Owns how kernels are compiled: no fast-math, so that sums are never reassociated, and the machine
code kept on disk. Knows nothing of what they compute.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import orjson
from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile `function` at its first call; later processes load the machine code from disk.

    Kernels call kernels of other modules, whose code becomes part of theirs, and so do the values
    of the globals that they read. But numba only looks at a kernel's own file to see whether its
    machine code is still good. So the stamp that it compares is replaced by a hash of all modules
    of the folder, of the constants that the kernel's module has so far, wherever they are from,
    and of the stamps of the kernels there. Where nothing can be kept on disk, every process
    compiles for itself.
    """
    return _kept(function, "never")


def inlined(function: Kernel) -> Kernel:
    """As `compiled`, and its code becomes that of each kernel that calls it: to hand over ten
    arrays takes longer than most formulas that read one number of each."""
    return _kept(function, "always")


def _kept(function: Kernel, inline: str) -> Kernel:
    try:
        kernel = njit(cache=True, inline=inline)(function)
    except RuntimeError:  # numba found no folder that it may write to
        return cast(Kernel, njit(inline=inline)(function))
    if _stamp_of(kernel):
        stamp = hashlib.sha256(_folder_stamp(Path(function.__code__.co_filename).parent).encode())
        for name, value in constants(function).items():
            stamp.update(name.encode() + b"\0" + value)
        cast(Any, kernel)._cache._cache_file._source_stamp = stamp.hexdigest()
    return cast(Kernel, kernel)


def constants(function: Callable[..., Any]) -> dict[str, bytes]:
    """The globals of the module of `function` that its machine code may contain: constants as
    JSON, and kernels as their stamps."""
    found = {}
    for name, value in function.__globals__.items():
        stamp = _stamp_of(value)
        if stamp:
            found[name] = stamp.encode()
        elif not name.startswith("__"):
            with suppress(TypeError):  # nothing that a kernel could read
                found[name] = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return found


def _stamp_of(kernel: object) -> str:
    """What numba compares to see whether the kernel has changed; empty where it keeps nothing."""
    kept = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    return str(getattr(kept, "_source_stamp", ""))


@lru_cache(maxsize=8)
def _folder_stamp(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
