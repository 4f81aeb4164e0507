"""All ways to look ahead, listed once."""

from __future__ import annotations

from autoscaler.estimate.forecast.forecaster import Strategy
from autoscaler.estimate.forecast.last_value import Last
from autoscaler.estimate.forecast.seasonal_naive import Seasonal
from autoscaler.estimate.forecast.smoothing import Smoothing

LAST = Last()


def strategies(bin_s: int = 60) -> tuple[Strategy, ...]:
    """Every strategy, for bins of `bin_s` seconds; `LAST` first."""
    seasons = [Seasonal(s // bin_s, label) for s, label in ((3600, "1 h"), (86_400, "1 d"))]
    return (
        LAST,
        *(season for season in seasons if season.period > 1),
        *(Smoothing(alpha) for alpha in (0.1, 0.25, 0.5)),
    )


def of_name(name: str) -> Strategy | None:
    """The strategy for minutes called `name`."""
    return next((one for one in strategies() if one.name == name), None)
