"""Who merges the telemetry: a fact for status, metrics and `shoal doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Merger(StrEnum):
    """Who merges the telemetry: window workers; this controller; or this controller because the
    workers are late or absent."""

    WORKERS = "workers"
    CONTROLLER = "controller"
    WORKERS_LATE = "workers_late"


@dataclass(frozen=True, slots=True)
class Merging:
    """Who merges the telemetry now. late_s: real seconds for which window workers have been late or
    absent; 0 if they are in time or not used."""

    merger: Merger = Merger.CONTROLLER
    late_s: float = 0.0
