"""The one place of this package that names numba: a typed `compiled` decorator.

Owns how kernels are compiled: no fast-math, machine code kept on disk where a folder for it can be
written. Knows nothing of what they compute. A kernel may call only kernels of its own file: numba
looks at no other file to see whether kept code is still good.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile `function` at its first call; later processes load the machine code from disk."""
    try:
        return cast(Kernel, njit(cache=True)(function))
    except RuntimeError:  # numba found no folder that it may write to
        return cast(Kernel, njit(function))
