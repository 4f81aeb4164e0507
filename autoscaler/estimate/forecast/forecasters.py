"""The list of all forecasters."""

from __future__ import annotations

from autoscaler.estimate.forecast.forecaster import Forecaster
from autoscaler.estimate.forecast.last_value import LastValue
from autoscaler.estimate.forecast.seasonal_naive import SeasonalNaive
from autoscaler.estimate.forecast.smoothing import DoubleSmoothing

LAST_VALUE = LastValue()


def forecasters(bin_s: int = 60) -> tuple[Forecaster, ...]:
    """All forecasters for bins of `bin_s` seconds. The first is `LAST_VALUE`."""
    seasons = [SeasonalNaive(s // bin_s, label) for s, label in ((3600, "1 h"), (86_400, "1 d"))]
    return (
        LAST_VALUE,
        *(season for season in seasons if season.period > 1),
        *(DoubleSmoothing(alpha) for alpha in (0.1, 0.25, 0.5)),
    )


def forecaster_by_name(name: str) -> Forecaster | None:
    """The forecaster called `name`, for bins of a minute; None if there is none."""
    return next((one for one in forecasters() if one.name == name), None)
