"""Gateways and their boots (starts of the process): deduplication of records, and the newest report
of each gateway. Maps models, gateways and boots to array indices.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autoscaler.estimate.duplicates import AppliedSequences
from autoscaler.estimate.window_stats import GatewayReport
from autoscaler.performance.numba_decorators import compiled
from topics.telemetry import COUNTS
from topics.telemetry_columns import IN_FLIGHT, LEAVING, ROUTE_GENERATION, SourceName

Indices = NDArray[np.int64]

_ARRIVALS, _COMPLETIONS = COUNTS.index("arrivals"), COUNTS.index("completions")
MOST_BOOTS_PER_MODEL = 2_000
"""Maximum number of registered boots of one model, which limits memory."""
_NEVER = -(2**62)
"""Time in ms before every other time."""
_MODEL, _ROW, _NEWEST_MS = range(3)  # columns of a boot's row
_BOOT, _REPORTED_MS, _TRAFFIC_MS, _IN_FLIGHT, _GENERATION, _LEFT = range(
    6
)  # columns of a gateway's row
_NO_REPORT = (-1, _NEVER, 0, 0, 0, 0)


class _Refused(AppliedSequences):
    """The producer of records that are not counted, because their model has too many boots."""

    def is_new(self, sequence: int) -> bool:
        return False


REFUSED = _Refused(boot_number=-1)


class GatewayRegistry:
    """Gateways by model, and their boots, which produce the records.

    Model indices start at 1 and are reused after a model is released; index 0 stands for no model.
    """

    def __init__(self) -> None:
        self.models: dict[str, int] = {}
        self._producers: dict[SourceName, AppliedSequences] = {}
        self._boots_of: Counter[str] = Counter()  # registered boots by model
        self._boots = np.zeros((16, 3), np.int64)
        self._names: list[SourceName] = []
        self._reports = np.zeros((16, 6), np.int64)
        self._rows: dict[tuple[str, str], int] = {}
        # Free indices of boots, of gateways and of models.
        self._free: tuple[list[int], list[int], list[int]] = [], [], []
        self._sorted_rows: Indices | None = None  # gateway rows, by model and name

    @property
    def index_limit(self) -> int:
        """A number above all model indices."""
        return len(self.models) + len(self._free[2]) + 1

    def applied_sequences(self, names: Sequence[SourceName]) -> list[AppliedSequences]:
        """The applied sequence numbers of each producer in `names`; new producers are registered,
        or get REFUSED if their model has MOST_BOOTS_PER_MODEL."""
        producers = self._producers
        return [producers.get(name) or self._register(name) for name in names]

    def boot_count(self, model: str) -> int:
        """Number of boots that are registered for `model`."""
        return self._boots_of[model]

    def models_of_boots(self, boots: Indices) -> Indices:
        """The model index of each boot."""
        found: Indices = self._boots[boots, _MODEL]
        return found

    def note_newest(self, boots: Indices, ends_ms: Indices) -> None:
        """Raise the newest event times of `boots` to `ends_ms`."""
        _note_newest(self._boots, boots, ends_ms)

    def update_reports(self, boots: Indices, ends_ms: Indices, numbers: Indices) -> None:
        """Make these records the newest reports of their gateways, except if a newer report exists.

        numbers: as in `TelemetryBatch`. Records of a boot that signed off are ignored.
        """
        _update_reports(self._boots, self._reports, boots, ends_ms, numbers)

    def reports(
        self, models: Sequence[int], now_ms: int, since_ms: int
    ) -> list[list[GatewayReport]]:
        """Newest reports on each of `models` by gateway name. Reports before `since_ms` and reports
        of gateways that signed off are left out."""
        if self._sorted_rows is None:
            self._sorted_rows = np.array([self._rows[key] for key in sorted(self._rows)], np.int64)
        reports = self._reports[self._sorted_rows]
        reports = reports[(reports[:, _REPORTED_MS] >= since_ms) & (reports[:, _LEFT] == 0)]
        found: dict[int, list[GatewayReport]] = {model: [] for model in models}
        owners = self._boots[reports[:, _BOOT], _MODEL].tolist()
        for model, (boot, reported_ms, traffic_ms, in_flight, generation, _) in zip(
            owners, reports.tolist(), strict=True
        ):
            if model in found:
                _, gateway, name = self._names[boot]
                age_ms = max(0, now_ms - reported_ms)
                found[model].append(
                    GatewayReport(
                        gateway, name, reported_ms, in_flight, generation, age_ms, traffic_ms
                    )
                )
        return [found[model] for model in models]

    def forget_silent_boots(self, before_ms: int) -> None:
        """Remove boots without a record since `before_ms`."""
        newest = self._boots[:, _NEWEST_MS].tolist()
        dead = [
            name for name, boot in self._producers.items() if newest[boot.boot_number] < before_ms
        ]
        if not dead:
            return
        gone = [self._producers.pop(name).boot_number for name in dead]
        self._boots_of = Counter(model for model, _, _ in self._producers)
        self._free[0].extend(gone)
        self._reports[np.isin(self._reports[:, _BOOT], gone)] = _NO_REPORT
        alive = Counter((model, gateway) for model, gateway, _ in self._producers)
        for key in [key for key in self._rows if key not in alive]:
            self._free[1].append(self._rows.pop(key))
        self._sorted_rows = None

    def models_without_boots(self) -> set[str]:
        """Models for which no boot is registered."""
        return self.models.keys() - {model for model, _, _ in self._producers}

    def release(self, model: str) -> int:
        """Remove a model without boots; return its index, which a later model may get."""
        number = self.models.pop(model)
        self._free[2].append(number)
        return number

    def _register(self, name: SourceName) -> AppliedSequences:
        model, gateway, _ = name
        if self._boots_of[model] >= MOST_BOOTS_PER_MODEL:
            return REFUSED
        self._boots_of[model] += 1
        number = self.models.get(model)
        if number is None:
            number = self._free[2].pop() if self._free[2] else self.index_limit
            self.models[model] = number
        row = self._rows.get((model, gateway))
        if row is None:
            row = self._free[1].pop() if self._free[1] else len(self._rows)
            if row == len(self._reports):
                self._reports = np.pad(self._reports, ((0, row), (0, 0)))
            self._reports[row] = _NO_REPORT
            self._rows[model, gateway] = row
            self._sorted_rows = None
        if self._free[0]:
            boot = self._free[0].pop()
            self._names[boot] = name
        else:
            boot = len(self._names)
            self._names.append(name)
            if boot == len(self._boots):
                self._boots = np.pad(self._boots, ((0, boot), (0, 0)))
        self._boots[boot] = number, row, _NEVER
        found = self._producers[name] = AppliedSequences(boot)
        return found


@compiled
def _note_newest(boot_rows: Indices, boots: Indices, ends_ms: Indices) -> None:
    """See `GatewayRegistry.note_newest`. boot_rows: one row per boot."""
    for at in range(len(boots)):
        boot_rows[boots[at], _NEWEST_MS] = max(boot_rows[boots[at], _NEWEST_MS], ends_ms[at])


@compiled
def _update_reports(
    boot_rows: Indices, reports: Indices, boots: Indices, ends_ms: Indices, numbers: Indices
) -> None:
    """See `GatewayRegistry.update_reports`. boot_rows: one row per boot; reports: one row per
    gateway. Compiled, because every tick has a few records."""
    _note_newest(boot_rows, boots, ends_ms)
    fits = np.empty(len(boots), np.bool_)  # True unless the boot signed off
    leaves_at = np.full(len(boot_rows), len(boots))
    for at in range(len(boots)):
        boot, report = boots[at], reports[boot_rows[boots[at], _ROW]]
        fits[at] = at <= leaves_at[boot] and (report[_LEFT] == 0 or report[_BOOT] != boot)
        if numbers[at, LEAVING] and leaves_at[boot] == len(boots):
            leaves_at[boot] = at
    for at in ends_ms.argsort(kind="mergesort"):
        report, fields = reports[boot_rows[boots[at], _ROW]], numbers[at]
        if fits[at] and (fields[_ARRIVALS] or fields[_COMPLETIONS] or fields[IN_FLIGHT]):
            report[_TRAFFIC_MS] = max(report[_TRAFFIC_MS], ends_ms[at])
        if fits[at] and ends_ms[at] >= report[_REPORTED_MS]:
            report[_BOOT], report[_REPORTED_MS] = boots[at], ends_ms[at]
            report[_IN_FLIGHT], report[_GENERATION] = fields[IN_FLIGHT], fields[ROUTE_GENERATION]
            report[_LEFT] = fields[LEAVING]
    for at in range(len(boots)):  # a boot's records may be slightly newer than its sign-off
        report = reports[boot_rows[boots[at], _ROW]]
        if numbers[at, LEAVING] and report[_BOOT] == boots[at]:
            report[_LEFT] = 1
