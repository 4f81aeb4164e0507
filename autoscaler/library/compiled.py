"""The one place that names numba: a typed `compiled` decorator.

Owns how kernels are compiled (machine code kept on disk beside the module, no fast-math, so that
results do not depend on reassociated sums). Knows nothing of what they compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Kernel = TypeVar("Kernel", bound=Callable[..., Any])


def compiled(function: Kernel) -> Kernel:
    """Compile `function` at its first call; later processes load the machine code from disk."""
    return cast(Kernel, njit(cache=True)(function))
