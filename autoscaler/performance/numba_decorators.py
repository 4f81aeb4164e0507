"""Typed numba decorators, `compiled` and `inlined`.

Kernels compile without fast-math, so sums are never reassociated. The machine code is cached on
disk. Only this module imports numba.
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
    """Compile `function` at its first call. Later processes load the machine code from disk.

    The machine code of a kernel contains the kernels that it calls, even from other modules, and
    the values of globals. But numba considers it valid as long as the kernel's own file is
    unchanged. Therefore the stamp that numba compares is replaced by a hash. It covers all modules
    of the folder, the constants that the kernel's module has at this point, and the stamps of the
    called kernels. Without a writable folder, every process compiles the kernels again.
    """
    return _compile_cached(function, "never")


def inlined(function: Kernel) -> Kernel:
    """As `compiled`, but the function is inlined into each calling kernel. Use it for short
    formulas: passing ten arrays takes longer than reading one number of each."""
    return _compile_cached(function, "always")


def _compile_cached(function: Kernel, inline: str) -> Kernel:
    try:
        kernel = njit(cache=True, inline=inline)(function)
    except RuntimeError:  # raised by numba if it finds no writable folder
        return cast(Kernel, njit(inline=inline)(function))
    if _stamp_of(kernel):
        stamp = hashlib.sha256(_folder_stamp(Path(function.__code__.co_filename).parent).encode())
        for name, value in kernel_globals(function).items():
            stamp.update(name.encode() + b"\0" + value)
        cast(Any, kernel)._cache._cache_file._source_stamp = stamp.hexdigest()
    return cast(Kernel, kernel)


def kernel_globals(function: Callable[..., Any]) -> dict[str, bytes]:
    """Globals of the module of `function` that its machine code may contain: constants as JSON, and
    kernels as their stamps."""
    found = {}
    for name, value in function.__globals__.items():
        stamp = _stamp_of(value)
        if stamp:
            found[name] = stamp.encode()
        elif not name.startswith("__"):
            with suppress(TypeError):  # values that are not JSON are no constants of a kernel
                found[name] = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return found


def _stamp_of(kernel: object) -> str:
    """The stamp that numba compares to detect a changed kernel; empty without a cache on disk."""
    kept = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
    return str(getattr(kept, "_source_stamp", ""))


@lru_cache(maxsize=8)
def _folder_stamp(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
