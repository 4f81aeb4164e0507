"""Least squares over positive factors, robust to bad measurements.

The caller passes a function that computes the residuals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Factors = Mapping[str, float]
# Log-residuals of a parameter vector: ln(estimate / measured) for each measured figure.
Residuals = Callable[[Factors], Sequence[float]]

_STEP = 1e-4
_MAX_LOG_MOVE = 0.7
_ITERATIONS = 25
_DAMPING_START, _DAMPING_MAX = 1e-2, 1e6


def fit(
    start: Factors,
    residuals: Residuals,
    bounds: Mapping[str, tuple[float, float]],
    prior_weight: float,
) -> dict[str, float]:
    """The factors that minimise the residuals. Factors that the data does not determine stay near
    `start`. Method: Levenberg-Marquardt over the logarithms of the factors. Large residuals get
    less weight (towards least absolute deviations), so a few bad measurements do not distort the
    fit. prior_weight: weight of the penalty ln(factor / start)^2, relative to the square of one
    residual.
    """
    names = [name for name in start if name in bounds]
    low = np.array([math.log(bounds[n][0]) for n in names])
    high = np.array([math.log(bounds[n][1]) for n in names])
    origin = np.clip(np.array([math.log(max(start[n], 1e-9)) for n in names]), low, high)

    def evaluate(x: Floats) -> Floats:
        factors = {**start, **dict(zip(names, np.exp(x).tolist(), strict=True))}
        return np.asarray(residuals(factors), dtype=float)

    def cost(r: Floats, x: Floats) -> float:
        return float(_soft(r).sum() + 0.5 * prior_weight * ((x - origin) ** 2).sum())

    x = origin
    r = evaluate(x)
    best = cost(r, x)
    damping = _DAMPING_START
    for _ in range(_ITERATIONS):
        jacobian = np.empty((len(r), len(names)))
        for index in range(len(names)):
            moved = x.copy()
            moved[index] += _STEP
            jacobian[:, index] = (evaluate(moved) - r) / _STEP
        weights = 1.0 / np.sqrt(1.0 + (r / _SCALE) ** 2)
        gradient = jacobian.T @ (weights * r) + prior_weight * (x - origin)
        hessian = (jacobian.T * weights) @ jacobian + prior_weight * np.eye(len(names))
        improved = False
        while damping < _DAMPING_MAX:
            scaled = hessian + damping * np.diag(np.diag(hessian) + 1e-9)
            move = np.clip(-np.linalg.solve(scaled, gradient), -_MAX_LOG_MOVE, _MAX_LOG_MOVE)
            tried = np.clip(x + move, low, high)
            after = evaluate(tried)
            value = cost(after, tried)
            if value < best:
                improved = best - value > 1e-5 * best
                x, r, best = tried, after, value
                damping = max(damping / 4.0, 1e-6)
                break
            damping *= 4.0
        if not improved:
            break
    return {**start, **dict(zip(names, np.exp(x).tolist(), strict=True))}


# Residuals well below this value count as squares; larger ones count as absolute values.
_SCALE = 0.1


def _soft(r: Floats) -> Floats:
    value: Floats = _SCALE**2 * (np.sqrt(1.0 + (r / _SCALE) ** 2) - 1.0)
    return value
