"""Bounded history of each model and of the fleet, as columns of samples.

There are two rings: one with a sample every ten seconds, and one with a sample every two minutes
for the time before. Values are 4-byte floats, except totals, so the number of models limits the
memory. NaN in a column means "no data"; outside of this module it is None.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from autoscaler.estimate.window_stats import NO_REQUESTS
from autoscaler.tick.account import Totals
from autoscaler.tick.status import FleetStatus, ModelStatus
from streams.console.rounding import rounded

FINE_MS, COARSE_MS = 10_000, 120_000
KEPT = 720
"""Samples in each ring: two hours and a day."""
FLEET = "*"
MODEL_SERIES = (
    "demand", "target", "wanted", "ready", "ttft", "tpot", "attained", "attained_now", "usd",
    "tokens", "ended", "met",
)  # fmt: skip
FLEET_SERIES = ("usd", "demand", "ready", "attained", "nodes", "tokens", "ended", "met", "spent")
TOTALS = ("ended", "met", "spent")
"""Series that only grow: requests that ended, those within the SLO, and USD. The difference of two
samples is the total of the time between them. A lower value means that a controller started."""

Sample = Mapping[str, float | None]


def series_of(name: str) -> tuple[str, ...]:
    """The series of a model or of the fleet."""
    return FLEET_SERIES if name == FLEET else MODEL_SERIES


class _Ring:
    """The last `KEPT` samples of several series. first: index of the oldest sample."""

    def __init__(self, names: Sequence[str]) -> None:
        self._at = array("q")
        self._values = {name: array("d" if name in TOTALS else "f") for name in names}

    @property
    def last_ms(self) -> int:
        return self._at[-1] if self._at else 0

    def add(self, at_ms: int, sample: Sample) -> None:
        self._at.append(at_ms)
        for name, column in self._values.items():
            value = sample.get(name)
            column.append(math.nan if value is None else value)
        if len(self._at) >= 2 * KEPT:
            del self._at[:-KEPT]
            for column in self._values.values():
                del column[:-KEPT]

    def samples(self) -> Iterable[tuple[int, Sample]]:
        begin = max(0, len(self._at) - KEPT)
        for index in range(begin, len(self._at)):
            yield self._at[index], {n: _none_for_nan(c[index]) for n, c in self._values.items()}

    def recent(self, name: str, most: int) -> list[float | None]:
        """The last `most` values of one series."""
        return [shown(name, _none_for_nan(one)) for one in self._values[name][-min(most, KEPT) :]]


class History:
    """Samples by model, and of the fleet under the name "*"."""

    def __init__(self) -> None:
        self._fine: dict[str, _Ring] = {}
        self._coarse: dict[str, _Ring] = {}
        self._sampled_ms = 0

    def due(self, now_ms: int) -> bool:
        """Whether the next sample is due at `now_ms`."""
        return not self._sampled_ms <= now_ms < self._sampled_ms + FINE_MS

    def sample(self, now_ms: int, status: FleetStatus, totals: Totals, nodes: int) -> None:
        """Add one sample of every model and of the fleet. nodes: number of nodes in use.

        If the clock was set back, the history begins again.
        """
        if now_ms < self._sampled_ms:
            self._fine, self._coarse = {}, {}
        self._sampled_ms = now_ms
        for model in status.models:
            self.add(model.model, now_ms, model_sample(model, totals))
        self.add(FLEET, now_ms, fleet_sample(status, totals, nodes))
        declared = {FLEET, *(model.model for model in status.models)}
        for name in [known for known in self._fine if known not in declared]:
            del self._fine[name]
            self._coarse.pop(name, None)

    def add(self, name: str, at_ms: int, sample: Sample) -> None:
        """Add a sample that is later than the last one of `name`. An older one is ignored."""
        names = series_of(name)
        fine = self._fine.setdefault(name, _Ring(names))
        coarse = self._coarse.setdefault(name, _Ring(names))
        if fine.last_ms and at_ms <= fine.last_ms:
            return
        fine.add(at_ms, sample)
        if at_ms >= coarse.last_ms + COARSE_MS:
            coarse.add(at_ms, sample)

    def put_older(self, older: Mapping[str, Iterable[tuple[int, Sample]]]) -> None:
        """Add samples from before the first known one, for example from the decision log."""
        for name, samples in older.items():
            later = list(self._samples(name))
            before = [s for s in samples if not later or s[0] < later[0][0]]
            self._fine.pop(name, None)
            self._coarse.pop(name, None)
            for at_ms, sample in (*before, *later):
                self.add(name, at_ms, sample)

    def columns(self, name: str) -> dict[str, Any] | None:
        """Columns of a model or of the fleet by series, and `t` in ms; None without samples."""
        if name not in self._fine:
            return None
        samples = list(self._samples(name))
        series = series_of(name)
        found: dict[str, Any] = {"t": [at_ms for at_ms, _ in samples]}
        for one in series:
            found[one] = [shown(one, sample[one]) for _, sample in samples]
        return found

    def recent(self, name: str, series: str, most: int) -> list[float | None]:
        """The last `most` values of one series, for a small curve."""
        ring = self._fine.get(name)
        if ring is None:
            return []
        return ring.recent(series, most)

    def _samples(self, name: str) -> Iterable[tuple[int, Sample]]:
        fine = list(self._fine[name].samples()) if name in self._fine else []
        begin_ms = fine[0][0] if fine else 0
        coarse = self._coarse[name].samples() if name in self._coarse else ()
        return [*((at, s) for at, s in coarse if at < begin_ms), *fine]


def shown(series: str, value: float | None) -> float | None:
    """A value of `series` for the page: totals have all their digits, so that differences hold."""
    if series in TOTALS:
        return None if value is None else round(value, 9)
    return rounded(value)


def model_sample(status: ModelStatus, totals: Totals) -> Sample:
    """One sample of a model."""
    requests = totals.requests.get(status.model, NO_REQUESTS)
    return {
        "demand": status.demand_req_per_s,
        "target": status.target_req_per_s,
        "wanted": status.wanted_req_per_s,
        "ready": status.ready_req_per_s,
        "ttft": status.ttft_p95_ms,
        "tpot": status.tpot_p95_ms,
        "attained": status.attained,
        "attained_now": status.attained_now,
        "usd": status.usd_per_h,
        "tokens": status.tokens_per_s,
        "ended": float(requests.ended),
        "met": float(requests.attained),
    }


def fleet_sample(status: FleetStatus, totals: Totals, nodes: int) -> Sample:
    """One sample of the fleet."""
    models, requests = status.models, totals.all_requests
    known = [m.demand_req_per_s for m in models if m.demand_req_per_s is not None]
    tokens = [m.tokens_per_s for m in models if m.tokens_per_s is not None]
    return {
        "usd": status.usd_per_h,
        "demand": sum(known) if known else None,
        "ready": sum(m.ready_req_per_s for m in models),
        "attained": status.attained,
        "nodes": float(nodes),
        "tokens": sum(tokens) if tokens else None,
        "ended": float(requests.ended),
        "met": float(requests.attained),
        "spent": totals.usd,
    }


def _none_for_nan(value: float) -> float | None:
    return None if math.isnan(value) else value
