"""Array types of the planner and the optimizer."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[Any]
Bools: TypeAlias = NDArray[np.bool_]
