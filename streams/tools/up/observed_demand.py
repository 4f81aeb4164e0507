"""The observed demand of a run, by model and minute of domain time, for the comparisons of cost.

Pure: each telemetry record is input once, demands are output.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from autoscaler.domain.workload import Demand, Lengths
from topics.records import Telemetry

MINUTE_MS = 60_000
_LEAST_COVERED_MS = 30_000


_MOST_OPEN = 240
"""Minutes of a model that still take records. Older minutes keep their rate only."""


@dataclass(slots=True)
class _Minute:
    arrivals: int = 0
    covered_ms: dict[str, int] = field(
        default_factory=dict
    )  # by gateway, because gateways share the arrivals

    def req_per_s(self) -> float:
        longest = max(self.covered_ms.values(), default=0)
        return self.arrivals * 1000.0 / longest if longest else 0.0

    def is_whole(self) -> bool:
        return max(self.covered_ms.values()) >= _LEAST_COVERED_MS


class _Minutes:
    """The minutes of one model: the last ones with their records, and the rates of the others."""

    def __init__(self) -> None:
        self._open: dict[int, _Minute] = {}
        self._numbers, self._rates, self._whole = array("q"), array("d"), bytearray()

    def add(self, record: Telemetry) -> None:
        """Add a record. It is ignored if its minute is older than the minutes that are open."""
        number = record.end_ms // MINUTE_MS
        minute = self._open.get(number)
        if minute is None:
            if len(self._open) >= _MOST_OPEN and number < min(self._open):
                return
            minute = self._open[number] = _Minute()
        minute.arrivals += record.arrivals
        covered = minute.covered_ms
        covered[record.gateway] = covered.get(record.gateway, 0) + record.span_ms
        if len(self._open) > _MOST_OPEN:
            oldest = min(self._open)
            self._numbers.append(oldest)
            closed = self._open.pop(oldest)
            self._rates.append(closed.req_per_s())
            self._whole.append(closed.is_whole())

    def rates(self) -> dict[int, tuple[float, bool]]:
        """By minute since the epoch: requests/s, and whether at least half of it has telemetry."""
        closed = zip(self._numbers, self._rates, map(bool, self._whole), strict=True)
        found = {number: (rate, whole) for number, rate, whole in closed}
        return found | {n: (one.req_per_s(), one.is_whole()) for n, one in self._open.items()}


@dataclass(slots=True)
class _Tokens:
    arrivals: int = 0
    arrived: int = 0
    completions: int = 0
    written: int = 0


class DemandSeen:
    """Collects the demand from telemetry records; `add` each record once."""

    def __init__(self) -> None:
        self._minutes: dict[str, _Minutes] = {}
        self._tokens: dict[str, _Tokens] = {}

    def add(self, record: Telemetry) -> None:
        """Add the telemetry of one gateway for one span of time."""
        self._minutes.setdefault(record.model, _Minutes()).add(record)
        tokens = self._tokens.setdefault(record.model, _Tokens())
        tokens.arrivals += record.arrivals
        tokens.arrived += record.input_tokens_arrived
        tokens.completions += record.completions
        tokens.written += record.output_tokens

    def totals(self) -> dict[int, float]:
        """Requests/s of all models together, by minute since the epoch; minutes with arrivals, in
        order."""
        found: dict[int, float] = {}
        for minutes in self._minutes.values():
            for number, (rate, _) in minutes.rates().items():
                found[number] = found.get(number, 0.0) + rate
        return {number: rate for number, rate in sorted(found.items()) if rate}

    def minutes(self) -> list[int]:
        """The minutes since the epoch that had arrivals, in order."""
        return list(self.totals())

    def peak(self, minutes: Iterable[int]) -> tuple[Demand, ...]:
        """Each model's busiest minute of `minutes`, with its mean lengths over the whole run.

        A minute with telemetry for less than half of its time counts only if the model has no
        other.
        """
        wanted = list(minutes)
        found = []
        for model, minutes_of in self._minutes.items():
            rates = minutes_of.rates()
            present = [rates[number] for number in wanted if number in rates]
            whole = [one for one in present if one[1]]
            rate = max((one[0] for one in whole or present), default=0.0)
            if rate > 0.0:
                found.append(Demand(model, rate, self._lengths(model)))
        return tuple(sorted(found, key=lambda demand: demand.model))

    def _lengths(self, model: str) -> Lengths:
        tokens = self._tokens[model]
        return Lengths.expected(
            max(1.0, tokens.arrived / max(1, tokens.arrivals)),
            max(1.0, tokens.written / max(1, tokens.completions)),
        )
