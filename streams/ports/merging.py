"""The process that merges the telemetry, for status, metrics and `shoal doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Merger(StrEnum):
    """The process that merges the telemetry. WORKERS_LATE: this controller, because the window
    workers are late or absent."""

    WORKERS = "workers"
    CONTROLLER = "controller"
    WORKERS_LATE = "workers_late"


@dataclass(frozen=True, slots=True)
class Merging:
    """The present merger of the telemetry. late_s: real seconds for which window workers have been
    late or absent; 0 if they are in time or not used."""

    merger: Merger = Merger.CONTROLLER
    late_s: float = 0.0
